"""Requests that join and leave between steps."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.queueing.stepping_queue import serve_in_steps

SAME = [1.0, 1.0, 1.0]
SHARED = [1.0, 1.0, 2.0]


def _served(
    when: list[float], work: list[float], stretch: list[float], workers: int = 1, classes: object = None
) -> tuple[list[float], list[float]]:
    kinds = np.zeros(len(when)) if classes is None else np.array(classes, np.float64)
    return serve_in_steps(np.array(when), kinds, np.array(work), stretch, workers)


def test_a_short_request_leaves_before_a_long_one() -> None:
    assert _served([0, 0], [10, 100], SAME) == ([0, 0], [10, 100])
    # While both are served, each step takes twice as long.
    assert _served([0, 0], [10, 100], SHARED)[1] == [20, 110]
    assert _served([0, 50], [100, 10], SHARED)[1] == [110, 70]


def test_a_request_waits_for_room_or_takes_the_emptier_worker() -> None:
    assert _served([0, 1, 2], [10, 20, 5], SAME) == ([0, 1, 10], [10, 21, 15])
    assert _served([0, 1, 2], [10, 20, 5], SHARED, workers=2)[0] == [0, 1, 2]
    assert _served([0, 1, 2, 3], [10, 20, 5, 5], SAME, classes=[0, 0, 1, 0])[0] == [0, 1, 15, 10]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_mean_is_that_of_processor_sharing(load: float) -> None:
    """M/M/1-PS: the mean latency is the mean work over the idle share (Kleinrock, 1967)."""
    rng, n = np.random.default_rng(1), 40_000
    when = rng.exponential(1 / load, n).cumsum()
    _, ended = serve_in_steps(when, np.zeros(n), rng.exponential(1.0, n), np.arange(201.0).clip(1).tolist(), 1)
    assert (ended - when).mean() == pytest.approx(1 / (1 - load), rel=0.1)
