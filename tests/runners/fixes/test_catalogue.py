"""Every fix is in the catalogue and documented, its id gives its module, and the search does not know it by name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from latfix.cause_catalogue import CATALOGUE
from latfix.config.plan import Plan, PlannedFix, plan_text
from latfix.profilers.causes import CAUSES
from latfix.results.optimization import TriedFix
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners import fixes, optimize
from latfix.runners.fixes import FIXES, Fix
from latfix.settings import RunnerSettings
from tests.records import build_record, zeros

ROOT = Path(__file__).resolve().parents[3]
BY_ID = {fix.id: fix for fix in FIXES}


def _declared() -> dict[str, str]:
    """Ids of the fixes that modules declare, by the module's path in dots."""
    found = {}
    for info in pkgutil.walk_packages(fixes.__path__, f"{fixes.__name__}."):
        fix = vars(importlib.import_module(info.name)).get("FIX")
        if isinstance(fix, Fix):
            found[info.name.removeprefix(f"{fixes.__name__}.")] = fix.id
    return found


def test_every_module_with_a_fix_is_in_the_catalogue_and_named_like_it() -> None:
    declared = _declared()
    assert sorted(declared.values()) == sorted(BY_ID) and len(FIXES) == len(BY_ID)
    families = {name.partition(".")[0] for name in declared if "." in name}
    for module, fix in declared.items():
        family = fix.partition(".")[0]
        assert module == (fix if family in families else fix.replace(".", "_"))


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_declaration_is_whole(fix: Fix) -> None:
    assert fix.risk and fix.title and 0 < fix.relief <= 1 and 0 < fix.compute <= 1
    assert set(fix.removes) <= set(fix.treats) <= {cause.id for cause in CAUSES}
    assert fix.after in ("", *BY_ID)
    assert not (fix.gentle and fix.changes_outputs)
    step = fix.step("skipped", "why").tried().to_json()
    assert (step["fix"], step["title"], step["risk"]) == (fix.id, fix.title, fix.risk)
    older = {key: value for key, value in step.items() if key not in ("title", "risk")}
    assert TriedFix.from_json(older).title == ""
    plan = Plan(workload="w", fixes=(PlannedFix(id=fix.id, settings=RunnerSettings().to_json()),))
    assert f'id = "{fix.id}"' in plan_text(plan)


def test_every_fix_that_a_cause_names_exists() -> None:
    for cause in CAUSES:
        assert set(cause.fixes) <= set(BY_ID), cause.id


def test_every_fix_that_any_module_names_exists() -> None:
    families = "|".join({fix.partition(".")[0] for fix in BY_ID} - {"host", "memory"})  # also files of the kernel
    for path in sorted((ROOT / "profilers").rglob("*.py")):
        named = set(re.findall(rf'"((?:{families})\.[a-z0-9_]+)"', path.read_text(encoding="utf-8")))
        assert named <= set(BY_ID) | set(CATALOGUE), path


@pytest.mark.parametrize("name", ["fuse.onnxruntime", "fuse.openvino", "fuse.compile"])
def test_making_a_small_model_is_expected_to_take_less(name: str) -> None:
    fix = next(each for each in FIXES if each.id == name)

    def seconds(modules: dict[str, int], device: str = "cpu") -> float:
        meta = build_record(zeros(REQUEST_DTYPE, 1), model={"modules": modules}, device=device).meta
        return fix.seconds_to_make(meta)

    few, many, unknown = seconds({"Linear": 2}), seconds({"Linear": 60, "LayerNorm": 13}), seconds({})
    assert 2 * few < unknown < many
    if name == "fuse.compile":
        assert seconds({"Linear": 2}, "cuda:0") == seconds({}, "cuda:0")


def test_at_most_one_finding_is_kept_in_the_journal() -> None:
    assert sum(fix.set_up is not None and fix.set_up.recorded for fix in FIXES) <= 1


def test_the_search_holds_no_fixs_name() -> None:
    for file in Path(optimize.__path__[0]).glob("*.py"):
        text = file.read_text()
        assert [name for name in BY_ID if f'"{name}"' in text or f"`{name}`" in text] == [], file.name


def test_the_page_of_fixes_has_a_row_for_each_and_no_other() -> None:
    """A row may be of several fixes, whose ids stand in its first cell."""
    page = (ROOT / "docs" / "fixes.md").read_text()
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(part for cell in cells for part in cell.split("`")[1::2]) == sorted(BY_ID), "each once"
