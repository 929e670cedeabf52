"""README shows the run of ``make demo`` that the committed result calls typical, and says of how many."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.optimize import typical_run
from benchmarks.result_file import RESULTS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _run(p99: float | None, verdict: str = "improved") -> dict[str, object]:
    ratio = None if p99 is None else {key: {"value": p99} for key in ("mean", "p50", "p99")}
    return {"output": [f"p99 x{p99}"], "result": {"verdict": verdict, "ratio": ratio}}


@pytest.mark.parametrize(
    ("ratios", "typical"),
    [((0.1, 0.5, 0.7), 0.5), ((0.9, 0.2, 0.4, 1.3, 0.3), 0.4), ((0.3, 0.6), 0.3), ((0.5, None, 1.2), None)],
)
def test_the_median_run_is_kept_not_the_best(ratios: tuple[float | None, ...], typical: float | None) -> None:
    """A run without a plan changed nothing: its ratio is 1."""
    found = typical_run.summary([_run(each) for each in ratios])
    assert found["output"] == [f"p99 x{typical}"]
    assert found["median"]["p99"] == (typical or 1.0)
    assert [each["p99"] for each in found["runs"]] == [each or 1.0 for each in ratios]


def test_the_demo_is_what_is_measured() -> None:
    assert f"latfix {' '.join(typical_run.DEMO)}" == DOCUMENT["command"]
    assert " ".join(typical_run.DEMO) in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_readme_shows_lines_of_the_typical_run() -> None:
    block = README.split("## Output\n\n", 1)[1].split("\n\nThis is the output", 1)[0]
    shown = [line.strip() for line in block.splitlines() if line.strip() not in ("", "…")]
    printed = {line.strip() for line in DOCUMENT["output"]}
    assert len(shown) > 30 and not [line for line in shown if line not in printed]


def test_the_output_is_of_the_kept_document() -> None:
    result = DOCUMENT["result"]
    ratio = result["ratio"]["p99"]
    assert f"x{ratio['value']:.3g}  [{ratio['ci95'][0]:.3g}, {ratio['ci95'][1]:.3g}]" in "\n".join(DOCUMENT["output"])
    assert DOCUMENT["median"]["p99"] == ratio["value"]
    assert ratio["value"] == sorted(run["p99"] for run in DOCUMENT["runs"])[(len(DOCUMENT["runs"]) - 1) // 2]


def test_readme_tells_how_runs_vary() -> None:
    known = [run["p99"] for run in DOCUMENT["runs"]]
    text = " ".join(README.split())
    told = re.search(r"ended at ([\d.]+) to ([\d.]+) of the p99, their median at ([\d.]+)", text)
    assert told is not None
    assert [float(each) for each in told.groups()] == [
        pytest.approx(each, abs=0.006) for each in (min(known), max(known), statistics.median(known))
    ]
    decided = sum(run["verdict"] == "improved" for run in DOCUMENT["runs"])
    assert (len(known), decided) == (5, 4) and "of five runs" in text and "four were decided" in text
