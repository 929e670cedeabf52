"""Many replays at once equal single replays."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.arrays import Floats, Ints
from latfix.queueing.queue_simulator import Policy, replay
from latfix.queueing.replay_lanes import Lanes, service_starts


def _alone(lanes: Lanes, ready: Floats, load: Floats, row: int) -> tuple[Floats, Floats]:
    n = ready.shape[1]
    policy = Policy(
        workers=lanes.workers, max_batch=lanes.max_batch, window=float(lanes.window[row]), reference=lanes.reference
    )
    served = replay(policy, ready[row], load[row], np.zeros(n, np.int64))
    return served.by_request(served.opened), served.by_request(served.end)


@pytest.mark.parametrize("seed", range(40))
def test_lanes_agree_with_single_replays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, n, most = int(rng.integers(1, 6)), int(rng.integers(1, 250)), int(rng.integers(1, 9))
    lanes = Lanes(
        workers=int(rng.integers(1, 4)),
        max_batch=most,
        window=rng.choice([0.0, 0.4, 2.0], p),
        reference=np.concatenate([[0.0], 0.4 + 0.3 * np.arange(1, most + 1)]),
    )
    ready = np.cumsum(rng.exponential(1.0, (p, n)), axis=1) * float(rng.uniform(0.2, 3.0))
    load = rng.exponential(0.5, (p, n)) * (rng.random((p, n)) < 0.4)
    # Guesses of where the queue ran empty, most of them wrong: they may cost time, never change an answer.
    guessed = np.flatnonzero(rng.random(n) < 0.4)
    opened, ended = service_starts(lanes, ready, load, guessed)
    for row in range(p):
        expected = _alone(lanes, ready, load, row)
        np.testing.assert_allclose(opened[row], expected[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ended[row], expected[1], rtol=1e-9, atol=1e-9)


def test_a_queue_that_is_never_empty() -> None:
    n = 4_000
    lanes = Lanes(workers=1, max_batch=3, window=np.zeros(2), reference=np.array([0.0, 2.0, 2.5, 3.0]))
    ready = np.repeat(np.arange(n, dtype=np.float64)[None] * 0.5, 2, axis=0)
    load = np.zeros((2, n))
    every: Ints = np.arange(n)
    opened, _ = service_starts(lanes, ready, load, every)
    np.testing.assert_allclose(opened[0], _alone(lanes, ready, load, 0)[0])


def test_no_requests() -> None:
    lanes = Lanes(workers=2, max_batch=2, window=np.zeros(3), reference=np.ones(3))
    opened, ended = service_starts(lanes, np.zeros((3, 0)), np.zeros((3, 0)), np.zeros(0, np.int64))
    assert opened.shape == ended.shape == (3, 0)
