"""Calls that block the event loop of a service with few requests at once, on simulated time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.event_loop import loop_blocks
from latfix.profilers.evidence.outside.service_process import Counter
from latfix.profilers.evidence.outside.standstills import streamed_parts
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import (
    MS,
    arrivals,
    largest,
    present,
    recorded,
    samples,
    spent,
)
from tests.profilers.evidence.outside.test_standstills import streamed, streams

N, WAITS, BLOCK = 1_000, 30 * MS, 200 * MS


def blocked_by(at: np.ndarray, calls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of requests that wait 30 ms for something, of which some then block the loop; when those calls begin."""
    begin, free = [], 0
    end = at + WAITS
    for k in np.argsort(end, kind="stable").tolist():
        ready = max(int(end[k]), free)
        if calls[k]:
            begin.append(ready)
            free = ready + BLOCK
        end[k] = ready + BLOCK * calls[k]
    return end, np.array(begin)


def polled(end: np.ndarray, begin: np.ndarray, *, computes: bool, loops: int = 1, serving: int = 0) -> Columns:
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    away = present(times, begin, begin + BLOCK)
    cpu = np.cumsum(away * computes) * 5 * MS
    calls = {} if computes else {"loop_in.fsync": away * (np.arange(len(times)) % 4 > 0), "loop_in.read": away // 2}
    if serving:
        calls["loops"] = np.full(len(times), serving)
    return samples(times, cpu_ns=cpu, runq_ns=np.zeros(len(times)), epoll=loops - away, **calls)


def service(calls_for: np.ndarray, *, computes: bool, loops: int = 1, serving: int = 0) -> Diagnosis:
    at = arrivals(20.0, n=N)
    end, begin = blocked_by(at, calls_for)
    seen = polled(end, begin, computes=computes, loops=loops, serving=serving)
    return diagnose(recorded(at, end, samples=seen))


SOME = np.random.default_rng(4).random(N) < 0.02


def test_a_call_that_waits_in_the_loop_is_no_dependency_of_the_requests_behind_it() -> None:
    found = service(SOME, computes=False)
    assert found.verdict == "service.loop"
    loop = next(cause for cause in found.causes if cause.cause == "service.loop")
    assert loop.tail_share > 0.8 and "waited itself" in loop.evidence
    assert "mostly in the system call fsync" in loop.evidence


def test_a_call_that_computes_in_the_loop_delays_the_requests_that_come_meanwhile() -> None:
    """The one that was there may be the one that computes."""
    at = arrivals(20.0, n=N)
    end, begin = blocked_by(at, SOME)
    record = recorded(at, end, samples=polled(end, begin, computes=True))
    found = diagnose(record)
    loop = next(cause for cause in found.causes if cause.cause == "service.loop")
    came = (present(at, begin, begin + BLOCK) > 0) & (end - at > WAITS + 5 * MS)
    assert loop.requests == pytest.approx(np.count_nonzero(came), rel=0.1)
    assert "computed (1.0 cores)" in loop.evidence and "system call" not in loop.evidence


def test_one_of_two_loops_does_not_hold_up_what_the_other_serves() -> None:
    assert largest(service(SOME, computes=False, loops=2)) == "external.dependency"
    assert largest(service(SOME, computes=False, loops=2, serving=2)) == "external.dependency"


def test_a_thread_that_always_waits_for_events_hides_no_blocked_loop() -> None:
    """As one of Node's does."""
    assert largest(service(SOME, computes=False, loops=2, serving=1)) == "service.loop"


def test_requests_that_are_answered_one_after_the_other_do_not_block_the_loop() -> None:
    """A burst keeps the loop away for long, but each request is answered when its work is done."""
    at = np.concatenate([np.arange(60) * 100 * MS, 7_000 * MS + np.arange(20) * MS // 10])
    end = at + 10 * MS
    end[60:] = at[60] + 10 * MS * np.arange(1, 21)
    times = np.arange(-300 * MS, int(end.max()) + 300 * MS, 5 * MS)
    there = present(times, at, end)
    loop = Counter(at_ns=times.astype(float), value=np.where(there > 0, 0.0, 1.0))
    assert not len(loop_blocks(loop, there.astype(np.int64), at, end, end))
    late = end.copy()
    late[60:] = end[-1]
    assert len(loop_blocks(loop, there.astype(np.int64), at, late, late)) == 1
    late[60:70] = end[69]  # two calls that follow each other
    assert len(loop_blocks(loop, there.astype(np.int64), at, late, late)) == 2
    beside = replace(loop, value=loop.value + 1.0)  # another thread only waits for events
    assert len(loop_blocks(beside, there.astype(np.int64), at, late, late)) == 2


def test_the_usual_work_of_a_burst_is_no_call_that_blocks_the_loop() -> None:
    """Each request computes and then waits: the loop reads the whole burst before it answers any."""
    work, many = 7 * MS, 8
    alone, bursts = np.arange(300) * 200 * MS, np.repeat(np.arange(30) * 2_000 * MS + 100 * MS, many)
    # The requests of a burst come during its work.
    at = np.concatenate([alone, bursts + np.tile(np.arange(many) * MS, 30)])
    begin = np.concatenate([alone, bursts[::many]])
    stop = begin + np.where(np.arange(len(begin)) < len(alone), work, many * work)
    end = np.concatenate([stop[: len(alone)], np.repeat(stop[len(alone) :], many)]) + 2 * MS
    times = np.arange(-300 * MS, int(end.max()) + 300 * MS, 5 * MS)
    cpu, away = spent(times, begin, stop), present(times, begin, stop)
    found = diagnose(recorded(at, end, samples=samples(times, cpu_ns=cpu, runq_ns=0 * times, epoll=1 - away)))
    assert largest(found) == "traffic.burst"
    assert not any(cause.tail_ms for cause in found.causes if cause.cause == "service.loop")


def test_a_stream_s_whole_work_is_no_usual_work_for_its_next_part() -> None:
    """Streams need 1.5 ms of work for each of 40 parts; a call that computes for 200 ms holds all of them up."""
    at, calls = arrivals(7.0, n=600), np.arange(2_003, 80_000, 3_700) * MS
    first, end, events = streams(np.zeros(600, dtype=bool), calls, at)
    parts = np.sort(np.concatenate(list(streamed_parts(events).values())))
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    cpu = spent(times, calls, calls + BLOCK) + spent(times, parts - 3 * MS // 2, parts)
    seen = samples(times, cpu_ns=cpu, runq_ns=0 * times, epoll=1 - present(times, calls, calls + BLOCK))
    found = diagnose(streamed(at, first, end, events=events, samples=seen), bootstrap=50)
    assert found.verdict == "service.loop" == largest(found)
