"""Requests of a service behind an address that waited for a lock, from what its threads waited for.

Every few milliseconds it was counted how many threads waited in ``futex(2)``, by place of the code. At some places a
thread waits for work, or a request for its helper. Who waits for a lock that another request holds waits only while
there are two requests or more: places that are hardly ever waited at otherwise are those of locks. Who of the
requests waits is inferred: those that ended first were served first, the rest waited. The interpreter's lock goes
from thread to thread every few milliseconds: all that were there share the wait for it.
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
    find_servers,
    in_line,
)
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import Status

#: A thread is still busy with an answer for so long after its last byte came.
_AFTER_NS = 2_000_000
#: Moments without a request, and with one, at least, to tell what is waited for then; and how often somebody waits at
#: the place of a lock then, at most, beside how often with several.
_LEAST, _ALONE = 10, 0.2
#: A poll that comes late stands for so many usual ones at most.
_LONGEST_STEPS = 4.0
#: Of a core that the process used while threads waited: from here on the holder computed, below it waited itself.
_COMPUTED, _IDLE = 0.7, 0.3
#: Of a standstill, for which its event loop was away; of waits in line, for which threads wait for a lock.
_AWAY, _MOSTLY = 0.8, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWaits:
    """What requests waited for.

    :param lock: ``(n,)`` nanoseconds for a lock of the service's; ``python`` for the interpreter's.
    :param at_one: most threads seen at one address, 0 where addresses are not shown.
    :param cores: cores that the process used or wanted while threads waited for a lock, in the mean.
    :param held: standstills of all that were there in which an event loop did not come back to wait for events.
    :param held_cores: cores that it used or wanted then, in the mean.
    """

    lock: Ints
    python: Ints
    at_one: int = 0
    cores: float = 0.0
    held: Intervals = NO_INTERVALS
    held_cores: float = 0.0

    @property
    def holder(self) -> str:
        """What whoever had the lock did, in words."""
        return f"whoever had it {_did(self.cores)}"

    @property
    def caller(self) -> str:
        """What the call that held the event loop did, in words."""
        return f"the call that held it {_did(self.held_cores)}"


def _did(cores: float) -> str:
    what = "computed" if cores >= _COMPUTED else "waited itself" if cores <= _IDLE else "computed and waited"
    return f"{what} ({cores:.1f} cores)"


def find_lock_waits(samples: Columns, at: Ints, end: Ints, standstills: Intervals) -> LockWaits:
    """Look for waits for a lock.

    :param at: ``(n,)`` when each request was at the service; ``end`` its last byte.
    :param standstills: when nobody was answered.
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
    lock, python_lock = _shared_out(times, step, waiting, python, at, end)
    begin = times[waiting > 0].astype(np.int64)
    held = _held_loop(Counter.of(samples, EPOLL), there, standstills)
    return LockWaits(
        lock=lock,
        python=python_lock,
        at_one=int(_counts(samples, ONE_ADDRESS, times)[waiting > 0].max(initial=0)),
        cores=_cores(samples, begin, begin + step[waiting > 0].astype(np.int64)),
        held=held,
        held_cores=_cores(samples, held.start, held.end),
    )


def servers_of(record: RunRecord) -> int:
    """How many servers one queue feeds, each with one request at a time; 0 where that cannot be told.

    Requests that all need one lock are answered as behind a queue. Where threads are seen waiting for a lock for most
    of the time that was waited, it is that.
    """
    rows = record.requests
    usable = (rows["http_status"] > 0) & (rows["status"] == Status.OK)
    at = (rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"])[usable]
    end = (rows["arrival_ns"] + rows["latency_ns"])[usable]
    servers = find_servers(at, end)
    if not servers:
        return 0
    waited = int((in_line(at, end, servers)[0] - at).sum())
    locked = int(find_lock_waits(record.samples, at, end, NO_INTERVALS).lock.sum())
    return 0 if locked > _MOSTLY * waited else servers


def _counts(samples: Columns, name: str, times: Floats) -> Floats:
    """A series at each poll; zero where it was left out."""
    found, counts = Counter.of(samples, name), np.zeros(len(times))
    counts[np.minimum(np.searchsorted(times, found.at_ns), len(times) - 1)] = found.value
    return counts


def _is_lock(count: Floats, there: Ints) -> bool:
    """Whether threads wait at a place only while several requests are there, hardly ever with one or none."""
    met = count > 0
    several = float(np.mean(met[there > 1])) if np.any(there > 1) else 0.0
    return all(
        np.count_nonzero(there == few) >= _LEAST and np.mean(met[there == few]) <= _ALONE * several for few in (0, 1)
    )


def _cores(samples: Columns, start: Ints, end: Ints) -> float:
    """Cores that the process used or wanted, in the mean."""
    wanted = sum(float(Counter.of(samples, name).grown(start, end).sum()) for name in (CPU, RUN_QUEUE))
    return float(wanted / max(int((end - start).sum()), 1))


def _held_loop(loops: Counter, there: Ints, standstills: Intervals) -> Intervals:
    """Standstills in which fewer threads wait for events than without a request."""
    if len(loops.value) != len(there) or np.count_nonzero(there == 0) < _LEAST:
        return NO_INTERVALS
    away = loops.value < np.median(loops.value[there == 0])
    first, last = (np.searchsorted(loops.at_ns, at) for at in (standstills.start, standstills.end))
    held = [bool(b > a and np.mean(away[a:b]) >= _AWAY) for a, b in zip(first, last, strict=True)]
    chosen = np.array(held, dtype=bool)
    return Intervals(start=standstills.start[chosen], end=standstills.end[chosen])


def _inside(times: Floats, at: Ints, end: Ints) -> Ints:
    """How many requests are there at each moment."""
    begun = np.searchsorted(np.sort(at), times, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(end), times, side="right"), dtype=np.int64)


def _shared_out(
    times: Floats, step: Floats, waiting: Floats, python: Floats, at: Ints, end: Ints
) -> tuple[Ints, Ints]:
    """Thread time of waits, at the requests that were there."""
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
