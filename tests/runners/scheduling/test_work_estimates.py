"""Estimates from batches: slopes if there are any, otherwise order of arrival."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.runners.scheduling.work_estimates import Batch, WorkEstimate

MS = 1_000_000


def _learn(
    estimate: WorkEstimate, rng: np.random.Generator, batches: int, cost: str, *, size: int = 1, noise: float = 0.05
) -> None:
    for _ in range(batches):
        count = int(rng.integers(1, size + 1))
        lengths = rng.integers(10, 100, count)
        longest, total = int(lengths.max()), int(lengths.sum())
        ms = {"longest": 2 + 0.3 * longest, "padded": 2 + 0.1 * count * longest, "none": 9.0}[cost]
        compute = int(ms * MS * (1 + noise * rng.standard_normal()))
        estimate.learn(Batch(count, longest, total, total, compute, compute + MS))


@pytest.mark.parametrize(("cost", "size"), [("longest", 1), ("longest", 8), ("padded", 8)])
def test_a_slope_is_found(cost: str, size: int) -> None:
    estimate = WorkEstimate()
    _learn(estimate, np.random.default_rng(0), 100, cost, size=size)
    slope = 0.3 if cost == "longest" else 0.1
    assert estimate.compute_ns(80) == pytest.approx((2 + slope * 80) * MS, rel=0.15)
    assert estimate.share(90) > 1.2 > 0.8 > estimate.share(15)
    assert estimate.batch_compute_ns(size, 60) == pytest.approx(
        (2 + (0.3 * 60 if cost == "longest" else 0.1 * size * 60)) * MS, rel=0.15
    )


def test_where_length_does_not_tell_all_are_alike() -> None:
    for seed in range(10):
        estimate = WorkEstimate()
        _learn(estimate, np.random.default_rng(seed), 200, "none", size=4)
        assert estimate.share(10) == pytest.approx(estimate.share(100), rel=0.25)
    estimate = WorkEstimate()
    _learn(estimate, np.random.default_rng(0), 11, "longest")
    assert estimate.share(10) == estimate.share(100) == 1.0, "eleven batches are not enough"


def test_pauses_and_a_cold_start_do_not_spoil_it() -> None:
    rng = np.random.default_rng(1)
    clean, spoiled = WorkEstimate(), WorkEstimate()
    for k in range(200):
        longest = int(rng.integers(10, 100))
        compute = int((2 + 0.3 * longest) * MS)
        pause = 5000 * MS if k == 0 else 400 * MS if k % 20 == 15 else 0
        clean.learn(Batch(1, longest, longest, longest, compute, compute))
        spoiled.learn(Batch(1, longest, longest, longest, compute + pause, compute + pause))
    for length in (20, 60, 90):
        assert spoiled.compute_ns(length) == pytest.approx(clean.compute_ns(length), rel=0.25)
    assert spoiled.batch_ns < 1.5 * clean.batch_ns


def test_it_follows_a_service_that_became_slower() -> None:
    estimate = WorkEstimate()
    for _ in range(50):
        estimate.learn(Batch(1, 10, 10, 10, 5 * MS, 5 * MS))
    for _ in range(300):
        estimate.learn(Batch(1, 10, 10, 10, 20 * MS, 20 * MS))
    assert estimate.compute_ns(10) == pytest.approx(20 * MS, rel=0.1)
    assert estimate.batch_ns == pytest.approx(20 * MS, rel=0.1)


def test_under_a_backlog_requests_cost_what_they_cost_then() -> None:
    estimate = WorkEstimate()
    for k in range(60):
        full = k % 3 == 0
        size = 8 if full else 1
        estimate.learn(Batch(size, 10, 10 * size, 10 * size, 16 * MS, 16 * MS, backlog=full))
    assert estimate.each_ns == pytest.approx(2 * MS, rel=0.05)
    assert estimate.batch_ns == pytest.approx(16 * MS, rel=0.05)


def test_memory_is_by_element() -> None:
    estimate = WorkEstimate()
    assert estimate.memory_bytes(100) == 0, "no prediction before a measurement"
    for elements in (100, 300, 200) * 30:
        estimate.learn_memory(elements, 40 * elements)
    assert estimate.memory_bytes(50) == pytest.approx(2000, rel=0.01)


def test_sparse_requests_do_little_work_for_their_memory() -> None:
    estimate = WorkEstimate()
    for length in (10, 50, 90) * 40:
        # Twenty elements each, regardless of their compute: the longer one computes more for the same memory.
        compute = length * MS
        estimate.learn(Batch(1, length, length, 20, compute, compute))
    assert estimate.sparseness(90, 20) < estimate.sparseness(50, 20) < estimate.sparseness(10, 20)
    assert estimate.sparseness(50, 40) == pytest.approx(2 * estimate.sparseness(50, 20))
