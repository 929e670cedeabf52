"""The recipes of docs/architecture.md, followed literally on a copy of the tree with a toy of each kind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_workload

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "latfix", "profilers", "reports", "runners")

CAUSE = """
from latfix.profilers.causes.cause import Cause, Claim
import numpy as np

CAUSE = Cause(
    id="toy.cause",
    fixes=("host.toy",),
    claim=lambda evidence, left: Claim(own={"compute": np.full(len(evidence.ok), 2_000_000)}, usual={"compute": 0}),
    sentence=lambda evidence, figures: "a toy takes two milliseconds of each request.",
)
"""
FIX = """
from latfix.runners.fixes.fix import Fix, Verified

FIX = Fix(
    id="host.toy",
    title="take the toy away",
    treats=("toy.cause",),
    risk="none",
    relief=1.0,
    sets={"seed": 7},
    verify=lambda applied: Verified(True, "it is gone"),
)
"""
FORMAT = """
def _toy(table: RawTable) -> Fields:
    arrivals = instants(table, "toy_ms", unit=_NS_PER_MS)
    return _fields(table, arrivals, {"toy_size": table.convert("toy_size", count, 0)})


"""
RECORDING = """
import numpy as np

from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded
from latfix.profilers.recordings.requests.readers import diagnose_table
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.results.diagnosis import Diagnosis


def _read(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    rows = np.loadtxt(recorded.path, skiprows=1, dtype=np.int64)
    status = np.zeros(len(rows), np.int8)
    table = RequestTable(arrival_ns=rows[:, 0], latency_ns=rows[:, 1], status=status, facts={"format": "toy"})
    return diagnose_table(table, recorded.path, options, kind="toy")


READER = Reader(kind="toy", reads="a toy log", knows=lambda recorded: recorded.head.startswith(b"toy 1"), read=_read)
"""
RESULT = """
from dataclasses import dataclass
from typing import ClassVar

from latfix.files.json_documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy(Document):
    SCHEMA: ClassVar[str] = "latfix.toy/1"

    name: str
"""
TERMINAL = """
from latfix.results.toy import Toy


def render_toy(toy: Toy) -> str:
    return f"a toy named {toy.name}"
"""
COMMAND = '''
def toy() -> int:
    """Show a toy."""
    from latfix.reports.terminal.toy import render_toy
    from latfix.results.toy import Toy

    print(render_toy(Toy(name="top")))
    return 0
'''
ROWS = """
def toy_rows(diagnosis: Diagnosis) -> list[list[str]]:
    return [["toy verdict", diagnosis.verdict]]


"""
SECTION = """{% call m.section("toy") %}<p>{{ toys[0][0] }}: {{ toys[0][1] }}</p>{% endcall %}
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code to which each recipe added a toy, in the files that the recipe names."""
    root = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    touched: dict[str, set[str]] = {}

    def insert(recipe: str, file: str, mark: str, text: str) -> None:
        """Insert ``text`` before the first ``mark``."""
        path = root / file
        before, found, after = path.read_text(encoding="utf-8").partition(mark)
        assert found, f"{file}: {mark!r}"
        path.write_text(before + text + found + after, encoding="utf-8")
        touched.setdefault(recipe, set()).add(file)

    def add(recipe: str, file: str, text: str) -> None:
        assert not (root / file).exists() and (root / file).parent.is_dir()
        (root / file).write_text(text, encoding="utf-8")
        touched.setdefault(recipe, set()).add(file)

    known = (
        '    KnownCause("toy.cause", "modelled", "a toy", happened="playing with a toy", behind="one with a toy"),\n'
    )
    insert("A cause", "latfix/cause_catalogue.py", '    KnownCause(\n        "unexplained"', known)
    add("A cause", "profilers/causes/python/toy.py", CAUSE)
    causes = "profilers/causes/__init__.py"
    insert("A cause", causes, "from latfix", "from latfix.profilers.causes.python import toy as toy_cause\n")
    insert("A cause", causes, "    input_size.CAUSE", "    toy_cause.CAUSE,\n")
    add("A fix", "runners/fixes/host/toy.py", FIX)
    fixes = "runners/fixes/__init__.py"
    insert("A fix", fixes, "from latfix", "from latfix.runners.fixes.host import toy as toy_fix\n")
    insert("A fix", fixes, "    size.FIX", "    toy_fix.FIX,\n")
    insert(
        "A fix", "latfix/cause_catalogue.py", '    "host.workers": Premise', '    "host.toy": Premise(workers=2),\n'
    )
    formats = "latfix/traffic/io/published_formats.py"
    insert("A traffic format", formats, "#: In the order in which they are tried.", FORMAT)
    published = '    PublishedFormat("toy", ("toy_ms", "toy_size"), _toy, "A toy"),\n'
    insert("A traffic format", formats, '    PublishedFormat(\n        "azure', published)
    add("A kind of recording", "profilers/recordings/toy.py", RECORDING)
    detect = "profilers/recordings/detect.py"
    insert("A kind of recording", detect, "from latfix", "from latfix.profilers.recordings import toy\n")
    insert("A kind of recording", detect, "    *REQUEST_READERS,", "    toy.READER,\n")
    contract = 'service_log", "devices | memory_history'
    insert("A kind of recording", "pyproject.toml", contract, "toy | ")
    add("A command", "latfix/results/toy.py", RESULT)
    insert("A command", "latfix/results/__init__.py", '    "run": (', '    "toy": ("latfix.results.toy", "Toy"),\n')
    add("A command", "reports/terminal/toy.py", TERMINAL)
    add("A command", "cli/commands/running/toy.py", COMMAND)
    insert("A command", "cli/app.py", '    "diagnose": (', '    "toy": ("running.toy:toy", "Show a toy."),\n')
    section, pages = "A section of a report", "reports/html/pages.py"
    insert(section, "reports/diagnosis_rows.py", "@dataclass", ROWS)
    insert(section, pages, "from latfix", "from latfix.reports.diagnosis_rows import toy_rows\n")
    insert(section, pages, '    "causes":', '    "toy": "A toy section",\n')
    insert(section, pages, '"causes", "advice", "latency"', '"toy", ')
    insert(section, pages, "        lines_words=LINES_WORDS,\n        flames", "        toys=toy_rows(diagnosis),\n")
    insert(section, "reports/html/templates/run.html", '{% call m.section("latency") %}', SECTION)
    _in_named_places(touched)
    return root


def _in_named_places(touched: dict[str, set[str]]) -> None:
    """Every recipe of the page was followed, and in the files that it names, no others."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## How to add\n", 1)[1].split("\n## ", 1)[0]
    recipes = dict(re.findall(r"^\*\*([^*]+)\*\*\n\n(.*?)(?=\n\n\*\*|\Z)", section, re.MULTILINE | re.DOTALL))
    assert set(touched) == set(recipes)
    for name, files in touched.items():
        places = re.findall(r"`([\w./]+\.(?:py|html|toml))`", recipes[name])
        rules = [re.sub("AREA|FAMILY|NAME", r"\\w+", re.escape(place)) for place in places]
        assert [file for file in files if not any(re.fullmatch(rule, file) for rule in rules)] == [], name
        asked = [rule for rule in rules if not rule.startswith(("docs", "tests"))]
        assert [rule for rule in asked if not any(re.fullmatch(rule, file) for file in files)] == [], name


def _run(tree: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CALL = "import sys; from latfix.cli.app import main; sys.exit(main(sys.argv[1:]))"


def test_a_command(tree: Path) -> None:
    assert _run(tree, "-c", CALL, "toy") == "a toy named top\n"
    assert "Show a toy." in _run(tree, "-c", CALL, "--help")
    assert json.loads(_run(tree, "-c", CALL, "schema", "toy"))["properties"]["name"]


def test_a_fix(tree: Path) -> None:
    look = (
        "from latfix.runners.fixes import FIXES; print([fix.title for fix in FIXES if fix.id == 'host.toy'])\n"
        "from latfix.cause_catalogue import PREMISES; print(PREMISES['host.toy'].workers)"
    )
    assert _run(tree, "-c", look) == "['take the toy away']\n2\n"


def test_a_kind_of_recording(tree: Path, tmp_path: Path) -> None:
    log, file = tmp_path / "any.name", tmp_path / "diagnosis.json"
    log.write_text("toy 1\n" + "".join(f"{20_000_000 * k} {1_000_000 + 50_000 * (k % 7)}\n" for k in range(60)))
    _run(tree, "-c", CALL, "diagnose", str(log), "--json", str(file))
    document = json.loads(file.read_text())
    assert document["requests"]["ok"] == 60
    assert document["source"]["kind"] == "toy" and document["source"]["read"]["format"] == "toy"


@pytest.mark.slow
def test_the_toys_keep_the_import_contract(tree: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    told = subprocess.run(
        [linter, "--no-cache"], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0 and "0 broken" in told.stdout, told.stdout


@pytest.mark.slow
def test_a_cause_a_traffic_format_and_a_section(tree: Path, tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "workload", runner={"workers": 2})
    traffic = tmp_path / "toy.jsonl"
    traffic.write_text("".join(json.dumps({"toy_ms": 20 * k, "toy_size": k}) + "\n" for k in range(60)))
    out = tmp_path / "run"
    _run(tree, "-c", CALL, "diagnose", str(workload), "--traffic", str(traffic), "--out", str(out))
    document = json.loads((out / "diagnosis.json").read_text())
    toys = [cause for cause in document["causes"] if cause["cause"] == "toy.cause"]
    assert document["requests"]["ok"] == 60
    assert [(toy["tail_ms"], toy["fixes"]) for toy in toys] == [(pytest.approx(2.0), ["host.toy"])]
    page = (out / "report.html").read_text()
    assert "A toy section" in page and f"toy verdict: {document['verdict']}" in page
