"""``--plan`` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from latfix.config.plan import Plan, plan_text

Diagnose = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("made_for", "warned"), [("other", True), ("w", False)])
def test_a_plan_of_another_workload_is_pointed_out_and_used(
    diagnose: Diagnose, tmp_path: Path, made_for: str, warned: bool
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(Plan(workload=made_for, fixes=())), encoding="utf-8")
    code, _, err = diagnose("--plan", plan)
    assert code == 0
    assert (f"warning: The plan was made for {made_for!r}, not for" in err) is warned
