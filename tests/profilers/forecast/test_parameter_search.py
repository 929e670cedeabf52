"""Numbers that the forecast likes best, on a forecast whose best numbers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from latfix.profilers.forecast.parameter_search import LIMITS, WINDOWS_MS, Numbers, propose, splits
from latfix.profilers.forecast.settings_forecast import Forecast, Serving
from latfix.settings import RunnerSettings


class Formula(Forecast):
    """Every request takes what a formula says of how it is served."""

    def __init__(self, latency: Callable[[Serving], float]) -> None:
        self._latency = latency

    def latencies(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> Any:
        del within
        return np.full(100, 1e6 * self._latency(serving))


def serving(**more: Any) -> Serving:
    return Serving(**{"max_batch": 8, "window_ns": 5e6, "workers": 1, "prepare_threads": 1, **more})


SETTINGS = RunnerSettings(max_batch_size=8, batch_window_ms=5.0, workers=1, intra_op_threads=1)


def bowl(of: Serving) -> float:
    """Least at a limit of 4 and a window of 2 ms, and the one's best depends on the other."""
    limit, window = np.log2(of.max_batch), of.window_ns / 1e6
    return float(10 + (limit - 2) ** 2 + 0.5 * (window - limit) ** 2)


def test_limit_and_window_are_found_together() -> None:
    found = propose(Formula(bowl), serving(), SETTINGS, paces={})
    assert (found.numbers.limit, found.numbers.window_ms) == (4, 2.0)
    assert found.score == pytest.approx(bowl(serving(max_batch=4, window_ns=2e6)) / bowl(serving()))
    assert found.looked_at < 0.6 * len(LIMITS) * len(WINDOWS_MS)


def test_nothing_better_is_what_there_is() -> None:
    settings = RunnerSettings(max_batch_size=4, batch_window_ms=2.0, workers=1, intra_op_threads=1)
    found = propose(Formula(bowl), serving(max_batch=4, window_ns=2e6), settings, paces={})
    assert found.numbers == Numbers.of(settings) and found.score == 1.0
    assert found.numbers.changes(settings) == {}


def test_gains_below_what_forecasts_tell_are_left() -> None:
    barely = Formula(lambda of: 100.0 if of.max_batch == 8 else 99.5)
    assert propose(barely, serving(), SETTINGS, paces={}).numbers.limit == 8


@pytest.mark.parametrize(("slope", "workers"), [(1.2, 2), (2.5, 1)])
def test_sharing_the_cores_counts_with_the_pace_that_was_measured(slope: float, workers: int) -> None:
    """Two workers halve the latency, but each computes slower beside the other."""
    forecast = Formula(lambda of: of.compute[1] * 10.0 / of.workers)
    found = propose(forecast, serving(), SETTINGS, paces={(2, 1): (0.0, slope)})
    assert found.numbers.split == (workers, 1)


def test_the_pace_builds_on_what_compute_is_already() -> None:
    seen: list[tuple[float, float]] = []

    def look(of: Serving) -> float:
        seen.append(of.compute)
        return 10.0

    propose(Formula(look), serving(compute=(2.0, 0.5)), SETTINGS, paces={(2, 1): (1.0, 3.0)})
    assert set(seen) == {(2.0, 0.5), (1.0 + 3.0 * 2.0, 1.5)}


def test_what_a_replay_refused_is_not_proposed_again() -> None:
    first = propose(Formula(bowl), serving(), SETTINGS, paces={})
    then = propose(Formula(bowl), serving(), SETTINGS, paces={}, refused=[first.numbers])
    assert then.numbers.limit != first.numbers.limit


@pytest.mark.parametrize(
    ("cores", "now", "wanted"),
    [
        (1, (1, 1), set()),
        (2, (1, 1), {(2, 1), (1, 2)}),
        (2, (1, 0), {(2, 1), (1, 1)}),
        (16, (1, 16), {(2, 8), (4, 4), (8, 2)}),
    ],
)
def test_ways_to_share_cores(cores: int, now: tuple[int, int], wanted: set[tuple[int, int]]) -> None:
    assert set(splits(cores, now)) == wanted
