"""``latfix export-plan``: where files go, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from latfix.cli.commands.reading.export_plan import _NAMES
from latfix.config.plan import Plan, PlannedFix, read_plan, write_plan
from latfix.reports.server_configs.export import TARGETS
from tests.conftest import cli


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    settings = {"max_batch_size": 8, "gc": "freeze"}
    write_plan(Plan(workload="w", fixes=(PlannedFix(id="batch.size", settings=settings),)), tmp_path / "plan.toml")
    return tmp_path


def test_every_server_can_be_named() -> None:
    assert tuple(TARGETS) == _NAMES


def test_without_out_the_text_alone_is_on_standard_output(plan: Path) -> None:
    code, out, err = cli("export-plan", str(plan), "--for", "triton")
    assert code == 0 and "max_batch_size: 8\n" in out
    assert "\ngc = freeze has no counterpart in Triton" in err and "for a batch to fill" in err


@pytest.mark.parametrize(("verdict", "told"), [("inconclusive", True), ("no_gain", True), ("improved", False)])
def test_an_unproved_plan_is_called_that(verdict: str, told: bool, plan: Path) -> None:
    write_plan(replace(read_plan(plan), verdict=verdict, rounds=1), plan / "plan.toml")
    _, out, err = cli("export-plan", str(plan), "--for", "triton")
    assert ("the plan is not proved: " in err) == ("# the plan is not proved: " in out) == told


def test_out_is_a_file_or_a_folder(plan: Path, tmp_path: Path) -> None:
    code, out, _ = cli("export-plan", str(plan), "--for", "env", "--out", str(tmp_path / "new" / "x.env"))
    assert code == 0 and (tmp_path / "new" / "x.env").is_file() and "no counterpart" in out
    for _ in range(2):  # its own files are replaced
        code, out, _ = cli("export-plan", str(plan), "--for", "torchserve", "--out", str(tmp_path / "server"))
        assert code == 0 and out.count("wrote") == 2
    assert sorted(file.name for file in (tmp_path / "server").iterdir()) == ["config.properties", "model-config.yaml"]


def test_refused(plan: Path, tmp_path: Path) -> None:
    out = cli("export-plan", str(plan), "--for", "torchserve")[1]
    names = [line for line in out.splitlines() if line.startswith("# ---- ")]
    assert names == ["# ---- config.properties ----", "# ---- model-config.yaml ----"]
    assert cli("export-plan", str(plan), "--for", "flask")[::2] == (
        2,
        f"latfix: --for: found 'flask'; expected one of {', '.join(_NAMES)}\n",
    )
    (tmp_path / "config.pbtxt").write_text("name: 'mine'\n")
    code, _, err = cli("export-plan", str(plan), "--for", "triton", "--out", str(tmp_path))
    assert code == 2 and "which latfix did not write" in err
    assert cli("export-plan", str(tmp_path / "none.toml"), "--for", "env")[0] == 2
    unknown = Plan(workload="w", fixes=(PlannedFix(id="batch.sise", settings={}),))
    write_plan(unknown, tmp_path / "plan.toml")
    code, out, err = cli("export-plan", str(plan), "--for", "env")
    assert (code, out) == (2, "") and "did you mean 'batch.size'?" in err and err.count("\n") == 1
