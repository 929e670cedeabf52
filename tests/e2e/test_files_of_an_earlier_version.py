"""Runs and a plan that 76857f2 wrote are read: reported, diagnosed and compared.

``written_at_76857f2`` holds a workload, ``latfix optimize workload --budget 60s --fix batch.window --fix gc.freeze
--seed 1`` of it at that commit, and the two runs of its final replay, without pages and the search's own records.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

import latfix
from latfix.config.plan import read_plan
from latfix.config.workload_toml import load_spec
from latfix.traffic.io.reader import read_traffic
from tests.conftest import cli, succeeded

WRITTEN = Path(__file__).parent / "written_at_76857f2"
PLAN = tomllib.loads((WRITTEN / "opt" / "plan.toml").read_text(encoding="utf-8"))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A copy: commands write pages beside what they read."""
    return Path(shutil.copytree(WRITTEN, tmp_path / "written"))


@pytest.mark.parametrize("arm", ["before-1", "after-1"])
def test_a_run_is_reported(arm: str, written: Path) -> None:
    run = written / "opt" / "final" / arm
    out = succeeded(cli("report", run))
    assert "p99" in out and "small" in (run / "report.html").read_text(encoding="utf-8")


def test_a_run_has_the_diagnosis_that_it_had(written: Path) -> None:
    run = written / "opt" / "final" / "after-1"
    then = json.loads((run / "diagnosis.json").read_text(encoding="utf-8"))
    now = latfix.diagnose(latfix.read_run(run)).to_json()
    assert (now["requests"], now["verdict"]) == (then["requests"], then["verdict"])
    assert now["latency_ms"] == pytest.approx(then["latency_ms"])
    assert {stage: pytest.approx(figures) for stage, figures in then["stages_ms"].items()} == now["stages_ms"]
    for name in ("percentile", "excess_ms", "reference_ms"):
        assert now["tail"][name] == pytest.approx(then["tail"][name])
    mine, known = ({each["cause"]: each["tail_ms"] for each in found["causes"]} for found in (now, then))
    # An inherited finish is not measured. Since then, its time is no wait for something outside.
    waits = [found.pop("external.dependency") + found.pop("unexplained") for found in (mine, known)]
    assert mine == pytest.approx(known) and waits[0] == pytest.approx(waits[1], abs=2e-6)


def test_two_runs_are_compared_with_the_ratio_that_the_plan_holds(written: Path, tmp_path: Path) -> None:
    file, final = tmp_path / "comparison.json", written / "opt" / "final"
    succeeded(cli("compare", final / "before-1", final / "after-1", "--json", file))
    ratio = json.loads(file.read_text())["ratio"]
    for key in ("mean", "p50", "p99"):
        assert ratio[key]["value"] == pytest.approx(PLAN["measured"][f"{key}_ratio"])


def test_an_optimization_is_reported(written: Path) -> None:
    out = succeeded(cli("report", written / "opt"))
    assert "batch.window" in out and "53 times faster" in out


def test_a_plan_and_its_workload_are_read(written: Path) -> None:
    plan, spec = read_plan(written / "opt" / "plan.toml"), load_spec(str(written / "workload"))
    assert [fix.id for fix in plan.fixes] == ["batch.window"] and plan.settings() == {"batch_window_ms": 0.0}
    assert spec.name == plan.workload and len(read_traffic(spec.traffic)) == 40
