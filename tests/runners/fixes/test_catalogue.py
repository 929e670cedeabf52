"""Every fix is in the catalogue, and in the documentation."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

from latfix.runners import fixes
from latfix.runners.fixes import FIXES
from latfix.settings import RunnerSettings

ROOT = Path(__file__).resolve().parents[3]


def _modules() -> list[str]:
    return sorted(info.name for info in pkgutil.iter_modules(fixes.__path__))


def test_every_module_with_a_fix_is_in_the_catalogue() -> None:
    found = []
    for name in _modules():
        module = importlib.import_module(f"latfix.runners.fixes.{name}")
        if hasattr(module, "FIX"):
            found.append(module.FIX)
    assert {fix.id for fix in found} == {fix.id for fix in FIXES}
    assert len(FIXES) == len({fix.id for fix in FIXES})


def test_a_fix_is_named_like_its_module() -> None:
    assert {fix.id.replace(".", "_") for fix in FIXES} <= set(_modules())


def test_every_fix_is_documented() -> None:
    page = ROOT / "docs" / "fixes.md"
    if not page.exists():
        pytest.skip("docs/fixes.md is not written yet")
    text = page.read_text()
    for fix in FIXES:
        assert f"`{fix.id}`" in text, fix.id


def test_ids_can_be_written_into_a_plan() -> None:
    from latfix.config.plan import Plan, PlannedFix, plan_text

    for fix in FIXES:
        plan = Plan(workload="w", fixes=(PlannedFix(id=fix.id, settings=RunnerSettings().as_dict()),))
        assert f'id = "{fix.id}"' in plan_text(plan)
