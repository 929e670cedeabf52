"""When the event loop of a service behind an address did not return to waiting for events.

The one thread that waits for events (``epoll_wait``) in an idle service is an event loop. While it is away, none of
its requests goes on. It is away in turns for each request's work, so only times count in which no request was
answered, and which are long compared with that work.
"""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.intervals import NO_INTERVALS, Intervals
from latfix.profilers.evidence.outside.service_process import EPOLL, Counter, cumulative
from latfix.run_record.schema import Columns

#: Least polls without a request; least length of a block, in nanoseconds and in times of a usual request's work.
_LEAST, _LEAST_NS, _TIMES = 10, 15_000_000, 3.0
#: Share of polls; and with more than one loop away, if a single one serves.
_MOSTLY, _SEVERAL = 0.5, 0.01


def requests_there(times: Floats, at: Ints, end: Ints) -> Ints:
    """Number of requests at the service at each time.

    :param at: ``(n,)`` when each request reached the service; ``end`` its last byte.
    """
    begun = np.searchsorted(np.sort(at), times, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(end), times, side="right"), dtype=np.int64)


def usual_loops(loops: Counter, there: Ints) -> float:
    """Number of threads that wait for events in an idle service; 0 if that is unknown.

    :param loops: threads that wait for events, at each poll; ``there`` the number of requests then.
    """
    if len(loops.value) != len(there) or np.count_nonzero(there == 0) < _LEAST:
        return 0.0
    return float(np.median(loops.value[there == 0]))


def serves_in_loop(loops: Counter, there: Ints) -> bool:
    """True if one event loop itself computes the answers: it is away for most of the time with requests.

    Others may wait for events all the time, such as Node's own threads.

    :param loops: as for :func:`usual_loops`, as ``there``.
    """
    if not (usual := usual_loops(loops, there)):
        return False
    away = usual - loops.value[there > 0]
    return bool(len(away) and np.mean(away >= 1.0) >= _MOSTLY and np.mean(away > 1.0) <= _SEVERAL)


def computes_in_loop(samples: Columns, at: Ints, end: Ints) -> bool:
    """As :func:`serves_in_loop`, from the readings and as for :func:`requests_there`."""
    loops = Counter.of(samples, EPOLL)
    return serves_in_loop(loops, requests_there(loops.at_ns, at, end))


def serves_in_loops(loops: Counter, there: Ints) -> bool:
    """True if several event loops compute the answers, also if the service is never idle.

    :param loops: as for :func:`usual_loops`, as ``there``.
    """
    away = loops.value.max(initial=0.0) - loops.value[there > 0]
    return bool(len(away) and np.mean(away >= 1.0) >= _MOSTLY and np.mean(away > 1.0) > _SEVERAL)


def loop_blocks(loops: Counter, there: Ints, at: Ints, end: Ints, answers: Ints, serving: float = 0.0) -> Intervals:
    """Times in which the only event loop was away for long, and no request was answered.

    :param loops: as for :func:`usual_loops`, as ``there``.
    :param serving: number of them that do not always wait for events; 0 if it is not known.
    :param at: ``(n,)`` when each request reached the service; ``end`` its last byte.
    :param answers: all times at which some part of an answer arrived.
    """
    usual = usual_loops(loops, there)
    if (serving or usual) != 1.0 and not serves_in_loop(loops, there):
        return NO_INTERVALS
    times, away = loops.at_ns, loops.value < usual
    gone = cumulative(times, np.where(away[:-1], np.diff(times), 0.0))
    limit = max(_TIMES * float(np.median(gone.grown(at, end))), _LEAST_NS)
    answered = np.sort(answers)
    starts, stops = _runs(away, times)
    found: list[tuple[int, int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if stop - start < limit:
            continue
        between = answered[np.searchsorted(answered, start) : np.searchsorted(answered, stop)]
        edges = np.concatenate([[start], between, [stop]]).astype(np.int64)
        found += [(int(edges[k]), int(edges[k + 1])) for k in np.flatnonzero(np.diff(edges) >= limit)]
    blocks = np.array(found, np.int64).reshape(-1, 2)
    return Intervals(start=blocks[:, 0], end=blocks[:, 1])


def _runs(away: Bools, times: Floats) -> tuple[Floats, Floats]:
    """Begin and end of each series of polls that are true; the end is the first poll after it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], away, [False]]).astype(np.int8)))
    return times[edges[::2]], times[np.minimum(edges[1::2], len(times) - 1)]
