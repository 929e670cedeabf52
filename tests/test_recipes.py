"""The recipes of docs/architecture.md, followed literally on a copy of the tree with a toy of each kind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import WriteWorkload

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "latfix", "profilers", "reports", "runners")

CAUSE = """
from latfix.profilers.causes.cause import Cause, Claim
import numpy as np

CAUSE = Cause(
    id="toy.cause",
    fixes=("toy.fix",),
    claim=lambda evidence, left: Claim(own={"compute": np.full(len(evidence.ok), 2_000_000)}, usual={"compute": 0}),
    sentence=lambda evidence, figures: "a toy takes two milliseconds of each request.",
)
"""
FIX = """
from latfix.runners.fixes.fix import Fix, Verified

FIX = Fix(
    id="toy.fix",
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
COMMAND = '''
def toy() -> int:
    """Show a toy."""
    print("a toy command")
    return 0
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with a toy cause, fix, traffic format, command and section of the page."""
    root = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))

    def insert(file: str, mark: str, text: str) -> None:
        """Insert ``text`` before the first ``mark``."""
        path = root / file
        before, found, after = path.read_text(encoding="utf-8").partition(mark)
        assert found, f"{file}: {mark!r}"
        path.write_text(before + text + found + after, encoding="utf-8")

    insert(
        "latfix/cause_catalogue.py",
        '    KnownCause(\n        "unexplained"',
        '    KnownCause("toy.cause", "modelled", "a toy", happened="playing with a toy", behind="one with a toy"),\n',
    )
    (root / "profilers/causes/toy_cause.py").write_text(CAUSE, encoding="utf-8")
    insert("profilers/causes/__init__.py", "from latfix", "from latfix.profilers.causes import toy_cause\n")
    insert("profilers/causes/__init__.py", "    input_size.CAUSE", "    toy_cause.CAUSE,\n")
    (root / "runners/fixes/toy_fix.py").write_text(FIX, encoding="utf-8")
    insert("runners/fixes/__init__.py", "from latfix", "from latfix.runners.fixes import toy_fix\n")
    insert("runners/fixes/__init__.py", "    batch.size.FIX", "    toy_fix.FIX,\n")
    formats = "latfix/traffic/io/published_formats.py"
    insert(formats, "#: In the order in which they are tried.", FORMAT)
    insert(
        formats,
        '    PublishedFormat(\n        "azure',
        '    PublishedFormat("toy", ("toy_ms", "toy_size"), _toy, "A toy"),\n',
    )
    (root / "cli/commands/toy.py").write_text(COMMAND, encoding="utf-8")
    insert("cli/app.py", '    "diagnose": (', '    "toy": ("toy:toy", "Show a toy."),\n')
    insert("reports/html/pages.py", '    "causes":', '    "toy": "A toy section",\n')
    insert("reports/html/pages.py", '"causes", "advice", "latency"', '"toy", ')
    insert(
        "reports/html/templates/run.html",
        '{% call m.section("latency") %}',
        '{% call m.section("toy") %}<p>toy verdict: {{ diagnosis.verdict }}</p>{% endcall %}\n',
    )
    return root


def _run(tree: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command(tree: Path) -> None:
    call = "import sys; from latfix.cli.app import main; sys.exit(main(sys.argv[1:]))"
    assert _run(tree, "-c", call, "toy") == "a toy command\n"
    assert "Show a toy." in _run(tree, "-c", call, "--help")


def test_a_fix(tree: Path) -> None:
    look = "from latfix.runners.fixes import FIXES; print([fix.title for fix in FIXES if fix.id == 'toy.fix'])"
    assert _run(tree, "-c", look) == "['take the toy away']\n"


@pytest.mark.slow
def test_a_cause_a_traffic_format_and_a_section(tree: Path, tmp_path: Path, write_workload: WriteWorkload) -> None:
    workload = write_workload(tmp_path / "workload")
    traffic = tmp_path / "toy.jsonl"
    traffic.write_text("".join(json.dumps({"toy_ms": 20 * k, "toy_size": k}) + "\n" for k in range(60)))
    call = "import sys; from latfix.cli.app import main; sys.exit(main(sys.argv[1:]))"
    out = tmp_path / "run"
    _run(tree, "-c", call, "diagnose", str(workload), "--traffic", str(traffic), "--out", str(out))
    document = json.loads((out / "diagnosis.json").read_text())
    toys = [cause for cause in document["causes"] if cause["cause"] == "toy.cause"]
    assert document["requests"]["ok"] == 60
    assert [(toy["tail_ms"], toy["fixes"]) for toy in toys] == [(pytest.approx(2.0), ["toy.fix"])]
    page = (out / "report.html").read_text()
    assert "A toy section" in page and f"toy verdict: {document['verdict']}" in page
