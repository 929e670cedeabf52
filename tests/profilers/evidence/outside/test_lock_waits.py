"""Locks in a service behind an address, on simulated time: waits of its threads, and which requests waited."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.intervals import NO_INTERVALS
from latfix.profilers.evidence.outside.lock_waits import find_lock_waits
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import (
    MS,
    N,
    arrivals,
    held_up,
    present,
    recorded,
    samples,
    served,
    services,
    spent,
)
from tests.profilers.evidence.outside.test_shared_cores import computed

BEFORE, AFTER = 4 * MS, 3 * MS


def locked(rate: float, hold: np.ndarray, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Threads of requests, half of which need a lock in the middle of their work: arrivals, waits, ends."""
    at = arrivals(rate, seed)
    needs = np.random.default_rng(seed + 1).random(N) < 0.5
    wanted, free, waited = at + BEFORE, 0, np.zeros(N, np.int64)
    for k in np.flatnonzero(needs).tolist():
        waited[k] = max(free - int(wanted[k]), 0)
        free = int(wanted[k]) + int(waited[k]) + int(hold[k])
    return at, waited, wanted + waited + np.where(needs, hold, 0) + AFTER


def polled(at: np.ndarray, waited: np.ndarray, end: np.ndarray, idle: int = 0, **more: np.ndarray) -> Columns:
    """Readings every 5 ms: threads that wait for the lock, pool threads without work, and a busy process."""
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    wanted = at + BEFORE
    waiting, there = present(times, wanted, wanted + waited), present(times, at, end)
    series = {"cpu_ns": np.cumsum(np.minimum(there, 1)) * 5 * MS, "runq_ns": np.zeros(len(times))}
    series |= {"futex.1a0": waiting, "futex_one": waiting}
    if idle:
        series["futex.2b0"] = np.maximum(idle - there, 0)
    return samples(times, **series, **more)


@pytest.mark.parametrize(("pool", "streamed"), [(0, False), (40, False), (0, True)])
def test_a_lock_among_threads_is_named_with_its_milliseconds(pool: int, streamed: bool) -> None:
    """Answers that are streamed begin before their requests need the lock."""
    at, waited, end = locked(90.0, np.full(N, 15 * MS))
    record = recorded(at, end, samples=polled(at, waited, end, pool))
    if streamed:
        record.requests["chunks"] += 5
        record.requests["finish_ns"] += end - at - MS
        record.requests["compute_ns"] -= end - at - MS
    found = diagnose(record)
    assert found.ledger.conservation_error_ns() == 0
    assert found.verdict == "service.lock"
    slow = np.argsort(end - at)[-N // 100 :]
    lock = next(cause for cause in found.causes if cause.cause == "service.lock")
    assert lock.tail_ms == pytest.approx(waited[slow].mean() / MS, rel=0.25)
    assert "at one address" in lock.evidence and "computed" in lock.evidence


def test_requests_that_end_last_waited() -> None:
    at, waited, end = locked(50.0, np.full(N, 12 * MS))
    inferred = find_lock_waits(polled(at, waited, end), at, end, NO_INTERVALS).lock
    assert inferred.sum() == pytest.approx(waited.sum(), rel=0.1)
    assert np.corrcoef(inferred, waited)[0, 1] > 0.85


@pytest.mark.parametrize(("threads", "rate"), [(4, 170.0), (N, 60.0)])
def test_a_lock_whose_holder_sleeps_is_told_from_its_sleep(threads: int, rate: float) -> None:
    """One request in 40 keeps the lock that all need for 80 ms, asleep. Of four threads, none may be left."""
    at = arrivals(rate)
    holds = np.where(np.random.default_rng(4).random(N) < 0.025, 80 * MS, MS // 5)
    free, ready, begun, ends = 0, [0] * threads, [], []
    for k in range(N):
        begun.append(max(int(at[k]), heappop(ready)))
        free = max(free, begun[-1] + 2 * MS) + int(holds[k])
        ends.append(free)
        heappush(ready, free)
    taken, end = np.array(begun), np.array(ends)
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    waiting = present(times, taken + 2 * MS, end - holds)
    series = {"futex.1a0": waiting, "futex_one": waiting}
    if threads < N:
        series["futex.2b0"] = threads - present(times, taken, end)
    series["cpu_ns"] = np.cumsum(present(times, taken, taken + 2 * MS)) * 5 * MS
    found = diagnose(recorded(at, end, samples=samples(times, runq_ns=np.zeros(len(times)), **series)))
    slow, ledger = end - at > 40 * MS, found.ledger
    for cause, waits in (("service.lock", end - at - holds - 2 * MS), ("external.dependency", holds)):
        claimed = ledger.own_ns[ledger.causes.index(cause)][slow].sum()
        assert claimed == pytest.approx(waits[slow].sum(), abs=0.1 * (end - at)[slow].sum()), cause


def test_waits_for_work_and_for_helpers_are_no_locks() -> None:
    """A pool whose threads wait for work, and requests each of which waits for a helper's answer."""
    at, _, end = locked(60.0, np.full(N, 6 * MS))
    times = polled(at, np.zeros(N, np.int64), end)["t_ns"]
    times = np.unique(times)
    there = present(times, at, end)
    series = {"cpu_ns": np.zeros(len(times)), "futex.10": np.maximum(20 - there, 0), "futex.20": there}
    assert not find_lock_waits(samples(times, **series), at, end, NO_INTERVALS).lock.any()


def test_the_interpreter_s_lock_is_shared_by_all_that_are_there() -> None:
    at = arrivals(25.0)
    work = np.where(np.random.default_rng(2).random(N) < 0.05, 80 * MS, 8 * MS)
    end, _ = computed(at, work, 1.0)
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    there = present(times, at, end)
    busy = {"cpu_ns": np.cumsum(np.minimum(there, 1)) * 5 * MS, "runq_ns": np.zeros(len(times))}
    watched = samples(times, futex_python=np.maximum(there - 1, 0), **busy)
    inferred = find_lock_waits(watched, at, end, NO_INTERVALS).python
    assert inferred.sum() == pytest.approx((end - at - work).sum(), rel=0.1)
    found = diagnose(recorded(at, end, samples=watched))
    assert next(cause for cause in found.causes if cause.cause == "python.gil").tail_ms > 0
    assert found.ledger.conservation_error_ns() == 0


@pytest.mark.parametrize(
    ("away", "at_python", "cause"),
    [(True, False, "service.loop"), (True, True, "python.gil"), (False, False, "unexplained")],
)
def test_a_call_in_the_event_loop_is_named_where_the_loop_is_seen_to_be_away(
    away: bool, at_python: bool, cause: str
) -> None:
    """A loop that waits for the interpreter's lock itself is not the one that holds it."""
    at = arrivals(200.0)
    end, stops = held_up(at, np.full(N, 10 * MS))
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    held = present(times, stops, stops + 150 * MS) > 0
    none = np.zeros(len(times))
    loop = np.where(held, 0.0, 1.0) if away else none + 1
    waiting = np.where(held & (np.arange(len(times)) % 3 > 0), 1.0, 0.0) if at_python else none
    series = samples(times, cpu_ns=none, runq_ns=none, epoll=loop, futex_python=waiting)
    found = diagnose(recorded(at, end, samples=series))
    assert max(found.causes, key=lambda one: one.tail_ms).cause == cause
    assert cause == "service.loop" or all(one.tail_ms == 0 for one in found.causes if one.cause == "service.loop")


@pytest.mark.parametrize("shown", [True, False])
def test_a_lock_around_a_whole_service_is_no_queue_where_its_threads_are_seen_to_wait(shown: bool) -> None:
    """One request at a time is served, because of a lock or a single worker: waits of threads show which."""
    at = arrivals(60.0)
    end = served(at, services(), 1)
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    there = present(times, at, end)
    series = {"cpu_ns": np.cumsum(np.minimum(there, 1)) * 5 * MS, "runq_ns": np.zeros(len(times))}
    if shown:
        series |= {"futex.1a0": np.maximum(there - 1, 0), "futex_one": np.maximum(there - 1, 0)}
    found = diagnose(recorded(at, end, samples=samples(times, **series)))
    largest = max(found.causes, key=lambda cause: cause.tail_ms)
    assert largest.cause == ("service.lock" if shown else "traffic.burst")
    assert found.service is not None and found.service.servers == (None if shown else 1)
    assert found.ledger.conservation_error_ns() == 0


def test_a_lock_that_no_request_holds_is_waited_for_by_all() -> None:
    """Every ten seconds a background job holds the lock that all requests need for 1.2 s."""
    at = arrivals(20.0)
    free = at + BEFORE
    since = free % (10_000 * MS)
    waited = np.where(since < 1_200 * MS, 1_200 * MS - since, 0)
    end = free + waited + AFTER
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    waiting, there = present(times, free, free + waited), present(times, at, end)
    runs = np.cumsum(np.minimum(there - waiting, 1)) * 5 * MS
    watched = samples(
        times, cpu_ns=runs, runq_ns=np.zeros(len(times)), **{"futex.1a0": waiting, "futex_one": waiting}
    )
    inferred = find_lock_waits(watched, at, end, NO_INTERVALS)
    assert inferred.lock.sum() == pytest.approx(waited.sum(), rel=0.05)
    found = diagnose(recorded(at, end, samples=watched))
    assert found.verdict == "service.lock"
    lock = next(cause for cause in found.causes if cause.cause == "service.lock")
    assert lock.tail_share > 0.9 and "held by a thread that serves none" in lock.evidence
    at, waits, end = locked(50.0, np.full(N, 12 * MS))
    assert "serves none" not in find_lock_waits(polled(at, waits, end), at, end, NO_INTERVALS).holder


def test_threads_that_a_jvm_s_collections_stop_wait_for_no_lock() -> None:
    """Every 0.9 s a collection of 60 ms stops all threads; those that are there wait in a futex."""
    at, took = arrivals(60.0), services()
    begin = np.arange(500 * MS, int(at[-1]), 900 * MS)
    end = at + took
    for start in begin.tolist():
        end += np.where((end > start) & (at < start + 60 * MS), start + 60 * MS - np.maximum(at, start), 0)
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    stopped, there = spent(times, begin, begin + 60 * MS), present(times, at, end)
    still = present(times, begin, begin + 60 * MS)
    waiting = np.maximum(there - 1, 0) * still
    cpu = np.cumsum(np.minimum(there, 1)) * 5 * MS
    series = {"cpu_ns": cpu, "runq_ns": 0 * times, "futex.1a0": waiting, "futex_one": waiting}
    locked_up, known = (
        {cause.cause: cause.tail_ms for cause in found.causes}
        for found in (
            diagnose(recorded(at, end, samples=samples(times, **series))),
            diagnose(recorded(at, end, samples=samples(times, **series, collected_ns=stopped))),
        )
    )
    assert locked_up["service.lock"] > 10  # what it would be taken for
    assert known.get("service.lock", 0.0) < 1 and max(known, key=lambda cause: known[cause]) == "python.gc"
