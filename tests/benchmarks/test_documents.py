"""Documents name the commit of each result that they cite, in the section that cites it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import rerun
from benchmarks.result_file import RESULTS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _sections() -> list[tuple[str, str]]:
    """Each cited result with the section that cites it."""
    found = []
    for page in PAGES:
        for section in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            names = re.findall(r"benchmarks/results/([\w.-]+\.\w+)", section)
            names += [f"optimize-{name}.json" for name in ("assistant", "vision") if "optimize-NAME.json" in section]
            found += [(name, section) for name in names if "NAME" not in name]
    return found


CITED = _sections()


def test_most_results_are_cited() -> None:
    assert len({name for name, _ in CITED}) >= len(rerun.CATALOGUE) - 2


@pytest.mark.parametrize(("name", "section"), CITED, ids=[name for name, _ in CITED])
def test_a_cited_result_has_its_commit_beside_it(name: str, section: str) -> None:
    document = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    known = [commit[:7] for commit in rerun._commits(document)]
    text = " ".join(section.split())
    assert any(commit in text for commit in known) if known else "commit not recorded" in text


def test_named_benchmarks_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    modules = set(re.findall(r"-m (benchmarks\.[\w.]+\w)", text))
    files = {f"{module.replace('.', '/')}.py" for module in modules}
    files |= set(re.findall(r"\b(benchmarks/[\w/]+\.py)", text))
    assert len(files) > 15 and [file for file in sorted(files) if not (ROOT / file).is_file()] == []
