"""Threads of a service behind an address that compute for long: for which request, or for none.

Every few milliseconds the watch reads the time of each thread on a core. If a thread computes for far longer than a
usual request needs, right after a request came or right before it is answered, it serves that request: of several,
the one whose end is next to its own, and that did not come later. An event loop serves one after the other, so what
it computes between two answers is that of the second. A thread whose long computations mostly match no request serves
none, such as a background job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.evidence.intervals import Overlaps
from latfix.profilers.evidence.outside.event_loop import serves_in_loop
from latfix.profilers.evidence.outside.service_process import (
    EPOLL,
    THREAD,
    Counter,
    ServiceProcess,
    at_readings,
    cumulative,
)
from latfix.run_record.schema import Columns

#: Long is so many times a usual request's work, and so many nanoseconds.
_TIMES, _LEAST_NS = 3.0, 15_000_000
#: Readings in which a thread does not run, and by which it begins or ends apart from its request, or as a share.
_PAUSE, _APART, _APART_SHARE = 8, 2, 0.1
#: An arrival after a thread began counts so many times as much as an end apart from its own.
_EARLIER = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingThreads:
    """What threads computed for long.

    :param known: the threads were read one by one.
    :param computed: ``(n,)`` on-CPU nanoseconds of the thread that served a request, beyond a usual request's work.
    :param ran: by row of such a request, ``(k,)`` that thread's time on a core after each reading of the process.
    :param background: series of the threads that serve none.
    """

    known: bool
    computed: Ints
    ran: Mapping[int, Floats] = field(default_factory=dict)
    background: tuple[str, ...] = ()


def nothing_computed(requests: int) -> ServingThreads:
    """No thread computed for long, or it is not known."""
    return ServingThreads(known=False, computed=np.zeros(requests, np.int64))


def find_serving_threads(samples: Columns, at: Ints, end: Ints, answers: Ints) -> ServingThreads:
    """Find out what threads computed for long.

    :param at: ``(n,)`` when each request reached the service; ``end`` its last byte.
    :param answers: first and last bytes, and all streamed parts.
    """
    process, computed = ServiceProcess(samples, at, end), np.zeros(len(at))
    names = sorted({str(name) for name in samples["series"] if str(name).startswith(THREAD)})
    times, background, of_requests = process.cpu.at_ns, [], dict[int, Floats]()
    if not (names and len(times) > 1 and len(at)):
        return replace(nothing_computed(len(at)), known=bool(names))
    loops = Counter.of(samples, EPOLL)
    there = np.searchsorted(np.sort(at), loops.at_ns) - np.searchsorted(np.sort(end), loops.at_ns)
    parted = np.sort(answers) if serves_in_loop(loops, there) else np.zeros(0)
    work, step, ends = process.typical_work, float(np.median(process.step)), np.sort(end)
    long, requests = max(_TIMES * work, _LEAST_NS), Overlaps(at, end)
    for name in names:
        ran = at_readings(samples, name, times)[1:]
        thread = cumulative(times, ran)
        start, stop = _pieces(times, ran, parted)
        spent, apart = thread.grown(start, stop), np.maximum(_APART * step, _APART_SHARE * (stop - start))
        before, until = (np.searchsorted(ends, each, side="right") for each in (start, stop + _APART * step))
        answered = until - before
        beyond = np.maximum(spent - answered * work, 0.0)  # the usual work of requests one after the other
        of_thread, served, alone = np.zeros(len(at)), 0.0, 0.0
        for k in np.flatnonzero((beyond if len(parted) else spent) >= long).tolist():
            near = requests.near(int(start[k]), int(stop[k]))
            near = near[(at[near] >= start[k] - apart[k]) | (end[near] <= stop[k] + apart[k])]
            during = thread.grown(np.maximum(at[near], start[k]), np.minimum(end[near], stop[k] + step))
            near, during = (each[during >= (1 - _APART_SHARE) * spent[k]] for each in (near, during))
            if not len(near):
                alone += float(beyond[k]) * (beyond[k] >= long)
                continue
            first = int(np.argmin(np.abs(end[near] - stop[k]) + _EARLIER * np.maximum(at[near] - start[k], 0)))
            served += float(spent[k])
            # In a loop, others may have been computed before all of them are answered.
            of_thread[near[first]] += max(float(during[first]) - (answered[k] if len(parted) else 1) * work, 0.0)
        if alone > served:
            background.append(name)
            continue
        of_requests |= dict.fromkeys(np.flatnonzero(of_thread > computed).tolist(), np.append(ran, 0.0))
        computed = np.maximum(computed, of_thread)  # threads of a pool work for one request side by side
    return ServingThreads(
        known=True,
        computed=np.rint(np.minimum(computed, end - at)).astype(np.int64),
        ran=of_requests,
        background=tuple(background),
    )


def _pieces(times: Floats, ran: Floats, parted: Ints | Floats) -> tuple[Ints, Ints]:
    """Begin and end of each time in which a thread runs without a pause, parted at some moments."""
    on = np.flatnonzero(ran > 0)
    first = np.concatenate([on[:1], on[1:][np.diff(on) > _PAUSE]])
    last = np.concatenate([on[:-1][np.diff(on) > _PAUSE], on[-1:]])
    start, stop = times[first], times[last + 1]
    within = parted[np.searchsorted(start, parted, side="right") > np.searchsorted(stop, parted)]
    edges = [np.sort(np.concatenate([one, within])).astype(np.int64) for one in (start, stop)]
    return edges[0], edges[1]
