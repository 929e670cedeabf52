"""Requests to a service behind an address that waited for a lock, inferred from waits of its threads.

Every few milliseconds the watch counts the threads that wait in ``futex(2)``, by code address. At some addresses
threads wait for work, or a request for its helper. A thread waits for a lock that another request holds only while
two or more requests are there, so addresses that are hardly used otherwise are locks. Which requests waited is
inferred: those that ended first were served first, the others waited. The interpreter's lock changes hands every few
milliseconds, so all requests that are there share the wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.evidence.intervals import NO_INTERVALS, Intervals
from latfix.profilers.evidence.outside.outside_view import (
    CPU,
    EPOLL,
    FUTEX,
    INTERPRETER,
    ONE_ADDRESS,
    RUN_QUEUE,
    Counter,
    as_served,
    presence,
)
from latfix.queueing.queue_inference import infer_queue
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import Status

#: A thread is still busy with an answer for this long after its last byte.
_AFTER_NS = 2_000_000
#: Least number of polls with no request, and with one; and the largest share of them with a thread at a lock's
#: address, relative to polls with several requests.
_LEAST, _ALONE = 10, 0.2
#: A late poll counts for at most this many usual intervals.
_LONGEST_STEPS = 4.0
#: Cores used while threads waited: from the first value on the holder computed, up to the second it waited itself.
_COMPUTED, _IDLE = 0.7, 0.3
#: Least share of a standstill with the event loop away; share of queue waits with threads waiting for a lock.
_AWAY, _MOSTLY = 0.8, 0.5
#: The system's own gap between two answers.
_BETWEEN_ANSWERS_NS = 50_000
#: With a thread at the interpreter's lock for this share of it, the loop itself waits for that lock. Each wait times
#: out after 5 ms, and the thread tries again.
_AT_PYTHON = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWaits:
    """Waits of requests for locks.

    :param lock: ``(n,)`` nanoseconds for a lock of the service; ``python`` for the interpreter's.
    :param at_one: largest number of threads at one address, 0 if addresses are unknown.
    :param cores: mean cores that the process used or wanted while threads waited for a lock.
    :param held: standstills in which an event loop did not return to wait for events.
    :param held_cores: mean cores that the process used or wanted then.
    """

    lock: Ints
    python: Ints
    at_one: int = 0
    cores: float = 0.0
    held: Intervals = NO_INTERVALS
    held_cores: float = 0.0

    @property
    def holder(self) -> str:
        """A clause on what the lock's holder did."""
        return f"its holder {_did(self.cores)}"

    @property
    def caller(self) -> str:
        """A clause on what the call that blocked the event loop did."""
        return f"the call that blocked it {_did(self.held_cores)}"


def _did(cores: float) -> str:
    what = "computed" if cores >= _COMPUTED else "waited itself" if cores <= _IDLE else "computed and waited"
    return f"{what} ({cores:.1f} cores)"


def find_lock_waits(samples: Columns, at: Ints, end: Ints, standstills: Intervals) -> LockWaits:
    """Find waits for locks.

    :param at: ``(n,)`` when each request reached the service; ``end`` its last byte.
    :param standstills: when no request was answered.
    """
    none = np.zeros(len(at), np.int64)
    used = Counter.of(samples, CPU)
    if not used.known or not len(at):
        return LockWaits(lock=none, python=none)
    times = used.at_ns
    there, present = _inside(times, at, end + _AFTER_NS), _inside(times, at, end)
    series = {str(name) for name in samples["series"] if str(name).startswith(FUTEX)}
    counts = [_counts(samples, name, times) for name in sorted(series)]
    waiting = sum((count for count in counts if _is_lock(count, there)), start=np.zeros(len(times)))
    waiting = np.clip(waiting, 0, np.maximum(present - 1, 0))
    python = np.minimum(_counts(samples, INTERPRETER, times), present)
    step = np.diff(times, append=times[-1])
    step = np.minimum(step, _LONGEST_STEPS * float(np.median(step)))
    lock, python_lock = _divided(times, step, waiting, python, at, end)
    begin = times[waiting > 0].astype(np.int64)
    away = _loop_away(Counter.of(samples, EPOLL), there, standstills)
    for_python = np.array([b > a and np.mean(python[a:b] > 0) >= _AT_PYTHON for a, b in _polls(times, away)], bool)
    held = Intervals(start=away.start[~for_python], end=away.end[~for_python])
    locked = Intervals(start=away.start[for_python], end=away.end[for_python])
    # Without the loop, a request that arrives meanwhile waits until the end. Others may hold the lock themselves.
    arrived = locked.covered(at, at + 1) > 0
    return LockWaits(
        lock=lock,
        python=np.where(arrived, np.maximum(python_lock, locked.covered(at, end)), python_lock),
        at_one=int(_counts(samples, ONE_ADDRESS, times)[waiting > 0].max(initial=0)),
        cores=_cores(samples, begin, begin + step[waiting > 0].astype(np.int64)),
        held=held,
        held_cores=_cores(samples, held.start, held.end),
    )


def with_queue(record: RunRecord) -> RunRecord:
    """The record; of a service behind an address with the waits in its queue that are inferred."""
    return as_served(record, servers_of(record)) if record.meta.is_http else record


def servers_of(record: RunRecord) -> int:
    """Number of servers behind one queue, each with one request at a time; 0 if unknown.

    Requests that all need one lock look like a queue. If threads waited for a lock for most of the waiting time, it
    is a lock.
    """
    rows = record.requests
    usable = (rows["http_status"] > 0) & (rows["status"] == Status.OK)
    at, end = (times[usable] for times in presence(rows))
    queue = infer_queue(at, end - at, _BETWEEN_ANSWERS_NS)
    if queue is None:
        return 0
    locked = int(find_lock_waits(record.samples, at, end, NO_INTERVALS).lock.sum())
    return 0 if locked > _MOSTLY * int(queue.wait_ns.sum()) else queue.servers


def _counts(samples: Columns, name: str, times: Floats) -> Floats:
    """A series at each poll; zero where it has no value."""
    found, counts = Counter.of(samples, name), np.zeros(len(times))
    counts[np.minimum(np.searchsorted(times, found.at_ns), len(times) - 1)] = found.value
    return counts


def _is_lock(count: Floats, there: Ints) -> bool:
    """True if threads wait at an address only while several requests are there, hardly ever with one or none."""
    met = count > 0
    several = float(np.mean(met[there > 1])) if np.any(there > 1) else 0.0
    return all(
        np.count_nonzero(there == few) >= _LEAST and np.mean(met[there == few]) <= _ALONE * several for few in (0, 1)
    )


def _cores(samples: Columns, start: Ints, end: Ints) -> float:
    """Mean cores that the process used or wanted."""
    wanted = sum(float(Counter.of(samples, name).grown(start, end).sum()) for name in (CPU, RUN_QUEUE))
    return float(wanted / max(int((end - start).sum()), 1))


def _loop_away(loops: Counter, there: Ints, standstills: Intervals) -> Intervals:
    """Standstills in which fewer threads wait for events than in an idle service."""
    if len(loops.value) != len(there) or np.count_nonzero(there == 0) < _LEAST:
        return NO_INTERVALS
    away = loops.value < np.median(loops.value[there == 0])
    found = [bool(b > a and np.mean(away[a:b]) >= _AWAY) for a, b in _polls(loops.at_ns, standstills)]
    chosen = np.array(found, dtype=bool)
    return Intervals(start=standstills.start[chosen], end=standstills.end[chosen])


def _polls(times: Floats, spans: Intervals) -> list[tuple[int, int]]:
    """The first poll in each span, and the first one after it."""
    first, last = (np.searchsorted(times, at).tolist() for at in (spans.start, spans.end))
    return list(zip(first, last, strict=True))


def _inside(times: Floats, at: Ints, end: Ints) -> Ints:
    """Number of requests at the service at each time."""
    begun = np.searchsorted(np.sort(at), times, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(end), times, side="right"), dtype=np.int64)


def _divided(times: Floats, step: Floats, waiting: Floats, python: Floats, at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Thread time of waits, divided among the requests that were there."""
    lock, shared = np.zeros(len(at)), np.zeros(len(at))
    order = np.argsort(at, kind="stable")
    begun = np.searchsorted(at[order], times, side="right")
    longest = float((end - at).max(initial=0))
    first = np.searchsorted(at[order], times - longest)
    for k in np.flatnonzero((waiting > 0) | (python > 0)).tolist():
        near = order[first[k] : begun[k]]
        there = near[end[near] > times[k]]
        if not len(there):
            continue
        shared[there] += step[k] * python[k] / len(there)
        last = there[np.argsort(end[there], kind="stable")][::-1]
        whole = int(waiting[k])
        lock[last[:whole]] += step[k]
        if whole < len(last):
            lock[last[whole]] += step[k] * (waiting[k] - whole)
    return np.rint(lock).astype(np.int64), np.rint(shared).astype(np.int64)
