"""Slow first uses of input sizes in a service behind an address, on simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.first_uses import slow_first_uses
from tests.profilers.evidence.outside.test_outside_view import MS, N, arrivals, largest, present, recorded, samples
from tests.profilers.evidence.outside.test_shared_cores import computed

RATE, SIZES = 40.0, 40
ALL = np.ones(N, dtype=bool)


def sizes(seed: int = 8) -> np.ndarray:
    """Some of them are rare, so that first uses come all the time."""
    weights = 1 / np.arange(1, SIZES + 1) ** 1.5
    return np.random.default_rng(seed).choice(np.arange(100, 100 + SIZES), N, p=weights / weights.sum())


def firsts(size: np.ndarray) -> np.ndarray:
    first = np.zeros(len(size), dtype=bool)
    first[np.unique(size, return_index=True)[1]] = True
    return first


@pytest.mark.parametrize("cold", [True, False])
def test_a_first_use_that_holds_the_interpreter_s_lock_is_no_fault_of_the_lock(cold: bool) -> None:
    """As many other requests that compute as long are."""
    at, size = arrivals(RATE), sizes()
    slow = firsts(size) if cold else np.random.default_rng(9).permutation(firsts(size))
    end, _ = computed(at, np.where(slow, 150 * MS, 6 * MS), 1.0)
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    there = present(times, at, end)
    watched = samples(
        times,
        cpu_ns=np.cumsum(np.minimum(there, 1)) * 5 * MS,
        runq_ns=np.zeros(len(times)),
        futex_python=np.maximum(there - 1, 0),
    )
    found = diagnose(recorded(at, end, features={"size": size, "id": np.arange(N)}, samples=watched), percentile=95)
    named = {cause.cause: cause.tail_ms for cause in found.causes}
    assert (largest(found) == "cold.start") is cold
    assert (named.get("cold.start", 0.0) > 0) is cold


def test_slow_first_uses_are_those_of_the_feature_whose_first_uses_cost_most() -> None:
    rng, size = np.random.default_rng(5), sizes()
    took = (rng.normal(10, 0.5, N) * MS).astype(np.int64) + np.where(firsts(size), 60 * MS, 0)
    columns = [rng.integers(0, 9, N), size, np.arange(N)]
    found = slow_first_uses(columns, np.arange(N), took, ALL)
    assert found.tolist() == firsts(size).tolist()
    warm = np.arange(N) >= 50
    assert not slow_first_uses(columns, np.arange(N), took, warm)[:50].any()


@pytest.mark.parametrize("why", ["none", "sizes", "outage", "seldom"])
def test_other_slow_requests_are_no_first_uses(why: str) -> None:
    """Rare sizes that always take long, and a slow stretch in which most sizes come for the first time."""
    size, slow = sizes(), np.zeros(N, dtype=bool)
    if why == "sizes":
        slow = size > 105
    elif why == "outage":
        slow[:60] = True
    elif why == "seldom":
        slow = np.random.default_rng(3).random(N) < 0.2
    for seed in range(20):
        took = (np.random.default_rng(seed).normal(10, 0.5, N) * MS).astype(np.int64) + np.where(slow, 60 * MS, 0)
        assert not slow_first_uses([size], np.arange(N), took, ALL).any()
