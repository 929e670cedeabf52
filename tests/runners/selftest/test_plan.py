"""The planned cases and their traffic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.profilers.causes import CAUSES
from latfix.runners.selftest import plan as matrix
from latfix.runners.selftest.case import CLEAN_START, FACTORS, INTENSITIES, Intensity
from latfix.runners.selftest.plan import HELD_OUT, QUIET, by_group, estimate_s, make_case, not_injectable, plan_cases
from latfix.runners.selftest.recipes import NOT_INJECTABLE, RECIPES
from latfix.runners.selftest.run_case import draft_case

TYPICAL_MS = 5.0
ON_PATH = [name for name, recipe in RECIPES.items() if name.partition("_")[2] in ("prepare", "model", "finish")]


def test_every_cause_of_the_catalogue_is_injected_or_listed_as_not_injectable() -> None:
    injected = {recipe.cause for recipe in RECIPES.values()}
    known = {cause.id for cause in CAUSES}
    assert known <= injected | set(NOT_INJECTABLE)
    assert not injected & set(NOT_INJECTABLE)


def test_the_full_matrix_has_every_recipe_at_every_intensity(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {name: replace(recipe, obstacle=lambda: "") for name, recipe in RECIPES.items()}
    monkeypatch.setattr(matrix, "RECIPES", free)
    cases = plan_cases(quick=False)
    alone = {(case.recipes[0], case.intensity) for case in cases if len(case.recipes) == 1}
    assert alone == {(name, intensity) for name in RECIPES for intensity in INTENSITIES}
    groups = Counter(case.group for case in cases)
    assert set(groups) == {"single", "mixed", "unlisted", "quiet"}
    assert {len(case.recipes) for case in cases if case.group == "mixed"} == {2, 3}
    assert len({case.id for case in cases}) == len(cases)
    assert {case.seed for case in cases} == {HELD_OUT}


def test_quick_fits_into_three_minutes_and_has_every_group() -> None:
    cases = plan_cases(quick=True)
    assert estimate_s(cases) < 170
    assert {case.group for case in cases} == {"single", "mixed", "unlisted", "quiet"}


def test_repeats_have_different_seeds() -> None:
    once, thrice = plan_cases(quick=True, seed=2000), plan_cases(quick=True, seed=2000, repeat=3)
    assert len(thrice) == 3 * len(once)
    assert {case.seed for case in thrice} == {2000, 2001, 2002}


@pytest.mark.parametrize("quick", [True, False])
def test_only_cases_of_the_requested_causes(quick: bool) -> None:
    cases = plan_cases(quick=quick, causes=("python.gc", "batching.window"))
    assert cases
    for case in cases:
        assert {RECIPES[name].cause for name in case.recipes} & {"python.gc", "batching.window"}
    assert {"gc_background", "window"} <= {name for case in cases for name in case.recipes}
    with pytest.raises(InputError, match=r"--cause: found 'python\.gx'; expected one of"):
        plan_cases(quick=quick, causes=("python.gx",))


@pytest.mark.parametrize("quick", [True, False])
def test_only_one_intensity(quick: bool) -> None:
    cases = plan_cases(quick=quick, causes=("python.gc",), intensities=("weak",))
    assert {case.intensity for case in cases} == {"weak"}
    assert {"gc_model", "gc_prepare"} <= {name for case in cases for name in case.recipes}
    assert len(plan_cases(quick=quick, causes=("quiet",), intensities=("small",), repeat=8)) == 8 * len(QUIET)
    with pytest.raises(InputError, match="--intensity: found 'tiny'; expected one of weak, small"):
        plan_cases(quick=quick, intensities=("tiny",))
    with pytest.raises(InputError, match="--intensity weak: found no case"):
        plan_cases(quick=True, intensities=("weak",))


@pytest.mark.parametrize("quick", [True, False])
def test_only_quiet_cases(quick: bool) -> None:
    cases = plan_cases(quick=quick, causes=("quiet",))
    assert {case.recipes[0] for case in cases} == set(QUIET) and by_group(cases) == {"quiet": len(cases)}


def test_a_cause_that_cannot_be_injected_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = replace(RECIPES["quota"], obstacle=lambda: "no control group can be made (denied)")
    monkeypatch.setattr(matrix, "RECIPES", {**RECIPES, "quota": quota})
    assert not_injectable()["host.throttle"] == "no control group can be made (denied)"
    assert not any("quota" in case.recipes for case in plan_cases(quick=False))
    with pytest.raises(InputError, match="no control group can be made"):
        plan_cases(quick=False, causes=("host.throttle",))
    with pytest.raises(InputError, match="hypervisor"):
        plan_cases(quick=True, causes=("host.steal",))


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("intensity", INTENSITIES)
def test_a_case_is_decided_by_its_seed(name: str, intensity: Intensity) -> None:
    case = make_case((name,), intensity, 7, 6.0)
    first, again = (draft_case(case, TYPICAL_MS) for _ in range(2))
    other = draft_case(replace(case, seed=8), TYPICAL_MS)
    traffic = first.traffic()
    assert traffic.payloads == again.traffic().payloads and first.env == again.env
    assert (traffic.arrival_ns == again.traffic().arrival_ns).all()
    assert traffic.arrival_ns.tolist() != other.traffic().arrival_ns.tolist()
    assert (np.diff(traffic.arrival_ns) >= 0).all()
    assert min(first.items) > 0
    # Traffic of about the planned length; overload is shorter, and growth longer, by design.
    assert 1.5 < traffic.duration_s < 9.0


@pytest.mark.parametrize("name", ON_PATH)
def test_pauses_are_rare_apart_and_as_long_as_planned(name: str) -> None:
    levels: tuple[Intensity, ...] = ("small", "large")
    for level in levels:
        draft = draft_case(make_case((name,), level, 3, 20.0), TYPICAL_MS)
        struck = sorted(draft.faults)
        assert struck[0] >= CLEAN_START
        assert 0.009 <= len(struck) / len(draft) <= 0.04
        assert min(np.diff(struck)) > 1
        lengths = [ms for faults in draft.faults.values() for _, _, ms in faults]
        assert np.median(lengths) == pytest.approx(FACTORS[level] * TYPICAL_MS, rel=0.3)
        assert max(lengths) <= max(draft.kinds.values()) + 1e-9
        where, kind = next(iter(draft.faults.values()))[0][:2]
        assert where == name.rpartition("_")[2] and list(draft.kinds) == [kind]


def test_giant_pauses_are_rarer_than_the_percentile_and_block_no_other_request() -> None:
    draft = draft_case(make_case(("giant",), "weak", 3, 20.0), TYPICAL_MS)
    assert 0 < len(draft.faults) < 0.005 * len(draft) and draft.overrides["prepare_threads"] > 1
    assert min(ms for faults in draft.faults.values() for _, _, ms in faults) > 10 * TYPICAL_MS


def test_more_lengths_than_torch_compiles() -> None:
    draft = draft_case(make_case(("uncompiled",), "weak", 3, 20.0), TYPICAL_MS)
    assert len(np.unique(draft.items)) > 2 * 8 and float(draft.env["UNCOMPILED_MS"]) > 0


def test_quiet_cases_carry_nothing() -> None:
    for name in matrix.QUIET:
        draft = draft_case(make_case((name,), "large", 1, 6.0), TYPICAL_MS)
        assert not (draft.faults or draft.hogs or draft.quota)
        assert not (draft.env or draft.overrides) or name == "quiet_threads"  # which has Python work in prepare


def test_mixed_causes_differ_in_intensity_and_strike_different_requests() -> None:
    draft = draft_case(make_case(("sleep_prepare", "gc_model", "faults_prepare"), "small", 4, 20.0), TYPICAL_MS)
    assert all(len(faults) == 1 for faults in draft.faults.values())
    lengths: dict[str, list[float]] = {}
    for faults in draft.faults.values():
        lengths.setdefault(faults[0][1], []).append(faults[0][2])
    medians = {kind: float(np.median(values)) for kind, values in lengths.items()}
    assert medians["sleep"] < medians["gc"] < medians["faults"]


def test_bursts_come_together_and_overload_outruns_the_worker() -> None:
    burst = draft_case(make_case(("burst",), "large", 5, 20.0), TYPICAL_MS).traffic()
    together = np.diff(burst.arrival_ns) < 1_000_000
    assert 0.05 < together.mean() < 0.5
    over = draft_case(make_case(("overload",), "small", 5, 20.0), TYPICAL_MS)
    late = over.gaps[len(over) // 3 :]
    assert late.mean() * 1e3 < TYPICAL_MS < over.gaps[: len(over) // 3].mean() * 1e3


@pytest.mark.parametrize("intensity", INTENSITIES)
def test_padding_adds_more_to_a_batch_than_sharing_it(intensity: Intensity) -> None:
    draft = draft_case(make_case(("padding",), intensity, 5, 20.0), TYPICAL_MS)
    longest = np.flatnonzero(draft.items > 2 * np.median(draft.items))
    assert len(longest) >= 3
    for first in longest.tolist():
        group = draft.items[first : first + 6]
        padding, sharing = len(group) * group.max() - group.sum(), group.sum() - group.min()
        assert padding > 1.1 * sharing


def test_groups_and_padding_batch_unlike_inputs() -> None:
    groups = draft_case(make_case(("groups",), "medium", 5, 20.0), TYPICAL_MS)
    padding = draft_case(make_case(("padding",), "medium", 5, 20.0), TYPICAL_MS)
    assert groups.overrides["max_batch_size"] > 1 and padding.overrides["max_batch_size"] > 1
    assert padding.items.max() >= 3 * np.median(padding.items)
    assert groups.items.max() < 2 * np.median(groups.items)


def test_priorities_and_sessions_are_in_the_traffic() -> None:
    urgent = draft_case(make_case(("priority",), "large", 5, 6.0), TYPICAL_MS).traffic()
    assert set(urgent.priority.tolist()) == {0, 1} and (urgent.priority == 0).mean() > 0.8
    talk = draft_case(make_case(("growth_sessions",), "large", 5, 20.0), TYPICAL_MS).traffic()
    assert None not in talk.sessions and 10 < len(set(talk.sessions)) < len(talk)


def test_the_page_gives_the_number_of_runs_of_each_part_and_their_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {name: replace(recipe, obstacle=lambda: "") for name, recipe in RECIPES.items()}
    monkeypatch.setattr(matrix, "RECIPES", free)
    page = (Path(__file__).parents[3] / "docs" / "selftest.md").read_text()
    for command, cases in (
        ("latfix selftest", plan_cases(quick=False)),
        ("latfix selftest --intensity weak", plan_cases(quick=False, intensities=("weak",))),
        ("latfix selftest --cause python.gc", plan_cases(quick=False, causes=("python.gc",))),
        ("latfix selftest --cause quiet --repeat 2", plan_cases(quick=False, causes=("quiet",), repeat=2)),
    ):
        assert f"| `{command}` | {len(cases)} | {estimate_s(cases) / 60:.0f} min |" in page
