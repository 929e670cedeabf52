"""Routing by weight on simulated time: which worker takes what, is left out, or recovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling.simulated_routing import Routed, SimulatedRouting
from latfix.queueing.queue_simulator import Offered
from latfix.queueing.serving_order import Backlog, Waiting
from latfix.runners.scheduling.replica_router import PROBE_EVERY, Router, Shift, left_to_faster
from latfix.runners.scheduling.replica_speed import ALIKE, Pace, ReplicaSpeed, weights_of

MS = 1_000_000
BASE = 10 * MS
Factor = Callable[[int], float]


def _traffic(load: float, n: int, seed: int, capacity: float) -> list[Offered]:
    """Poisson arrivals at ``load`` times the capacity of ``capacity`` fast workers, of varying size."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(BASE / (load * capacity), n)).astype(np.int64)
    size = np.maximum(100 * rng.lognormal(-0.02, 0.2, n), 1).astype(np.int64)
    return [Offered(arrival_ns=int(when), length=int(one)) for when, one in zip(at, size, strict=True)]


def _serve(traffic: Sequence[Offered], factors: Sequence[Factor], *, weighted: bool, **more: Any) -> Routed:
    """Workers that take ``factor(now)`` times as long as the first would."""
    noise = np.random.default_rng(1)

    def service(worker: int, members: Sequence[Offered], now: int) -> int:
        longest = max(member.length for member in members)
        batch = 0.4 + 0.6 * len(members)
        return max(int(BASE * factors[worker](now) * batch * longest / 100 * noise.lognormal(0, 0.1)), 1)

    return SimulatedRouting(workers=len(factors), service=service, weighted=weighted, **more).run(traffic)


def _always(factor: float) -> Factor:
    return lambda _now: factor


def _p99(run: Routed) -> float:
    return float(np.percentile(run.latency_ns(), 99)) / MS


FAST, SLOW = _always(1.0), _always(3.0)


@pytest.mark.parametrize(
    ("factors", "gain"), [((FAST, FAST, FAST, SLOW), 0.85), ((FAST, _always(8.0)), 0.85), ((FAST, SLOW), 1.0)]
)
def test_a_slow_replica_is_routed_around_and_p99_falls(factors: tuple[Factor, ...], gain: float) -> None:
    """Geometric mean over three seeds of the weighted p99 divided by pull's, at 0.6 of the workers' capacity."""
    capacity = sum(1.0 / factor(0) for factor in factors)
    ratios = []
    for seed in range(3):
        traffic = _traffic(0.6, 3000, seed, capacity)
        pull, weighted = (_serve(traffic, factors, weighted=which) for which in (False, True))
        assert len(pull.latency_ns()) == len(weighted.latency_ns()) == len(traffic)
        assert weighted.shares(len(factors))[-1] < pull.shares(len(factors))[-1]
        ratios.append(_p99(weighted) / _p99(pull))
    assert np.exp(np.mean(np.log(ratios))) < gain, ratios


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("workers", [2, 4])
def test_equal_replicas_are_served_as_by_pulling(load: float, workers: int) -> None:
    traffic = _traffic(load, 3000, 7, workers)
    runs = [_serve(traffic, [FAST] * workers, weighted=which) for which in (False, True)]
    assert _p99(runs[1]) <= 1.02 * _p99(runs[0])
    assert max(runs[1].shares(workers)) < 1.1 / workers


def test_near_capacity_it_does_no_worse() -> None:
    """An idle slow worker is lost capacity: under load it takes nearly as much as with pull."""
    ratios = []
    for seed in range(3):
        traffic = _traffic(0.92, 4000, seed, 4 / 3)
        pull, weighted = (_serve(traffic, (FAST, SLOW), weighted=which) for which in (False, True))
        ratios.append(float(weighted.latency_ns().mean() / pull.latency_ns().mean()))
    assert np.exp(np.mean(np.log(ratios))) < 1.03, ratios


def test_a_replica_that_recovers_is_used_again() -> None:
    # GIVEN a worker that is slow for a part of the run, under a light load, when it is hardly needed
    n = 6000
    traffic = _traffic(0.3, n, 3, 2.0)
    begin, end = traffic[n // 6].arrival_ns, traffic[n // 2].arrival_ns
    run = _serve(traffic, (FAST, lambda now: 5.0 if begin <= now < end else 1.0), weighted=True)
    at = np.array([one.arrival_ns for one in traffic])
    own = run.worker == 1
    # THEN it is recognized as slow after a few batches, and regains its share some hundred batches after recovery
    slow_for = at[(at >= begin) & own]
    assert len(slow_for)
    middle = (at > (begin + end) / 2) & (at < end)
    assert own[middle].mean() < 0.06
    assert own[: n // 6].mean() > 0.4
    again = at[-1] - (at[-1] - end) // 3
    assert own[at > again].mean() > 0.4, "recovered"
    weights = np.array([weight[1] for weight in run.weights])
    assert weights.max() == pytest.approx(5.0, rel=0.3) and weights[-1] == 1.0


def test_trials_of_a_slow_replica_are_few() -> None:
    """One request in two hundred if it gets no others: too few to affect p99."""
    traffic = _traffic(0.2, 8000, 5, 1.0)
    run = _serve(traffic, (FAST, _always(10.0)), weighted=True)
    assert 0 < run.shares(2)[1] < 0.0085
    own = [batch for batch in run.batches if batch.worker == 1]
    assert max(len(batch.members) for batch in own) == 1


def test_the_death_of_the_only_fast_worker_leaves_no_request_waiting() -> None:
    traffic = _traffic(0.5, 2000, 2, 1.0)
    dead = traffic[1000].arrival_ns
    run = _serve(traffic, (FAST, _always(1.5)), weighted=True, dead={0: dead})
    lost = np.flatnonzero(run.end_ns < 0)
    assert len(lost) <= 1, "its own batch only"
    after = run.latency_ns()[-500:]
    alone = _serve(traffic, (_always(1.5),), weighted=False).latency_ns()[-500:]
    assert np.median(after) < 1.2 * np.median(alone)


@settings(max_examples=60)
@given(
    gaps=st.lists(st.integers(0, 60), min_size=1, max_size=120),
    factors=st.lists(st.sampled_from([1.0, 1.1, 2.0, 4.0, 20.0]), min_size=1, max_size=5),
    most=st.integers(1, 4),
    window=st.sampled_from([0, 3, 30]),
    ranks=st.lists(st.integers(0, 2), min_size=1, max_size=5),
)
def test_every_request_is_served_once_and_none_waits_long_while_a_worker_is_idle(
    gaps: list[int], factors: list[float], most: int, window: int, ranks: list[int]
) -> None:
    at = np.cumsum(np.array(gaps, dtype=np.int64) * MS // 2)
    traffic = [
        Offered(arrival_ns=int(when), length=100, rank=ranks[k % len(ranks)]) for k, when in enumerate(at.tolist())
    ]
    routed = SimulatedRouting(
        workers=len(factors),
        service=lambda worker, members, _now: int(BASE * factors[worker] * (0.5 + 0.5 * len(members))),
        weighted=True,
        max_batch_size=most,
        window_ns=window * MS,
    )
    run = routed.run(traffic)
    members = [slot for batch in run.batches for slot in batch.members]
    assert sorted(members) == list(range(len(traffic))), "each once"
    # A worker has one batch at a time.
    for worker in range(len(factors)):
        own = [batch for batch in run.batches if batch.worker == worker]
        assert all(a.end_ns <= b.formed.close_ns for a, b in pairwise(own))
    # In every case, no request waited for other workers longer than all of their work.
    slowest = BASE * max(factors) * (0.5 + 0.5 * most)
    backlog = slowest * (len(traffic) / most + 2) + window * MS
    assert run.latency_ns().max(initial=0) <= 2 * backlog


def test_classes_keep_their_order_on_every_worker() -> None:
    """A slow worker takes from the end of the queue, so the fast one serves the highest class."""
    rng = np.random.default_rng(0)
    rank = rng.integers(0, 3, 3000)
    traffic = [replace(one, rank=int(r)) for one, r in zip(_traffic(0.8, 3000, 4, 4 / 3), rank, strict=True)]
    run = _serve(traffic, (FAST, SLOW), weighted=True)
    slow = [float((run.worker[rank == one] == 1).mean()) for one in range(3)]
    wait = [float((run.end_ns - run.arrival_ns)[rank == one].mean()) for one in range(3)]
    assert slow[0] < slow[2] and wait[0] < wait[1] < wait[2]


def test_a_trial_is_not_made_with_a_request_that_could_not_stand_it() -> None:
    traffic = _traffic(0.2, 4000, 5, 1.0)
    tight = [replace(one, expires_ns=one.arrival_ns + 150 * MS) for one in traffic]
    factors = (FAST, _always(20.0))  # 200 ms
    loose_run, tight_run = (_serve(some, factors, weighted=True) for some in (traffic, tight))
    seen = [int((run.worker[200:] == 1).sum()) for run in (loose_run, tight_run)]
    assert seen[0] > 0 and seen[1] == 0


def test_doomed_requests_are_dropped_on_a_slow_worker_too() -> None:
    traffic = _traffic(0.9, 500, 5, 4 / 3)
    dropped: list[int] = []

    def doomed(item: Waiting, _now: int) -> bool:
        if item.slot % 7 == 0:
            dropped.append(item.slot)
        return item.slot % 7 == 0

    run = _serve(traffic, (FAST, SLOW), weighted=True, doomed=doomed)
    assert sorted(dropped) == list(range(0, 500, 7))
    assert (run.end_ns[[slot for slot in range(500) if slot % 7]] > 0).all()


@given(
    mine=st.integers(1, 100),
    faster=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=4),
    batches=st.integers(1, 12),
)
def test_faster_workers_get_what_they_finish_sooner(mine: int, faster: list[tuple[int, int]], batches: int) -> None:
    """Compared with scheduling the batches one by one."""
    free = [list(one) for one in faster]
    ends = []
    for _ in range(batches):
        if not free:
            break
        best = min(free, key=lambda one: one[0] + one[1])
        best[0] += best[1]
        ends.append(best[0])
    ahead = next((k for k, end in enumerate(ends) if end >= mine), None if len(ends) == batches else len(ends))
    assert left_to_faster(mine, faster, batches) == ahead


def _batch(router: Router, worker: int, ms: int, now: int = 0) -> int:
    """One batch of ten elements that takes ``ms``; returns when it ends."""
    ticket = router.took(worker, now, size=1, longest=10)
    router.ended(worker, ticket, now + ms * MS, size=1, longest=10, total=10)
    return now + ms * MS


def test_shifts_are_reported_at_their_begin_and_end() -> None:
    found: list[Shift] = []
    router = Router(2, on_shift=found.append)
    now = 0
    for rounds, second_ms, shifts in ((20, 10, 0), (12, 40, 1), (12, 10, 2), (12, 40, 3)):
        for _ in range(rounds):
            for worker, ms in ((0, 10), (1, second_ms)):
                now = _batch(router, worker, ms, now)
        assert len(found) == shifts
        assert (router.series()["runner.worker_1.weight"] == 1.0) == (second_ms == 10)
    assert {shift.worker for shift in found} == {1} and found[0].until_ns == 0
    assert found[1].since_ns == found[0].since_ns < found[1].until_ns and 3.0 < found[1].weight < 5.0
    router.close(now)
    assert len(found) == 4 and found[3].until_ns == now, "slow to the end"


def test_the_share_of_other_processes_counts_until_the_next_batch() -> None:
    router = Router(2)
    router.note_others(1, 0.5, 10)
    assert (router.weight(0), router.weight(1)) == (1.0, 2.0)
    ticket = router.took(1, 20, size=1, longest=1)
    router.ended(1, ticket, 30, size=1, longest=1, total=1)
    assert router.weight(1) == 1.0, "its own batch is newer"
    router.note_others(1, 7.0, 40)
    assert router.weight(1) == pytest.approx(10.0), "never the whole device"


def test_of_equals_the_one_that_stood_longest_is_woken() -> None:
    router = Router(3)
    for worker in (2, 0, 1):
        router.stands(worker, 0)
    assert router.best_standing() == 2
    router.leaves(2, 1)
    assert router.best_standing() == 0
    router.note_others(0, 0.3, 5)
    assert router.best_standing() == 1
    for worker in (0, 1):
        router.leaves(worker, 6)
    assert router.best_standing() is None


def test_lengths_do_not_make_a_replica_look_slow() -> None:
    """One worker gets the long requests, the other the short ones; both are as fast."""
    pace, rng = Pace(2), np.random.default_rng(0)
    for _ in range(300):
        for worker, mean in ((0, 50), (1, 200)):
            length = int(rng.integers(mean // 2, 2 * mean))
            pace.learn(worker, size=1, longest=length, total=length, took_ns=int(MS * (1 + length / 10)))
    assert pace.weights == [1.0, 1.0]


@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_noise_seldom_makes_a_replica_slow(spread: float) -> None:
    rng, slow, seen = np.random.default_rng(0), 0, 0
    speeds = [ReplicaSpeed() for _ in range(4)]
    for _ in range(3000):
        for speed in speeds:
            speed.add(float(rng.lognormal(0, spread)))
        weights = weights_of(speeds)
        slow += sum(weight > 1.0 for weight in weights)
        seen += len(weights)
    assert slow / seen < (0.0005 if spread < 0.2 else 0.12)


def test_weights_are_of_known_replicas_and_beyond_chance() -> None:
    quick, slow, new = ReplicaSpeed(), ReplicaSpeed(), ReplicaSpeed()
    assert weights_of([quick, slow]) == [1.0, 1.0]
    for k in range(9):
        quick.add(0.5)
        slow.add(1.5 + 0.01 * k)
    new.add(50.0)
    assert weights_of([quick, slow, new]) == [1.0, pytest.approx(3.0, rel=0.05), 1.0]
    slow.add(0.5 * ALIKE * 0.9)
    assert weights_of([quick, slow])[1] > 1.0, "one quick batch changes nothing"


def test_waiting_ones_that_are_left_keep_their_places() -> None:
    backlog = Backlog()
    for slot in range(6):
        backlog.push(rank=1, slot=slot, enqueued_ns=slot)
    members, _ = backlog.pop_behind(2, 2)
    assert [one.slot for one in members] == [2, 3] and backlog.last().slot == 5
    assert [one.slot for one in backlog.pop(9)[0]] == [0, 1, 4, 5]
    assert backlog.pop_behind(3, 2) == ([], [])


def test_probing_waits_for_its_turn() -> None:
    router = Router(2)
    for _ in range(20):
        for worker, ms in ((0, 10), (1, 40)):
            _batch(router, worker, ms)
    router.stands(0, 0)
    router.stands(1, 0)
    assert router.best_standing() == 0
    for _ in range(PROBE_EVERY):
        _batch(router, 0, 10)
    assert router.best_standing() == 1
    choice = router.decide(1, waiting=3, most=8, due_ns=0, now_ns=0)
    assert choice.probe and (choice.take, choice.skip) == (1, 2)
    router.not_now(1)
    assert router.best_standing() == 0 and not router.decide(1, waiting=1, most=8, due_ns=0, now_ns=0).take
