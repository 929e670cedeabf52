"""The shortcut for requests in order gives the same result as the event loop."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pytest

from latfix.queueing.queue_simulator import Policy, Replayed, discipline_of, form_batches, replay


def _by_the_loop(policy: Policy, arrival: npt.NDArray[np.float64], load: npt.NDArray[np.float64]) -> Replayed:
    reference, classes = policy.reference, np.zeros(len(arrival), np.int64)

    def finish(members: object, closed: float) -> float:
        own = np.array(members, np.int64)
        return float(closed + reference[len(own)] + load[own].sum())

    queue = discipline_of(policy, arrival, classes, None, finish)
    return Replayed.of(form_batches(arrival.tolist(), queue, policy.workers), np.arange(len(arrival)))


@pytest.mark.parametrize("seed", range(20))
def test_requests_in_order_need_no_event_loop(seed: int) -> None:
    """Arrivals that coincide with each other, with ends and with the ends of windows included."""
    rng = np.random.default_rng(seed)
    n, most = int(rng.integers(1, 120)), int(rng.integers(1, 6))
    policy = Policy(
        workers=int(rng.integers(1, 4)),
        max_batch=most,
        window=float(rng.choice([0, 5, 50, 500])),
        reference=3.0 * np.arange(most + 1, dtype=np.float64),
    )
    arrival = np.sort(rng.integers(0, 10 * n, n)).astype(float)
    load = rng.integers(0, 20, n).astype(float)
    quick, looped = replay(policy, arrival, load, np.zeros(n, np.int64)), _by_the_loop(policy, arrival, load)
    for field in fields(Replayed):
        assert np.array_equal(getattr(quick, field.name), getattr(looped, field.name)), field.name
