"""Requests to a service behind an address that waited for a lock, inferred from waits of its threads.

Every few milliseconds the watch counts the threads that wait in ``futex(2)``, by code address. At some addresses
threads wait for work, or a request for its helper. A thread waits for a lock that another request holds only while
two or more requests are there, so addresses that are hardly used otherwise are locks. If all that are there wait, a
thread that serves none holds it. Which requests waited is inferred: those that ended first were served first, the
others waited. The interpreter's lock changes hands every few milliseconds, so all requests that are there share the
wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import percent
from latfix.profilers.evidence.intervals import NO_INTERVALS, Intervals
from latfix.profilers.evidence.outside.event_loop import loop_blocks, requests_there, usual_loops
from latfix.profilers.evidence.outside.service_process import (
    COLLECTIONS,
    EPOLL,
    FUTEX,
    INTERPRETER,
    LOOP_IN,
    LOOPS,
    ONE_ADDRESS,
    Counter,
    ServiceProcess,
    at_readings,
    series_names,
)
from latfix.profilers.evidence.outside.serving_threads import ServingThreads, nothing_computed
from latfix.run_record.schema import Columns

#: A thread is still busy with an answer for this long after its last byte.
_AFTER_NS = 2_000_000
#: Least number of polls with no request, and with one; and the largest share of them with a thread at a lock's
#: address, relative to polls with several requests.
_LEAST, _ALONE = 10, 0.2
#: A late poll counts for at most this many usual intervals.
_LONGEST_STEPS = 4.0
#: Cores used while threads waited: from the first value on the holder computed, up to the second it waited itself.
_COMPUTED, _IDLE = 0.7, 0.3
#: Least share of a standstill with the event loop away, and of a block of the loop that ordinary work explains.
_AWAY, _MOSTLY = 0.8, 0.5
#: While one thread computes and no other can, the process runs for at least this share of the time, and uses so many
#: cores while it has any.
_RAN, _ONE_THREAD = 0.4, (0.6, 1.3)
#: A standstill in which the process had no core for this share of it is due to that.
_STARVED = 0.5
#: With threads at the interpreter's lock for this share of it, the loop itself waits for that lock; while one thread
#: computes, such a number of readings is enough: each wait times out after 5 ms, and the thread wants a core again.
_AT_PYTHON, _SEEN_AT_PYTHON = 0.3, 2
#: At least this share of the times in which one thread computed had a full collection in their interval between two
#: readings of the service's metrics; at most so many collections for each of them.
_COLLECTED, _COLLECTIONS = 0.8, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWaits:
    """Waits of requests for locks.

    :param lock: ``(n,)`` nanoseconds for a lock of the service; ``python`` for the interpreter's.
    :param at_one: largest number of threads at one address, 0 if addresses are unknown.
    :param by_others: share of that time in which all requests waited, so that none of them held the lock.
    :param cores: mean cores that the process used or wanted while threads waited for a lock.
    :param held: when an event loop did not return to wait for events, and no request went on.
    :param busy: when it did not, because it computed: requests that arrive meanwhile wait.
    :param held_cores: mean cores that the process used or wanted in both.
    :param held_in: the system call in which the loop's thread was for most of the time ``held``; else empty.
    :param alone: standstills in which one thread computed, and no other could.
    :param kept: those in which it kept the interpreter's lock.
    :param by_one: standstills in which threads waited for a lock that a request held.
    :param collected: those in which the interpreter collected garbage, by the service's own metrics.
    """

    lock: Ints
    python: Ints
    at_one: int = 0
    by_others: float = 0.0
    cores: float = 0.0
    held: Intervals = NO_INTERVALS
    busy: Intervals = NO_INTERVALS
    held_cores: float = 0.0
    held_in: str = ""
    alone: Intervals = NO_INTERVALS
    kept: Intervals = NO_INTERVALS
    by_one: Intervals = NO_INTERVALS
    collected: Intervals = NO_INTERVALS

    @property
    def holder(self) -> str:
        """A clause on what the lock's holder did."""
        by_others = ""
        if self.by_others >= _MOSTLY:
            by_others = (
                f"; for {percent(self.by_others)} of that time all requests waited, so it was held by a thread "
                "that serves none, such as a background job"
            )
        return f"its holder {_did(self.cores)}{by_others}"

    @property
    def caller(self) -> str:
        """A clause on what the call that blocked the event loop did."""
        where = f", mostly in the system call {self.held_in}" if self.held_in else ""
        return f"the call that blocked it {_did(self.held_cores)}{where}"


def _did(cores: float) -> str:
    what = "computed" if cores >= _COMPUTED else "waited itself" if cores <= _IDLE else "computed and waited"
    return f"{what} ({cores:.1f} cores)"


def find_lock_waits(
    samples: Columns,
    at: Ints,
    end: Ints,
    standstills: Intervals,
    answers: Ints | None = None,
    threads: ServingThreads | None = None,
) -> LockWaits:
    """Find waits for locks.

    :param at: ``(n,)`` when each request reached the service; ``end`` its last byte.
    :param standstills: when no request was answered, of many in flight.
    :param answers: first bytes, last bytes and all streamed parts, to see the loop blocked with few in flight, too.
    :param threads: what threads computed for long: their requests wait for no lock meanwhile.
    """
    none = np.zeros(len(at), np.int64)
    process = ServiceProcess(samples, at, end)
    if not process.cpu.known or not len(at):
        return LockWaits(lock=none, python=none)
    times = process.cpu.at_ns
    there, present = requests_there(times, at, end + _AFTER_NS), requests_there(times, at, end)
    counts = [at_readings(samples, name, times) for name in series_names(samples, FUTEX)]
    waiting = sum((count for count in counts if _is_lock(count, there)), start=np.zeros(len(times)))
    waiting = np.minimum(waiting + _behind(waiting, counts, there, present), present)
    collected = np.append(np.diff(process.collected.at(times)), 0.0)
    python = np.minimum(at_readings(samples, INTERPRETER, times), present)
    step = np.diff(times, append=times[-1])
    step = np.minimum(step, _LONGEST_STEPS * float(np.median(step)))
    waiting = np.where(collected > _MOSTLY * step, 0.0, waiting)  # a collection stops all threads
    threads = nothing_computed(len(at)) if threads is None else threads
    lock, python_lock = _divided(times, step, waiting, python, at, end, threads)
    begin = times[waiting > 0].astype(np.int64)
    all_wait = step[(waiting > 0) & (waiting == present)].sum() / max(float(step[waiting > 0].sum()), 1.0)
    lacking = _without_core(process, standstills)
    single = _on_one_thread(process, standstills, lacking)
    alone = standstills.where(single)
    by_one = (waiting > 0) & (waiting < present)
    at_lock = np.array([_share(by_one[a:b]) for a, b in _polls(times, standstills)])
    polls = [python[a:b] for a, b in _polls(times, standstills)]
    at_python = np.array([_share(waiters > 0) for waiters in polls])
    seen = np.array([np.count_nonzero(waiters) for waiters in polls])
    loops = Counter.of(samples, EPOLL)
    away = _loop_away(loops, there, standstills)
    starved = lacking > _STARVED * (standstills.end - standstills.start)
    for_python = ((away & (at_python >= _AT_PYTHON)) | (single & (seen >= _SEEN_AT_PYTHON))) & ~starved
    locked = standstills.where(for_python)
    parts = 1.0 if answers is None else max(len(answers) / len(at) - 2, 1.0)  # of a streamed answer
    held = _called(standstills.where(away & ~for_python & ~starved), process, parts)
    blocks, serving = NO_INTERVALS, Counter.of(samples, LOOPS).value[-1:].sum()
    if answers is not None:
        blocks = _called(loop_blocks(loops, there, at, end, answers, float(serving)), process, parts)
    waited, busy = _of_the_loop(blocks.where(standstills.covered(blocks.start, blocks.end) == 0), process, python)
    start, stop = _joined(held, waited)
    held = Intervals.merged(start, stop - start)
    kept = standstills.where(for_python & single)
    # Without the loop, a request that arrives meanwhile waits until the end. Others may hold the lock themselves,
    # unless one thread keeps it.
    arrived = np.where(locked.covered(at, at + 1) > 0, locked.covered(at, end), 0)
    return LockWaits(
        lock=lock,
        python=np.maximum(python_lock, np.maximum(arrived, kept.covered(at, end))),
        at_one=int(at_readings(samples, ONE_ADDRESS, times)[waiting > 0].max(initial=0)),
        by_others=float(all_wait),
        cores=process.cores(begin, begin + step[waiting > 0].astype(np.int64)),
        held=held,
        busy=busy,
        held_cores=process.cores(*_joined(held, busy)),
        held_in=call_in(samples, times, held),
        alone=alone,
        kept=kept,
        by_one=standstills.where(at_lock >= _MOSTLY),
        collected=_collections(samples, alone),
    )


def _called(blocks: Intervals, process: ServiceProcess, parts: float) -> Intervals:
    """Blocks of the event loop without those that are mostly usual work for the next answer of all that were there.

    :param parts: of an answer, each of which needs its share of a request's work.
    """
    there = np.searchsorted(process.begun, blocks.end) - np.searchsorted(process.ended, blocks.start)
    usual = np.minimum(process.cpu.grown(blocks.start, blocks.end), there * process.typical_work / parts)
    return blocks.where(usual <= _MOSTLY * (blocks.end - blocks.start))


def _of_the_loop(blocks: Intervals, process: ServiceProcess, python: Floats) -> tuple[Intervals, Intervals]:
    """Blocks of the event loop in which it waited in a call, and in which it computed.

    Neither for the interpreter's lock, nor for a core.
    """
    at_python = [_share(python[a:b] > 0) for a, b in _polls(process.cpu.at_ns, blocks)]
    length = np.maximum((blocks.end - blocks.start).astype(np.float64), 1.0)
    own = (np.array(at_python) < _AT_PYTHON) & (_without_core(process, blocks) <= _STARVED * length)
    waits = process.cpu.grown(blocks.start, blocks.end) / length <= _IDLE
    return blocks.where(own & waits), blocks.where(own & ~waits)


def _joined(one: Intervals, other: Intervals) -> tuple[Ints, Ints]:
    """Begin and end of the intervals of both."""
    return np.concatenate([one.start, other.start]), np.concatenate([one.end, other.end])


def _on_one_thread(process: ServiceProcess, standstills: Intervals, lacking: Floats) -> Bools:
    """True for standstills in which one thread computed all the time that it had a core."""
    length = (standstills.end - standstills.start).astype(np.float64)
    ran = process.cpu.grown(standstills.start, standstills.end)
    cores = ran / np.maximum(length - lacking, 1.0)
    return np.asarray((ran >= _RAN * length) & (cores >= _ONE_THREAD[0]) & (cores <= _ONE_THREAD[1]))


def call_in(samples: Columns, times: Floats, held: Intervals) -> str:
    """The system call in which the event loop's thread was in most polls of these intervals; else empty.

    :param times: of the polls.
    """
    during = held.covered(times.astype(np.int64), times.astype(np.int64) + 1) > 0
    names = series_names(samples, LOOP_IN)
    shares = {name: _share(at_readings(samples, name, times)[during] > 0) for name in names}
    most = max(names, key=lambda name: shares[name], default="")
    return most.removeprefix(LOOP_IN) if most and shares[most] >= _MOSTLY else ""


def _without_core(process: ServiceProcess, standstills: Intervals) -> Floats:
    """Nanoseconds of each standstill in which threads wanted a core and had none, or a collection stopped them."""
    start, stop = standstills.start, standstills.end
    if not len(start):
        return np.zeros(0)
    idle = np.maximum((stop - start) - process.cpu.grown(start, stop), 0.0)
    return np.minimum(process.delay_of_each.grown(start, stop), idle) + process.collected.grown(start, stop)


def _collections(samples: Columns, alone: Intervals) -> Intervals:
    """The standstills, if about as many full collections ran as there were, each at the time of one."""
    counted = next((each for name in COLLECTIONS if (each := Counter.of(samples, name)).known), None)
    if counted is None or not len(alone):
        return NO_INTERVALS
    during = counted.grown_around(alone.start, alone.end) > 0
    if _share(during) < _COLLECTED or counted.total > _COLLECTIONS * len(alone):
        return NO_INTERVALS
    return alone.where(during)


def _share(which: Bools) -> float:
    return float(np.mean(which)) if len(which) else 0.0


def _is_lock(count: Floats, there: Ints) -> bool:
    """True if threads wait at an address only while several requests are there, hardly ever with one or none."""
    met = count > 0
    several = float(np.mean(met[there > 1])) if np.any(there > 1) else 0.0
    return all(
        np.count_nonzero(there == few) >= _LEAST and np.mean(met[there == few]) <= _ALONE * several for few in (0, 1)
    )


def _behind(waiting: Floats, counts: list[Floats], there: Ints, present: Ints) -> Floats:
    """Requests at each poll for which a pool has no thread left, because most of its threads wait for a lock.

    :param waiting: threads that wait for a lock; ``counts`` those at each address, all of a pool while it is idle.
    """
    behind = np.zeros(len(present))
    for count in counts if np.any(there == 0) else ():
        threads = float(np.median(count[there == 0]))
        if threads > 1:
            stuck = (count == 0) & (waiting > _MOSTLY * threads)
            behind = np.where(stuck, np.maximum(behind, present - np.maximum(waiting, threads)), behind)
    return behind


def _loop_away(loops: Counter, there: Ints, standstills: Intervals) -> Bools:
    """True for standstills in which fewer threads wait for events than in an idle service."""
    usual = usual_loops(loops, there)
    if not usual:
        return np.zeros(len(standstills), dtype=bool)
    away = loops.value < usual
    return np.array([_share(away[a:b]) >= _AWAY for a, b in _polls(loops.at_ns, standstills)], dtype=bool)


def _polls(times: Floats, spans: Intervals) -> list[tuple[int, int]]:
    """The first poll in each span, and the first one after it."""
    first, last = (np.searchsorted(times, at).tolist() for at in (spans.start, spans.end))
    return list(zip(first, last, strict=True))


def _divided(
    times: Floats, step: Floats, waiting: Floats, python: Floats, at: Ints, end: Ints, threads: ServingThreads
) -> tuple[Ints, Ints]:
    """Thread time of waits, divided among the requests that were there, as far as their threads did not compute."""
    lock, shared = np.zeros(len(at)), np.zeros(len(at))
    order = np.argsort(at, kind="stable")
    begun = np.searchsorted(at[order], times, side="right")
    longest = float((end - at).max(initial=0))
    first = np.searchsorted(at[order], times - longest)
    for k in np.flatnonzero((waiting > 0) | (python > 0)).tolist():
        near = order[first[k] : begun[k]]
        there = near[end[near] > times[k]]
        on = np.array([threads.ran[r][k] if r in threads.ran else 0.0 for r in there.tolist()])
        off = np.clip(1 - on / max(step[k], 1.0), 0.0, 1.0)
        shared[there] += step[k] * np.minimum(python[k] * off / max(float(off.sum()), 1.0), 1.0)
        last = there[off >= _MOSTLY]
        last = last[np.argsort(end[last], kind="stable")][::-1]
        whole = int(waiting[k])
        lock[last[:whole]] += step[k]
        if whole < len(last):
            lock[last[whole]] += step[k] * (waiting[k] - whole)
    return np.rint(lock).astype(np.int64), np.rint(shared).astype(np.int64)
