"""The process of a service behind an address: its kernel counters, and the requests that were there between readings.

The counters are sums over its threads, and are read every few milliseconds. What one request ran, waited for a core
or was idle is inferred from when the process was alone with it, and from how much of it runs at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.run_record.schema import Columns

#: Least idle time, some readings long, from which a request's share of time with others is inferred.
_MUCH_IDLE_NS = 20_000_000
#: Threads come and go with requests if readings in which their number fell are more than this share of requests.
_COME_AND_GO = 0.1
#: Requests, readings with so many, and the quantile of these that shows how much of a process runs at once.
_SEVERAL, _LEAST_READINGS, _CROWDED = 2, 10, 0.9
#: Threads that a process with a single one runs or wants to run, with the kernel's late counts. Another limited one
#: has no more of them than this share of the requests with unfinished work.
_SINGLE, _LIMITED = 1.2, 0.7
#: Least share of that time in which such a process is busy.
_BUSY = 0.9
#: Standard errors from which a correlation is certain.
SURE = 3.5

CPU, RUN_QUEUE, THROTTLED = "server.cpu_ns", "server.runq_ns", "server.throttled_ns"
#: Time for which a signal or a tracer stopped the process; omitted while zero.
STOPPED = "server.stopped_ns"
#: Time for which threads of a JVM computed that stop all its others: collections, nearly always.
COLLECTED = "server.collected_ns"
THREADS = "server.threads"
#: Page faults, and waits of its threads for disks.
MINOR_FAULTS, MAJOR_FAULTS, DISK = "server.minflt", "server.majflt", "server.disk_ns"
#: Prefix of the series of its own metrics.
METRICS = "metrics."
#: Full collections of CPython and collections of another runtime, as prometheus' client libraries count them.
COLLECTIONS = tuple(f"{METRICS}python_gc_collections_total{which}" for which in ('{generation="2"}', ""))
#: Times that its threads gave up a core and that one was taken from them; bytes of resident memory.
SWITCHES, PREEMPTIONS, RESIDENT = "server.vcsw", "server.icsw", "server.rss_bytes"
#: Cores on which the process may run, and the number of its processes.
CORES, PROCESSES = "server.cores", "server.processes"
#: Threads in ``futex`` by code address, the most at one address, those at the interpreter's lock; threads that wait
#: for events like an event loop. Zeros are omitted, except for the last. Of these threads, how many do something else
#: from time to time. Threads that sleep; by call, those that waited for events before and wait in another call now.
FUTEX, ONE_ADDRESS, INTERPRETER, EPOLL = "server.futex.", "server.futex_one", "server.futex_python", "server.epoll"
LOOPS, SLEEP, LOOP_IN = "server.loops", "server.sleep", "server.loop_in."
#: By number of a thread, its time on a core since the previous reading; omitted if it hardly ran. A new thread takes
#: the lowest free number.
THREAD = "server.thread."
#: By the client's port, the process that holds the other end of its connection from then on.
CONNECTION = "connection."
#: Among the series of one of several processes, time of all of them on cores.
WHOLE_CPU = "server.all.cpu_ns"


def of_process(pid: int, series: str = "server.") -> str:
    """The series of one of several processes, such as ``pid.4711.cpu_ns`` of ``server.cpu_ns``."""
    return f"pid.{pid}.{series.removeprefix('server.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A growing counter of the service's process, read every few milliseconds."""

    at_ns: Floats
    value: Floats

    @classmethod
    def of(cls, samples: Columns, name: str) -> Counter:
        """The counter's readings, empty if it was not read."""
        keep = samples["series"] == name if len(samples["series"]) else np.zeros(0, bool)
        return cls(at_ns=samples["t_ns"][keep].astype(np.float64), value=samples["value"][keep].astype(np.float64))

    @property
    def known(self) -> bool:
        """True if there are at least two readings."""
        return len(self.at_ns) > 1

    @property
    def total(self) -> float:
        """Growth from the first reading to the last; zero if it was not read."""
        return float(self.value[-1] - self.value[0]) if len(self.value) else 0.0

    def grown(self, start: Ints, end: Ints) -> Floats:
        """Growth over each interval, interpolated linearly between readings; zero if it was not read."""
        return np.maximum(self.at(end) - self.at(start), 0.0)

    def at(self, times: Ints | Floats) -> Floats:
        """Value at each time, interpolated linearly between readings; zero if it was not read."""
        if not self.known:
            return np.zeros(len(times))
        return np.asarray(np.interp(times.astype(np.float64), self.at_ns, self.value), dtype=np.float64)

    def seen(self, start: Ints, end: Ints) -> Floats:
        """The part of each interval between the first reading and the last; zero if it was not read."""
        if not self.known:
            return np.zeros(len(start))
        begin, stop = (np.clip(times, self.at_ns[0], self.at_ns[-1]) for times in (start, end))
        return np.asarray(np.maximum(stop - begin, 0.0), dtype=np.float64)

    def grown_around(self, start: Ints, end: Ints) -> Floats:
        """Growth from the reading before each interval to the one after it; zero if it was not read."""
        if not self.known:
            return np.zeros(len(start))
        before = np.maximum(np.searchsorted(self.at_ns, start, side="right") - 1, 0)
        after = np.minimum(np.searchsorted(self.at_ns, end), len(self.at_ns) - 1)
        return np.asarray(np.maximum(self.value[after] - self.value[before], 0.0), dtype=np.float64)

    def apportioned(self, end: Ints, wanted: Ints, most: Floats) -> Ints:
        """What the counter, if it is read rarely, explains of each request's time.

        The growth between two readings is divided among the requests that ended then, as far as they ask for it.

        :param wanted: ``(n,)`` nanoseconds that each has to explain; ``most`` the growth around it.
        """
        asked = np.minimum(wanted, most)
        if not self.known:
            return np.zeros(len(end), np.int64)
        step = np.searchsorted(self.at_ns, end)
        total = np.bincount(step, weights=asked, minlength=len(self.at_ns) + 1)
        there = np.zeros(len(total))
        np.maximum.at(there, step, most)
        share = np.divide(there, total, out=np.ones(len(total)), where=total > there)
        return np.asarray(np.rint(asked * share[step]), dtype=np.int64)


def by_name(samples: Columns) -> dict[str, tuple[Ints, Floats]]:
    """Times and values of each series."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(samples["series"].tolist()):
        found.setdefault(name, []).append(row)
    return {name: (samples["t_ns"][where], samples["value"][where]) for name, where in found.items()}


def series_names(samples: Columns, prefix: str) -> list[str]:
    """The names of the series that begin so, sorted."""
    return sorted(name for name in set(samples["series"].tolist()) if name.startswith(prefix))


def at_readings(samples: Columns, name: str, times: Floats) -> Floats:
    """A series' value at each of these readings; zero where it has none."""
    found, values = Counter.of(samples, name), np.zeros(len(times))
    values[np.minimum(np.searchsorted(times, found.at_ns), len(times) - 1)] = found.value
    return values


def cumulative(at_ns: Floats, grown: Floats) -> Counter:
    """The counter that grew by so much between each two readings."""
    return Counter(at_ns=at_ns, value=np.concatenate([[0.0], np.cumsum(grown)]))


class ServiceProcess:
    """Counters of the process, and requests that it served side by side, by the series of a record.

    :param background: series of the threads that serve no request.
    :ivar cpu: time of its threads on cores; ``delay`` their run-queue delay; ``threads`` their number.
    :ivar begun: ``(n,)`` when these requests began, in ascending order; ``ended`` likewise.
    :ivar serving: time on cores of the threads that serve requests; ``collected`` of those that stop all others.
    :ivar step: ``(k - 1,)`` time between readings of ``cpu``; ``ran`` time on cores and ``waited`` run-queue delay
        that was counted then; ``there`` the mean number of requests.
    """

    def __init__(self, samples: Columns, begun: Ints, ended: Ints, background: tuple[str, ...] = ()) -> None:
        self.cpu, self.delay, self.threads = (Counter.of(samples, name) for name in (CPU, RUN_QUEUE, THREADS))
        times = self.cpu.at_ns
        self.collected = Counter.of(samples, COLLECTED)
        self.begun, self.ended = np.sort(begun), np.sort(ended)
        self.step: Floats = np.diff(times)
        self.ran: Floats = np.diff(self.cpu.value)
        others = np.sum([at_readings(samples, name, times)[1:] for name in background], axis=0)
        self.serving = cumulative(times, np.maximum(self.ran - others, 0.0)) if background else self.cpu
        self.waited: Floats = np.diff(self.delay.at(times))
        self.there = np.diff(_since(self.begun, times) - _since(self.ended, times)) / np.maximum(self.step, 1.0)

    @property
    def known(self) -> bool:
        """True if both its time on cores and its run-queue delay were read."""
        return self.cpu.known and self.delay.known

    def cores(self, start: Ints, end: Ints) -> float:
        """Mean cores that it used or wanted in some intervals."""
        wanted = sum(float(counter.grown(start, end).sum()) for counter in (self.cpu, self.delay))
        return float(wanted / max(int((end - start).sum()), 1))

    def idle(self, start: Ints, end: Ints) -> Ints:
        """``(m,)`` idle nanoseconds in each interval; zero while it was not watched."""
        idle = self.cpu.seen(start, end) - self.cpu.grown(start, end) - self.delay.grown(start, end)
        return np.rint(np.maximum(idle, 0.0)).astype(np.int64)

    def delayed(self, start: Ints, end: Ints) -> Ints:
        """``(m,)`` nanoseconds of each interval in which its request was runnable without a core.

        The process is idle for at least :meth:`least_idle` of it, and its run-queue delay is divided among the
        requests that were there.
        """
        if not self.cpu.known:
            return np.zeros(len(start), np.int64)
        seen, ran, waited = (each(start, end) for each in (self.cpu.seen, self.serving.grown, self.delay.grown))
        idle = np.maximum(seen - self.cpu.grown(start, end) - waited, self.least_idle(start, end))
        delayed = (seen - idle) * np.divide(waited, ran + waited, out=np.zeros(len(ran)), where=ran + waited > 0)
        if len(self.begun):
            delayed = np.minimum(delayed, self.delay_of_each.grown(start, end))
        return np.rint(delayed).astype(np.int64)

    def least_idle(self, start: Ints, end: Ints) -> Ints:
        """``(m,)`` least idle nanoseconds of a request in each interval that the counters show.

        The kernel counts a wait for a core when it ends, and time on a core at a tick, so all that was counted from
        the reading before the interval to the one after it may belong to it. The last wait of a thread that ended is
        never read. If the request was there in much idle time, it is taken to be idle for the same share of the time
        that it spent with busy others: while it sleeps, they still run and wait for cores. Not while more ran than
        others usually need: that may be its own.
        """
        if not self.known:
            return np.zeros(len(start), np.int64)
        seen = self.cpu.seen(start, end)
        idle = np.maximum(seen - self.cpu.grown_around(start, end) - self.delay.grown_around(start, end), 0.0)
        unread = 0.0
        if np.count_nonzero(np.diff(self.threads.value) < 0) > _COME_AND_GO * len(start):
            unread = max(2 * float(np.diff(self.delay.value).max()), _MUCH_IDLE_NS)
        idle[idle < unread] = 0.0
        alone = self._wanted_alone.grown(start, end)
        share = np.divide(idle, idle + alone, out=np.zeros(len(idle)), where=idle > 0)
        others = np.searchsorted(self.begun, end) - np.searchsorted(self.ended, start) - 1
        own = self.cpu.grown(start, end) - others * self.typical_work
        likely = np.clip(share * seen, idle, np.maximum(seen - np.maximum(own, 0.0), idle))
        least = np.rint(np.where(idle < _MUCH_IDLE_NS, idle, likely))
        return np.asarray(least, dtype=np.int64)

    @cached_property
    def _wanted_alone(self) -> Counter:
        """Time on a core and run-queue delay while at most one request was there."""
        low, high = self.cpu.at_ns[:-1], self.cpu.at_ns[1:]
        # The work of a request may be counted in the reading after its end.
        before = np.concatenate([low[:1], low[:-1]])
        there = np.searchsorted(self.begun, high) - np.searchsorted(self.ended, before)
        wanted = np.diff(self.cpu.value + self.delay.at(self.cpu.at_ns))
        return cumulative(self.cpu.at_ns, np.where(there <= 1, wanted, 0.0))

    def follows(self, moments: Ints) -> bool:
        """True unless it is mostly idle and runs no more while requests come and go, so that it serves none of them.

        :param moments: when requests came and ended.
        """
        seen = np.histogram(moments, self.cpu.at_ns)[0] if self.cpu.known else np.zeros(0)
        if not len(seen) or self.ran.sum() > _BUSY * self.step.sum():
            return True
        varied = np.ptp(seen) and np.ptp(self.ran)
        return bool(varied and np.corrcoef(seen, self.ran)[0, 1] * math.sqrt(len(seen)) > SURE)

    @cached_property
    def delay_of_each(self) -> Counter:
        """The run-queue delay, of each reading in equal parts for the requests that were there.

        Threads that each serve one request wait for a core apart; a thread that serves several, such as an event
        loop's, delays all of them (:attr:`most_at_once`). The kernel counts a wait when it ends.
        """
        times = self.cpu.at_ns
        there = np.searchsorted(self.begun, times[1:]) - np.searchsorted(self.ended, times[:-1])
        threads = np.clip(there, 1.0, self.most_at_once)
        room = threads * self.step - np.diff(self.serving.value)
        return cumulative(times, _when_waited(self.waited, room, there) / threads)

    @cached_property
    def most_at_once(self) -> float:
        """The most threads that ran or wanted a core at once, at least 1; infinite if no limit shows.

        It shows if the process never runs more than one thread, as an event loop does, or while far more requests
        have unfinished work than threads run or want a core. If the process is idle meanwhile, the requests wait for
        something else.
        """
        unfinished = self._unfinished()
        busy = np.minimum(self.ran + _when_waited(self.waited, self.step - self.ran, self.there), self.step)
        for requests in (self.there, unfinished):
            several = requests >= _SEVERAL
            if np.count_nonzero(several) < _LEAST_READINGS:
                return float("inf")
            crowded = requests >= np.quantile(requests[several], _CROWDED)
            if float(busy[crowded].sum()) < _BUSY * float(self.step[crowded].sum()):
                return float("inf")
            most = max(float((self.ran + self.waited)[crowded].sum() / self.step[crowded].sum()), 1.0)
            if requests is self.there and most <= _SINGLE:
                return 1.0
        return float("inf") if most > _LIMITED * float(unfinished[crowded].mean()) else most

    def _unfinished(self) -> Floats:
        """Requests at each reading whose work is not finished, if all need the same; at most those there."""
        there, work = self.there, self.typical_work
        left = np.searchsorted(self.begun, self.cpu.at_ns[1:]) - np.cumsum(self.ran) / max(work, 1.0)
        begun = np.maximum.accumulate(np.where(there == 0, np.arange(len(there)), 0))
        return np.clip(left - left[begun], 0.0, np.maximum(there, 0.0)) if work else np.zeros(len(there))

    @cached_property
    def typical_work(self) -> float:
        """On-CPU time of a typical request: the median over stretches in which some request was there."""
        busy = self.there > 0
        busy[1:] |= busy[:-1]  # work is counted at the kernel's next tick
        edges = np.flatnonzero(np.diff(np.concatenate([[False], busy, [False]]).astype(np.int8)))
        stretches = np.stack([edges[::2], edges[1::2]])
        came = np.diff(np.searchsorted(self.begun, self.cpu.at_ns[stretches]), axis=0)[0]
        spent = np.diff(np.concatenate([[0.0], np.cumsum(self.ran)])[stretches], axis=0)[0]
        each, came = spent[came > 0] / came[came > 0], came[came > 0]
        if not len(each):
            return 0.0
        order = np.argsort(each)
        below = np.cumsum(came[order])
        return float(each[order][np.searchsorted(below, below[-1] / 2)])


def _since(moments: Ints, times: Floats) -> Floats:
    """The time since all moments before each time, summed up."""
    count = np.searchsorted(moments, times, side="right")
    return np.asarray(count * times - np.concatenate([[0.0], np.cumsum(moments.astype(np.float64))])[count])


def _when_waited(counted: Floats, room: Floats, there: Ints | Floats) -> Floats:
    """Run-queue delay by reading; what exceeds the ``room`` for it began before, with requests there."""
    waited, earlier = [], 0.0
    readings = zip(counted.tolist(), room.tolist(), there.tolist(), strict=True)
    for grown, most, requests in reversed(list(readings)):
        pending = earlier + grown if requests > 0 else 0.0
        waited.append(min(pending, max(most, 0.0)))
        earlier = pending - waited[-1]
    return np.array(waited[::-1], dtype=np.float64)
