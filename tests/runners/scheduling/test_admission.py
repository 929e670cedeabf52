"""Admission on simulated time: a limit that follows latency, deadlines that cannot be met, and correct counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedBatch, SimulatedQueue
from latfix.queueing.serving_order import FixedLimits
from latfix.runners.scheduling.admission import ConcurrencyLimit, DeadlineCheck
from latfix.runners.scheduling.control import Steering
from latfix.runners.scheduling.work_estimates import Batch, WorkEstimate
from latfix.settings import RunnerSettings
from tests.runners.scheduling.simulated_runs import offer

MS = 1_000_000
SIZE = 4


def service(members: Sequence[Offered]) -> int:
    """Four at once take twice as long as one: at most 200 per second."""
    return int((6.67 + 3.33 * len(members)) * MS)


def _limited(traffic: list[Offered], limit: ConcurrencyLimit) -> Simulated:
    def observe(batch: SimulatedBatch, inside: int) -> None:
        for slot in batch.members:
            limit.observe(batch.end_ns - traffic[slot].arrival_ns, inside)

    def admit(_now: int, _one: Offered, inside: int) -> bool:
        return not limit.refuses(inside)

    return SimulatedQueue(service=service, limits=FixedLimits(SIZE, 0), admission=admit, observe=observe).run(traffic)


def _p99_ms(run: Simulated) -> float:
    return float(np.percentile(run.latency_ns(), 99)) / MS


def test_under_overload_those_let_in_are_served_quickly_and_no_capacity_is_lost() -> None:
    traffic = offer((40.0, 360.0), seed=1)
    limit = ConcurrencyLimit(least=2 * SIZE)
    run = _limited(traffic, limit)
    answered = len(run.latency_ns())
    assert answered + len(run.refused) == len(traffic), "every request is served or counted"
    assert limit.shed == len(run.refused) > 0.3 * len(traffic)
    assert answered / 40.0 > 0.95 * 200.0
    assert _p99_ms(run) < 250.0
    assert _p99_ms(SimulatedQueue(service=service, limits=FixedLimits(SIZE, 0)).run(traffic)) > 10_000.0


def test_a_load_that_fits_is_let_in() -> None:
    for rate, seed in ((20.0, 2), (80.0, 3), (120.0, 4)):
        traffic = offer((60.0, rate), seed=seed)
        run = _limited(traffic, ConcurrencyLimit(least=2 * SIZE))
        assert len(run.refused) <= 0.005 * len(traffic)


def test_the_limit_recovers_after_a_burst_and_does_not_swing() -> None:
    traffic = offer((20.0, 80.0), (10.0, 600.0), (40.0, 80.0), seed=5)
    limit = ConcurrencyLimit(least=2 * SIZE)
    run = _limited(traffic, limit)
    refused = np.array([traffic[slot].arrival_ns / 1e9 for slot in run.refused])
    assert np.count_nonzero((refused > 20) & (refused < 30.5)) > 0.9 * len(refused) > 1000
    assert limit.lowest >= 2 * SIZE


def test_a_ceiling_holds_and_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = ConcurrencyLimit(least=2 * SIZE, most=5)
    _limited(offer((10.0, 300.0), seed=6), limit)
    assert limit.highest <= 5
    unused = ConcurrencyLimit(least=8)
    for _ in range(5000):
        unused.observe(10 * MS, 2)
    assert unused.limit == 16


def _by_deadline(traffic: list[Offered], estimate: WorkEstimate | None = None) -> tuple[Simulated, DeadlineCheck]:
    estimate = estimate or WorkEstimate()
    check = DeadlineCheck(estimate, workers=1)

    def observe(batch: SimulatedBatch, _inside: int) -> None:
        size, busy = len(batch.members), batch.end_ns - batch.close_ns
        estimate.learn(Batch(size, 1, size, size, busy, busy, batch.left > 0))

    def admit(now: int, one: Offered, inside: int) -> bool:
        return not check.refuses(now, one.expires_ns, inside)

    queue = SimulatedQueue(
        service=service,
        limits=FixedLimits(SIZE, 0),
        admission=admit,
        observe=observe,
        doomed=lambda item, now: check.hopeless(now, item.expires_ns),
    )
    return queue.run(traffic), check


def _in_time(run: Simulated, traffic: list[Offered]) -> int:
    expires = np.array([one.expires_ns or 1 << 62 for one in traffic])
    return int(np.count_nonzero((run.end_ns >= 0) & (run.end_ns <= expires)))


def test_shedding_by_deadline_answers_more_in_time_than_serving_everybody() -> None:
    traffic = offer((30.0, 320.0), seed=7, deadline_ms=150.0)
    run, check = _by_deadline(traffic)
    unlimited = SimulatedQueue(service=service, limits=FixedLimits(SIZE, 0)).run(traffic)
    assert _in_time(run, traffic) > 0.9 * 200 * 30
    assert _in_time(unlimited, traffic) < 0.1 * _in_time(run, traffic)
    # Nearly all admitted requests are in time, and the others are counted.
    served = int(np.count_nonzero(run.end_ns >= 0))
    assert _in_time(run, traffic) > 0.9 * served
    assert check.refused == len(run.refused) and check.dropped == len(run.dropped)
    assert served + check.refused + check.dropped == len(traffic)


def test_a_request_without_a_deadline_is_never_shed() -> None:
    traffic = offer((10.0, 400.0), seed=8, deadline_ms=100.0)
    traffic = [replace(one, expires_ns=0) if k % 3 == 0 else one for k, one in enumerate(traffic)]
    run, _ = _by_deadline(traffic)
    assert run.refused and not [slot for slot in (*run.refused, *run.dropped) if not traffic[slot].expires_ns]


def test_a_load_that_fits_is_not_shed_by_deadline() -> None:
    traffic = offer((60.0, 90.0), seed=9, deadline_ms=200.0)
    run, _ = _by_deadline(traffic)
    unlimited = SimulatedQueue(service=service, limits=FixedLimits(SIZE, 0)).run(traffic)
    assert len(run.refused) + len(run.dropped) <= 0.01 * len(traffic)
    assert _in_time(run, traffic) >= _in_time(unlimited, traffic) - 0.01 * len(traffic)


def test_an_estimate_that_is_far_too_high_is_put_right() -> None:
    estimate = WorkEstimate()
    for _ in range(50):
        estimate.learn(Batch(1, 1, 1, 1, 5000 * MS, 5000 * MS))
    traffic = offer((60.0, 60.0), seed=10, deadline_ms=200.0)
    run, _ = _by_deadline(traffic, estimate)
    late = np.array([traffic[slot].arrival_ns > 50e9 for slot in (*run.refused, *run.dropped)])
    assert np.count_nonzero(late) < 0.05 * 10 * 60


def test_an_empty_service_always_tries() -> None:
    estimate = WorkEstimate()
    for _ in range(12):
        estimate.learn(Batch(1, 1, 1, 1, 50 * MS, 50 * MS))
    check = DeadlineCheck(estimate, workers=1)
    assert check.refuses(0, 10 * MS, 3) and not check.refuses(0, 10 * MS, 0)
    assert not check.hopeless(20 * MS, 10 * MS), "already late, which is a timeout"


def test_requests_that_share_the_steps_of_a_worker_do_not_wait_for_each_other() -> None:
    """Each of eight takes a second next to the others, not after them."""
    steering = Steering.of(RunnerSettings(batching="continuous", max_batch_size=8, admission="deadline"), "cpu")
    assert steering is not None
    for _ in range(12):
        steering.estimate.learn(Batch(1, 1, 1, 1, 1000 * MS, 1000 * MS))
    assert not steering.refusal(0, 3000 * MS, 7)
    assert steering.refusal(0, 3000 * MS, 40)
