"""Threads of a service behind an address that compute for long: for which request, or for none.

Every few milliseconds the watch reads the time of each thread on a core. If a thread computes for far longer than a
usual request needs, right after a request came or right before it is answered, it serves that request: of several,
the one that is answered next to its end. An event loop serves one after the other, so what it computes between two
answers is that of the second. A thread whose long computations mostly match no request, and that computes without any
request there, too, serves none, such as a background job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.intervals import Overlaps
from latfix.profilers.evidence.outside.event_loop import requests_there, serves_in_loops, usual_loops
from latfix.profilers.evidence.outside.service_process import (
    EPOLL,
    THREAD,
    Counter,
    ServiceProcess,
    at_readings,
    cumulative,
    series_names,
)
from latfix.run_record.schema import Columns

#: Long is so many times a usual request's work, and so many nanoseconds.
_TIMES, _LEAST_NS = 3.0, 15_000_000
#: Readings in which a thread does not run, and by which it begins or ends apart from its request, or as a share.
_PAUSE, _APART, _APART_SHARE = 8, 2, 0.1
#: An arrival after a thread began counts so many times as much as an end apart from its own.
_EARLIER = 3.0
#: A thread serves requests if this share of its long computations, by time, does. It serves none if it otherwise
#: computes about as much without any request there: at least this share, in such a part of the run.
_MOSTLY, _EMPTY = 0.5, 0.1
#: A thread is an event loop if the loop is away in this share of the readings in which it hardly does anything else.
_IN_LOOP = 0.6
#: Largest chance of what is called no chance.
_UNLIKELY = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingThreads:
    """What threads computed for long.

    :param known: the threads were read one by one, and it shows which of them serves a request.
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
    names = series_names(samples, THREAD)
    times, background, of_requests = process.cpu.at_ns, [], dict[int, Floats]()
    if not (names and len(times) > 1 and len(at)):
        return replace(nothing_computed(len(at)), known=bool(names))
    loops = Counter.of(samples, EPOLL)
    there = requests_there(loops.at_ns, at, end)
    gone = cumulative(loops.at_ns, np.diff(loops.at_ns) * (loops.value[:-1] < usual_loops(loops, there)))
    away = np.diff(gone.at(times)) > _MOSTLY * process.step
    many = serves_in_loops(loops, there)  # of several loops, it is not known which one serves a request
    requests = _Requests(at, end, float(np.median(process.step)))
    late = _APART * float(np.median(process.step))
    by_chance = 1.0 if away.all() else float(np.mean(requests.there(times[:-1][~away])))
    work, long = process.typical_work, max(_TIMES * process.typical_work, _LEAST_NS)
    empty = process.there <= 0
    for name in names:
        ran = at_readings(samples, name, times)[1:]
        thread, of_thread, served = cumulative(times, ran), np.zeros(len(at)), 0.0
        fresh: list[bool] = []
        busy = ran >= _MOSTLY * process.step
        parted = np.sort(answers) if np.count_nonzero(away[busy]) > _IN_LOOP * np.count_nonzero(busy) else np.zeros(0)
        pending = _pieces(times, ran, parted)
        ran_in = thread.grown(*(np.array([edges[k] for edges in pending], np.int64) for k in (0, -1)))
        pending = [pending[k] for k in np.flatnonzero(ran_in >= long).tolist()]
        beyond = ran_in[ran_in >= long] - [
            requests.answered(int(edges[0]), int(edges[-1])) * work for edges in pending
        ]
        while pending:
            edges = pending.pop()
            begin, until = int(edges[0]), int(edges[-1])
            spent = float(thread.grown(edges[:1], edges[-1:])[0])
            usual = requests.answered(begin, until) * work
            if (spent - usual if len(parted) else spent) < long:
                continue
            owner, own = requests.served_by(thread, begin, until, spent)
            if owner < 0 and len(edges) > 2:  # two requests one after the other
                cut = 2 * int(np.argmax(edges[2:-1:2] - edges[1:-2:2])) + 2
                pending += [edges[:cut], edges[cut:]]
                continue
            if float(thread.grown(edges[:1] - int(late), edges[:1])[0]) < late / 2:
                # Little that it did long before does not count, such as the end of another request.
                little = _APART_SHARE * spent
                began = np.interp(thread.at(edges[:1])[0] + little, thread.value, thread.at_ns) - little
                fresh.append(bool(requests.there(np.array([began])).all()))
            if owner >= 0:
                served += spent
                # In a loop, others may have been computed before all of them are answered.
                of_thread[owner] += max(own - (usual if len(parted) else work), 0.0)
        is_long = beyond >= long
        if (len(parted) and _by_chance(fresh, by_chance)) or served < _MOSTLY * beyond[is_long].sum():
            if float(ran[empty].sum()) >= _MOSTLY * float(ran.sum()) * np.mean(empty) and np.mean(empty) >= _EMPTY:
                background.append(name)
        elif not many:
            of_requests |= dict.fromkeys(np.flatnonzero(of_thread > computed).tolist(), np.append(ran, 0.0))
            computed = np.maximum(computed, of_thread)  # threads of a pool work for one request side by side
    return ServingThreads(
        known=not many,
        computed=np.rint(np.minimum(computed, end - at)).astype(np.int64),
        ran=of_requests,
        background=tuple(background),
    )


class _Requests:
    """Requests, to find the one that a thread serves.

    :param at: ``(n,)``, as ``end``; ``step`` nanoseconds between readings.
    """

    def __init__(self, at: Ints, end: Ints, step: float) -> None:
        self._at, self._end, self._step = at, end, step
        self._begins, self._ends, self._overlaps = np.sort(at), np.sort(end), Overlaps(at, end)
        self._longest = float((end - at).max())

    def answered(self, begin: int, until: int) -> int:
        """How many were answered in a time, or right after it."""
        return int(np.diff(np.searchsorted(self._ends, [begin, until + _APART * self._step], side="right"))[0])

    def there(self, moments: Floats) -> Bools:
        """``(k,)`` True if a request was there at a time, or right after it."""
        begun = np.searchsorted(self._begins, moments + _APART * self._step)
        return np.asarray(begun > np.searchsorted(self._ends, moments))

    def served_by(self, thread: Counter, begin: int, until: int, spent: float) -> tuple[int, float]:
        """The request for which a thread computes, -1 if there is none, and what it computes while that is there."""
        late = _APART * self._step
        apart = max(late, _APART_SHARE * (until - begin))
        if until - begin > self._longest + 2 * apart:
            return -1, 0.0
        near = self._overlaps.near(begin, until)
        at, end = self._at[near], self._end[near]
        during = thread.grown(np.maximum(at, begin), np.minimum(end, until + self._step))
        fits = ((at >= begin - apart) | (end <= until + apart)) & (during >= (1 - _APART_SHARE) * spent)
        fits &= thread.at(at) <= thread.at(np.array([begin])) + late  # it computed for another before
        if not fits.any():
            return -1, 0.0
        by = np.abs(end - until) + _EARLIER * np.maximum(at - begin, 0)
        best = int(np.argmin(np.where(fits, by, np.inf)))
        return int(near[best]), float(during[best])


def _by_chance(fresh: Sequence[bool], chance: float) -> bool:
    """True if it is not sure that an event loop computes for requests.

    When it is back, a loop answers all that wait, so no end shows if it computed for one of them or for none, as a
    timer does. If it computes for requests, one is there when it begins in more cases than by chance.

    :param fresh: of its computations after a pause, if a request was there then.
    :param chance: how often a request is there while the loop waits for events.
    """
    of, met = len(fresh), sum(fresh)
    at_least = sum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(met, of + 1))
    return at_least > _UNLIKELY


def _pieces(times: Floats, ran: Floats, parted: Ints | Floats) -> list[Ints]:
    """Times in which a thread runs without a long pause: in each, begin and end of all parts without any pause.

    :param parted: moments at which the times are parted, and their parts are not told apart; empty if they are.
    """
    on = np.flatnonzero(ran > 0)
    if not len(on):
        return []
    apart = np.flatnonzero(np.diff(on) > (_PAUSE if len(parted) else 1))
    start, stop = times[on[np.append(0, apart + 1)]], times[on[np.append(apart, -1)] + 1]
    if len(parted):
        within = parted[np.searchsorted(start, parted, side="right") > np.searchsorted(stop, parted)]
        start, stop = (np.sort(np.concatenate([one, within])) for one in (start, stop))
        long = np.arange(1, len(start))
    else:
        long = np.flatnonzero(np.diff(on)[apart] > _PAUSE) + 1
    edges = np.stack([start, stop], axis=1).astype(np.int64)
    return [part.reshape(-1) for part in np.split(edges, long)]
