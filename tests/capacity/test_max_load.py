"""The largest load, the knee and the front, from cells whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from latfix.capacity.max_load import LargestLoad, at_least, knee, largest_load, pareto
from latfix.capacity.measured_load import Cell, Spread, run_spread, with_spread
from latfix.capacity.objective import Decision, Percentile, Target

LIMIT = Target(percentile=99.0, limit=0.1)
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def cell(
    load: float,
    value: float,
    meets: bool | None = None,
    *,
    rate: float = 100.0,
    width: float = 1.1,
    runs: tuple[float, ...] | None = None,
    saturated: bool = False,
    achieved: float | None = None,
) -> Cell:
    return Cell(
        load=load,
        offered=load * rate,
        achieved=load * rate if achieved is None else achieved,
        percentile=Percentile(value=value, lo=value / width, hi=value * width),
        runs=runs or (value,),
        decision=Decision(meets=meets, share=0.01, lo=0.0, hi=0.02),
        saturated=saturated,
        enough=True,
    )


def found(cells: list[Cell]) -> LargestLoad:
    answer = largest_load(cells, LIMIT)
    assert answer is not None
    return answer


def test_found_between_what_meets_and_what_misses() -> None:
    answer = found([cell(0.5, 0.05, True), cell(1.0, 0.08, True), cell(1.2, 0.125, False), cell(2.0, 1.0, False)])
    assert (answer.status, answer.lo, answer.hi) == ("found", 100.0, 120.0)
    # log-log: from 0.08 to 0.125 the limit lies halfway
    assert answer.rps == pytest.approx(math.sqrt(100 * 120), rel=1e-3)


def test_undecided_where_noise_decides_or_nothing_was_replayed_between() -> None:
    answer = found([cell(0.5, 0.05, True), cell(1.0, 0.1, None), cell(1.5, 0.2, False)])
    assert (answer.status, answer.lo, answer.hi) == ("undecided", 50.0, 150.0)
    assert "at 100/s the data cannot tell" in answer.reason
    answer = found([cell(0.5, 0.05, True), cell(1.5, 0.2, False)])
    assert answer.status == "undecided" and "nothing was replayed between" in answer.reason
    answer = found([cell(0.5, 0.09, None), cell(1.0, 0.11, None)])
    assert (answer.status, answer.lo, answer.hi) == ("undecided", None, None)


def test_above_and_below_what_was_replayed() -> None:
    above = found([cell(0.5, 0.01, True), cell(1.0, 0.02, True)])
    assert (above.status, above.lo, above.hi) == ("above", 100.0, None)
    below = found([cell(0.5, 0.2, False), cell(1.0, 0.5, False)])
    assert (below.status, below.lo, below.hi, below.rps) == ("below", None, 50.0, None)
    assert largest_load([cell(1.0, 0.1)], Target(percentile=99.0)) is None, "no objective, no answer"


def test_replays_that_contradict_each_other_are_undecided() -> None:
    answer = found([cell(0.5, 0.2, False), cell(1.0, 0.05, True)])
    assert answer.status == "undecided" and "contradict" in answer.reason
    assert answer.lo is None, "a load above one that surely misses is not borne"


def test_the_gate() -> None:
    borne = found([cell(0.5, 0.05, True), cell(1.0, 0.2, False)])
    assert at_least([borne], 50.0) is True
    assert at_least([borne], 75.0) is None
    assert at_least([borne], 100.0) is False
    unsure = found([cell(0.5, 0.05, True), cell(1.0, 0.1, None)])
    assert at_least([borne, unsure], 100.0) is None, "the other setting may bear it"
    assert at_least([borne, found([cell(1.1, 0.01, True)])], 110.0) is True
    assert at_least([], 1.0) is None


def mm1(load: float, width: float = 1.05) -> Cell:
    """p99 of M/M/1 with a service rate of 100."""
    return cell(load, math.log(100) / (100 - 100 * load), width=width)


def test_the_knee_of_mm1_is_at_half_load_and_its_interval_grows_with_the_noise() -> None:
    # Throughput over p99 is x (1 - x): largest at one half.
    at, sharp, blunt = (knee([mm1(load, width) for load in LOADS], seed=0) for width in (1.05, 1.005, 1.5))
    assert at is not None and sharp is not None and blunt is not None
    assert at.rps == 50.0 and at.bracketed
    assert 30.0 <= at.ci95_rps[0] < 50.0 < at.ci95_rps[1] <= 75.0
    widths = [found.ci95_rps[1] / found.ci95_rps[0] for found in (sharp, blunt)]
    assert widths[1] > 1.3 * widths[0]


def test_a_knee_beyond_the_loads_is_not_bracketed() -> None:
    at = knee([mm1(load) for load in (0.1, 0.2, 0.3)], seed=0)
    assert at is not None and at.rps == 30.0 and not at.bracketed
    assert knee([mm1(0.1), mm1(0.2)], seed=0) is None


def test_the_front() -> None:
    slow, fast, between, beaten, gone = (
        cell(1.0, 0.05, achieved=50.0),
        cell(2.0, 0.5, achieved=120.0),
        cell(1.5, 0.1, achieved=90.0),
        cell(1.4, 0.2, achieved=80.0),
        cell(9.0, 0.01, achieved=500.0, saturated=True),
    )
    front = pareto([(0, slow), (1, fast), (0, between), (1, beaten), (1, gone)])
    assert [(point.setting, point.achieved_rps) for point in front] == [(0, 50.0), (0, 90.0), (1, 120.0)]
    assert all(point.certain for point in front)


def test_a_place_on_the_front_that_noise_decides_is_not_certain() -> None:
    front = pareto([(0, cell(1.0, 0.1, achieved=50.0)), (1, cell(1.0, 0.105, achieved=49.9))])
    assert [(point.setting, point.certain) for point in front] == [(0, False)]


def test_the_spread_between_replays_is_what_requests_do_not_explain() -> None:
    rng = np.random.default_rng(2)
    cells = []
    for load in np.linspace(0.1, 1.0, 30):
        runs = tuple(0.05 * math.exp(0.2 * z) for z in rng.standard_normal(4))
        cells.append(cell(float(load), float(np.mean(runs)), True, width=1.02, runs=runs))
    spread = run_spread(cells)
    assert spread.ratio == pytest.approx(math.exp(0.2), rel=0.05)
    assert spread.largest is not None and spread.largest > 1.5
    assert spread.freedom == 90
    explained = [cell(one.load, one.percentile.value, True, width=1.6, runs=one.runs) for one in cells]
    assert run_spread(explained).ratio < 1.05
    never = run_spread([cell(1.0, 0.1)])
    assert never.ratio == pytest.approx(1.1), "assumed, not measured"
    assert never.freedom == 0 and never.largest is None
    wild = run_spread([cell(1.0, 0.1, width=1.01, runs=(0.05, 0.2))])
    assert never.factor(1) < wild.factor(1) < 4, "one wild pair does not undo everything"


def test_what_the_spread_could_turn_around_is_not_decided() -> None:
    spread = Spread(ratio=1.3, freedom=5, largest=1.5)
    near, far = cell(1.0, 0.08, True), cell(0.5, 0.02, True)
    missed = cell(1.5, 0.12, False)
    wider = with_spread([near, far, missed], spread, LIMIT)
    assert [one.decision.meets for one in wider if one.decision is not None] == [None, True, None]
    assert wider[0].percentile.hi > 0.1 > near.percentile.hi
    assert with_spread([near], Spread(ratio=1.0, freedom=9, largest=None), LIMIT) == [near]
