"""Whole configurations on a simulated service: which choices are compatible, and which are predicted to be best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.settings_forecast import Forecast, Pace
from latfix.runners.fixes import Fix, Verified
from latfix.runners.optimize.configuration import Choice, Configuration, compose
from latfix.runners.optimize.predicted_configurations import Planner, goal_score, trusted
from latfix.settings import RunnerSettings

#: Inputs of very different length, so that requests in a batch with a long one take longer.
LENGTHS = (40 * np.random.default_rng(3).lognormal(0, 1.0, 1000)).astype(np.int64) + 1
PLAN: dict[str, Any] = {"n": 1000, "seed": 5, "lengths": LENGTHS, "base": 2.0, "per_item": 0.05}


def fix(
    name: str, *, compute: float = 1.0, needs: Callable[[RunnerSettings], str] = lambda _: "", **sets: Any
) -> Fix:
    return Fix(
        id=name,
        title=name,
        risk="none",
        treats=("x",),
        relief=0.5,
        compute=compute,
        needs=(lambda context: needs(context.settings),),
        sets=sets,
        verify=lambda _: Verified(True, ""),
    )


def choose(name: str, *, compute: float = 1.0, **sets: Any) -> Choice:
    return Choice(fix(name, compute=compute, **sets), sets)


def obstacle(of: Fix, settings: RunnerSettings) -> str:
    return of.obstacle(type("Context", (), {"settings": settings})())


def limits(*sizes: int) -> list[Choice]:
    return [Choice(replace(fix("size"), options=lambda _: []), {"max_batch_size": size}) for size in sizes]


def windows(*ms: float) -> list[Choice]:
    return [Choice(replace(fix("window"), options=lambda _: []), {"batch_window_ms": value}) for value in ms]


FAST = choose("fast", compute=0.5, env={"FAST": "1"})


@pytest.fixture(scope="module")
def plan(simulate: Callable[..., Any]) -> Callable[..., Planner]:
    """A planner for a simulated run; FAST halves its compute."""

    def make(**more: Any) -> Planner:
        with_ = {**PLAN, "rate": 40.0, **more}
        first = RunnerSettings(max_batch_size=with_["max_batch"], batch_window_ms=with_.get("window", 0.0))
        planner = Planner(Forecast(simulate(**with_)), "p99", first, obstacle)
        planner.costs["fast",] = BatchCost(least=0.5, most=0.5, typical=0.5)
        return planner

    return make


def test_batches_of_one_and_no_window_if_padding_costs(plan: Callable[..., Planner]) -> None:
    planner = plan(max_batch=8, window=20.0)
    best = planner.best((), [limits(1, 2, 4, 16), windows(0.0, 5.0)])
    assert best.settings.max_batch_size == 1 and planner.score(best) < -0.2
    assert best.fixes == ("size",), "batches of one have no window"


def test_a_needless_window_is_removed(plan: Callable[..., Planner]) -> None:
    planner = plan(max_batch=4, window=20.0)
    best = planner.best((), [windows(0.0, 1.0, 10.0)])
    assert best.settings.batch_window_ms == 0.0 and planner.predict(best).ratio["mean"] < 0.8


def test_a_moment_in_which_others_took_the_cores_does_not_decide(plan: Callable[..., Planner]) -> None:
    """It makes all slow requests, so that no window changes p99 much; the next replay has it elsewhere."""
    moment = dict.fromkeys(range(500, 550), ("runq", 60.0))
    planner = plan(max_batch=8, window=20.0, rate=90.0, base=6.0, per_item=0.0005, compute_faults=moment)
    best = planner.best((), [windows(0.0, 5.0)])
    assert planner.predict(best).ratio["p99"] == pytest.approx(1.0, abs=0.02)
    assert best.settings.batch_window_ms == 0.0 and planner.score(best) < -0.2
    assert planner.expected(best)["p99"] < 0.9, "enough to be tested by the final replay alone"
    assert planner.simulations == 3, "first settings, and two windows"


def test_larger_batches_if_they_pay(plan: Callable[..., Planner]) -> None:
    alike = np.full(1000, 50)
    planner = plan(max_batch=2, rate=150.0, base=10.0, per_item=0.005, lengths=alike)
    assert planner.best((), [limits(1, 4, 8)]).settings.max_batch_size > 2


def test_a_choice_that_gains_nothing_is_left_out(plan: Callable[..., Planner]) -> None:
    planner = plan(max_batch=1, rate=5.0)
    assert planner.best((), [limits(2, 4)]).choices == ()
    assert planner.best([FAST], [limits(2, 4)]).fixes == ("fast",)


def test_shares_add_up_to_the_whole(plan: Callable[..., Planner]) -> None:
    planner = plan(max_batch=8, window=20.0)
    unknown = choose("heap", gc="freeze")
    both = Configuration(planner.first, (FAST, *limits(1), unknown))
    shares, whole = planner.shares(both), planner.predict(both).ratio
    assert set(shares) == {"fast", "size"}, "of the heap the forecast knows nothing"
    for key in ("mean", "p99"):
        assert sum(share[key][0] for share in shares.values()) == pytest.approx(np.log(whole[key]))
        assert all(least <= mean <= most for mean, least, most in (share[key] for share in shares.values()))


def test_shares_are_over_all_orders_of_ways_that_were_measured(plan: Callable[..., Planner]) -> None:
    planner = plan(max_batch=1)
    cores = choose("cores", workers=2, intra_op_threads=1)
    planner.costs |= {("cores",): BatchCost(typical=1.1), ("fast", "cores"): BatchCost(typical=0.6)}
    shares = planner.shares(Configuration(planner.first, (FAST, cores)))
    assert all(share["mean"][1] < share["mean"][2] for share in shares.values()), "each is added first, and last"


def test_a_replay_corrects_all_configurations_with_the_same_way(plan: Callable[..., Planner]) -> None:
    """Batches took a fifth longer than predicted; a way that was not replayed takes the first settings' pace."""
    planner = plan(max_batch=1)
    first, fast = Configuration(planner.first), Configuration(planner.first, (FAST,))
    other = Configuration(planner.first, (FAST, *limits(2)))
    predicted = [planner.score(each) for each in (fast, other)]
    planner.paces[()] = [Pace(0.9)]
    assert planner.serving(fast).pace == Pace(0.9)
    planner.paces["fast",] = [Pace(1.2)]
    assert planner.serving(first).pace == Pace(0.9) and planner.serving(other).pace == Pace(1.2)
    assert planner.score(first) == 0.0
    assert all(planner.score(each) > was for each, was in zip((fast, other), predicted, strict=True))
    more = Configuration(planner.first, (FAST, choose("more", compute=0.9, env={"MORE": "1"})))
    planner.costs["fast", "more"] = planner.costs["more",] = None
    assert planner.serving(more).pace == Pace(1.2), "that of the way it contains, not of the first settings"
    assert planner.serving(Configuration(planner.first, more.choices[1:])).pace == Pace(0.9)
    planner.paces["fast",] += [Pace(0.6), Pace(float("nan"), float("nan"))]
    assert planner.serving(fast).pace.batches == pytest.approx((1.2 * 0.6) ** 0.5)


def test_a_refused_way_is_never_the_best(plan: Callable[..., Planner]) -> None:
    planner = plan(max_batch=1)
    planner.refused.add(frozenset({"fast"}))
    assert planner.score(Configuration(planner.first, (FAST, *limits(2)))) == math.inf


@pytest.mark.parametrize(("key", "weight"), [("mean", 1.0), ("p99", 2 / 3)])
def test_a_percentile_counts_twice_as_much_as_the_mean(key: str, weight: float) -> None:
    ratio = {"mean": 1.0, "p99": 1.0, key: 0.5}
    assert goal_score(key, ratio) == pytest.approx(weight * np.log(0.5))


def test_incompatible_choices_are_left_out() -> None:
    first = RunnerSettings(max_batch_size=4, batch_window_ms=10.0)
    one, two = limits(1, 2)
    shared = Choice(
        fix("window", needs=lambda settings: "alone" if settings.max_batch_size == 1 else ""),
        {"batch_window_ms": 0.0},
    )
    heap, pool = choose("heap", env={"A": "1"}), choose("pool", env={"B": "2"})
    assert compose(first, [one, two], obstacle).choices == (one,), "two of one setting"
    assert compose(first, [two, shared], obstacle).fixes == ("size", "window")
    assert compose(first, [one, shared], obstacle).fixes == ("size",), "preconditions see the earlier choices"
    made = compose(first, [heap, pool], obstacle)
    assert dict(made.settings.env) == {"A": "1", "B": "2"}
    assert made.without("heap").fixes == ("pool",) and made.words == "heap, pool"
    assert Configuration(first).words == "unmodified" and one.words == "size (max_batch_size = 1)"


@pytest.mark.parametrize(
    ("mean", "p99", "believed"), [(0.1, 0.1, True), (0.14, 0.52, True), (0.6, 0.1, False), (0.1, 1.1, False)]
)
def test_a_p99_of_few_requests_may_be_off_by_more_than_the_mean(mean: float, p99: float, believed: bool) -> None:
    forecast: Any = SimpleNamespace(error_of={"mean": mean, "p99": p99}.__getitem__)
    assert trusted(forecast) == believed
