"""The largest load, the knee and the front, from cells with known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from latfix.capacity.latency_curve import LatencyCurve
from latfix.capacity.load_crossing import Seen, load_errors, pace_noise
from latfix.capacity.max_load import LargestLoad, LoadAnswer, at_least, load_answer, pareto
from latfix.capacity.measured_load import Cell, run_spread
from latfix.capacity.objective import LatencyObjective
from latfix.statistics.decision import Interval

LIMIT = LatencyObjective(percentile=99.0, limit=0.1)


def cell(
    load: float,
    value: float,
    *,
    rate: float = 100.0,
    width: float = 1.1,
    runs: tuple[float, ...] | None = None,
    saturated: bool = False,
    achieved: float | None = None,
) -> Cell:
    return Cell(
        load=load,
        achieved=load * rate if achieved is None else achieved,
        percentile=Interval(value=value, lo=value / width, hi=value * width),
        runs=runs or (value,),
        slow=Interval(value=0.01, lo=0.0, hi=0.02),
        saturated=saturated,
        enough=True,
    )


#: p99 of M/M/1 with a service rate of 100, at a hundredth of the load each.
GRID = np.log(np.linspace(0.02, 0.99, 98))
CURVE = LatencyCurve(
    load=np.append(GRID, 1.0),
    level=np.append(np.log(math.log(100) / (100 - 100 * np.exp(GRID))), 12.0),
    noise=np.full(len(GRID) + 1, 0.05),
)


def answer(paces: dict[float, float], limit: float | None = 0.1, whole: int | None = None) -> LoadAnswer:
    """The answer from replays of M/M/1 that are slower than simulated by ``paces``; ``whole`` were complete."""
    target = LatencyObjective(percentile=99.0, limit=limit)
    seen = [
        Seen(load=math.log(load), pace=pace, noise=pace_noise(CURVE, math.log(load), 0.05))
        for load, pace in paces.items()
    ]
    errors = load_errors(CURVE, math.log(next(iter(paces))), 0.0, seen, seed=0)
    return load_answer(
        errors,
        [cell(load, 0.05) for load in paces],
        target,
        100.0,
        whole=len(paces) if whole is None else whole,
        why_wide="it is so",
        why_none="a request alone takes longer",
    )


def largest(paces: dict[float, float]) -> LargestLoad:
    found = answer(paces).largest
    assert found is not None
    return found


def test_the_crossing_of_a_simulation_that_matches_its_replays() -> None:
    truth = 100 - math.log(100) / 0.1  # 53.9 a second
    found = largest({0.5: 0.0, 0.55: 0.01, 0.6: -0.01})
    assert found.status == "found" and found.rps == pytest.approx(truth, rel=0.03)
    assert truth * 0.85 < (found.lo or 0.0) < truth < (found.hi or 0.0) < truth * 1.15
    assert "replayed at 50.0, 55.0 and 60.0/s" in found.reason and "of the pace" in found.reason


def test_observed_errors_shift_and_widen_the_answer() -> None:
    at, slower = largest({0.5: 0.0, 0.55: 0.0, 0.6: 0.0}), largest({0.5: 0.1, 0.55: 0.1, 0.6: 0.1})
    assert (slower.rps or 0.0) < 0.93 * (at.rps or 0.0)
    apart = largest({0.4: 0.3, 0.55: -0.3, 0.6: 0.3})
    widths = [(one.hi or math.inf) / (one.lo or 1e-9) for one in (at, apart)]
    assert widths[1] > 1.5 * widths[0]
    assert apart.status == "undecided" and "not known to within +-15 % because it is so" in apart.reason


def test_one_replay_far_away_decides_nothing() -> None:
    far, near = largest({0.1: 0.0}), largest({0.5: 0.0, 0.55: 0.0, 0.6: 0.0})
    assert far.status == "undecided"
    assert (far.hi or math.inf) / (far.lo or 1e-9) > 1.5 * (near.hi or math.inf) / (near.lo or 1e-9)


def test_a_limit_that_no_load_meets_and_one_that_all_meet() -> None:
    below = answer({0.5: 0.0, 0.2: 0.0}, limit=0.02).largest
    assert below is not None and (below.status, below.lo, below.rps) == ("below", None, None)
    assert below.hi == pytest.approx(20.0) and below.reason.endswith("; a request alone takes longer")
    once = answer({0.5: 0.0, 0.2: 0.0}, limit=0.02, whole=1)
    assert once.largest is not None and once.largest.status == "undecided", "one replay may have been disturbed"
    assert not once.decided(None)
    above = answer({0.5: 0.0}, limit=1e9).largest
    assert above is not None and (above.status, above.hi) == ("above", None)
    assert answer({0.5: 0.0}, limit=None).largest is None, "no objective, no answer"
    nothing = load_answer(
        None, [cell(0.5, 9.0, saturated=True)], LIMIT, 100.0, whole=0, why_wide="", why_none="x"
    ).largest
    assert nothing is not None and (nothing.status, nothing.ci95_rps) == ("below", (None, 50.0))
    assert nothing.reason == "the lowest load that was replayed, 50.0/s, misses it; x"


def test_predictions_cover_all_loads_and_which_meet_the_limit() -> None:
    found = answer({0.5: 0.0, 0.55: 0.01, 0.6: -0.01})
    low, *_, high = found.predicted
    assert low.meets is True and high.meets is False
    assert [one.load for one in found.predicted] == sorted(one.load for one in found.predicted)
    assert {0.5, 0.55, 0.6} <= {one.load for one in found.predicted}
    (half,) = [one for one in found.predicted if one.load == 0.5]
    assert half.percentile_ms == pytest.approx(1e3 * math.log(100) / 50, rel=0.05)
    assert half.ci95_ms[0] < half.percentile_ms < half.ci95_ms[1]


def test_the_gate() -> None:
    borne = LargestLoad(status="found", rps=60.0, ci95_rps=(50.0, 100.0))
    assert at_least([borne], 50.0) is True
    assert at_least([borne], 75.0) is None
    assert at_least([borne], 100.0) is False
    unsure = LargestLoad(status="undecided", rps=60.0, ci95_rps=(50.0, None))
    assert at_least([borne, unsure], 100.0) is None, "the other setting may bear it"
    assert at_least([borne, LargestLoad(status="above", rps=None, ci95_rps=(110.0, None))], 110.0) is True
    assert at_least([], 1.0) is None


def test_an_answer_is_decided_when_its_gate_is() -> None:
    found = answer({0.5: 0.0, 0.55: 0.01, 0.6: -0.01})
    assert found.decided(None) and found.decided(20.0) and not found.decided(53.9)


def test_the_knee_of_mm1_is_at_half_load() -> None:
    # Throughput over p99 is x (1 - x): largest at one half.
    knee = answer({0.4: 0.0, 0.5: 0.0, 0.6: 0.0}, limit=None).knee
    assert knee is not None and knee.rps == pytest.approx(50.0, rel=0.1) and knee.bracketed
    assert knee.ci95_rps[0] < 50.0 < knee.ci95_rps[1]
    outside = answer({0.1: 0.0, 0.2: 0.0}, limit=None).knee
    assert outside is not None and not outside.bracketed


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


def test_a_point_of_the_front_within_noise_is_not_certain() -> None:
    front = pareto([(0, cell(1.0, 0.1, achieved=50.0)), (1, cell(1.0, 0.105, achieved=49.9))])
    assert [(point.setting, point.certain) for point in front] == [(0, False)]


def test_the_spread_between_replays_exceeds_what_requests_explain() -> None:
    rng = np.random.default_rng(2)
    cells = []
    for load in np.linspace(0.1, 1.0, 30):
        runs = tuple(0.05 * math.exp(0.2 * z) for z in rng.standard_normal(4))
        cells.append(cell(float(load), float(np.mean(runs)), width=1.02, runs=runs))
    spread = run_spread(cells)
    assert spread.ratio == pytest.approx(math.exp(0.2), rel=0.05)
    assert spread.largest is not None and spread.largest > 1.5
    assert spread.freedom == 90
    explained = [cell(one.load, one.percentile.value, width=1.6, runs=one.runs) for one in cells]
    assert run_spread(explained).ratio < 1.05
    never = run_spread([cell(1.0, 0.1)])
    assert never.ratio == pytest.approx(1.1), "assumed, not measured"
    assert never.freedom == 0 and never.largest is None
