"""A service behind an address, laid out like a runner's record as far as it is visible from outside.

The client knows when a request was sent and when its answer came. The time between is one wait, unless the service
behaves as one queue in front of a fixed number of servers that take requests in order, one at a time: then the times
of answers show which request waited behind which. That is tested, not assumed; if it does not hold, the queue is
unknown and the whole wait is service time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.queue_inference import starts
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, Columns
from latfix.stages import OUTSIDE_STAGES

#: Linux delays an acknowledgment by 40 ms; its timer ticks every 4 ms, plus a little.
_DELAYED_ACK_NS, _DELAYED_ACK_TICK_NS = 39_500_000, 6_000_000
#: A growing backlog: its requests at the end, stretches of the run, and the share of arrivals that each leaves over.
_LEAST_PILED, _STRETCHES, _UNANSWERED = 20, 4, 0.05
#: Least number and share of answers with such a wait, largest share slightly below it, and least idle share.
_LEAST, _MOST_ANSWERS, _SHARP, _IDLE = 20, 0.3, 0.1, 0.8

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

CPU, RUN_QUEUE, THROTTLED = "server.cpu_ns", "server.runq_ns", "server.throttled_ns"
THREADS = "server.threads"
#: Page faults, and waits of its threads for disks.
MINOR_FAULTS, MAJOR_FAULTS, DISK = "server.minflt", "server.majflt", "server.disk_ns"
#: Full collections of CPython and collections of another runtime, as prometheus' client libraries count them.
COLLECTIONS = ('metrics.python_gc_collections_total{generation="2"}', "metrics.python_gc_collections_total")
#: Cores on which the process may run.
CORES = "server.cores"
#: Threads in ``futex`` by code address, the most at one address, those at the interpreter's lock; threads that wait
#: for events like an event loop. Zeros are omitted, except for the last.
FUTEX, ONE_ADDRESS, INTERPRETER, EPOLL = "server.futex.", "server.futex_one", "server.futex_python", "server.epoll"


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


def presence(rows: Columns) -> tuple[Ints, Ints]:
    """When each request reached the service, and its last byte; nanoseconds."""
    return rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"], rows["arrival_ns"] + rows["latency_ns"]


def piles_up(at: Ints, end: Ints | Floats) -> bool:
    """True if fewer requests end than arrive until the last one has come: a backlog that grows all the time.

    A dependency that becomes slow adds requests in flight once, then as many end as arrive.

    :param at: ``(n,)`` as from :func:`presence`, as ``end``.
    """
    begin, ended = np.sort(at), np.sort(end)
    if len(begin) < _LEAST_PILED:
        return False
    parts = np.linspace(begin[0], begin[-1], _STRETCHES + 1)
    there = np.searchsorted(begin, parts) - np.searchsorted(ended, parts)
    came = np.maximum(np.diff(np.searchsorted(begin, parts)), 1)
    grew = np.diff(there)[1:] / came[1:]  # the first stretch fills the service
    return bool(there[-1] >= _LEAST_PILED and (grew > _UNANSWERED).all())


def divided(samples: Columns, start: Ints, end: Ints, served: tuple[Ints, Ints] | None = None) -> tuple[Ints, Ints]:
    """Run-queue delay and idle time of the service's process in each interval, nanoseconds.

    It was on a core for the rest. Both are zero while it was not watched.

    :param served: as from :func:`side_by_side`; idle time is then at least :func:`least_idle`, and the process's
        run-queue delay is divided among the requests that were there.
    """
    cpu, delay = Counter.of(samples, CPU), Counter.of(samples, RUN_QUEUE)
    wall = cpu.seen(start, end)
    if not cpu.known:
        return np.zeros(len(wall), np.int64), np.zeros(len(wall), np.int64)
    ran, waited = cpu.grown(start, end), delay.grown(start, end)
    idle = np.maximum(wall - ran - waited, 0.0)
    if served is not None:
        idle = np.maximum(idle, least_idle(samples, start, end, served))
    share = np.divide(waited, ran + waited, out=np.zeros(len(wall)), where=ran + waited > 0)
    delayed = (wall - idle) * share
    if served is not None and len(served[0]):
        delayed = np.minimum(delayed, delay_of_each(samples, *served).grown(start, end))
    return np.rint(delayed).astype(np.int64), np.rint(idle).astype(np.int64)


def side_by_side(start: Ints, end: Ints, servers: int) -> tuple[Ints, Ints]:
    """When requests of the run were served side by side: none behind a single server."""
    return (start, end) if servers != 1 else (start[:0], end[:0])


def least_idle(samples: Columns, start: Ints, end: Ints, served: tuple[Ints, Ints]) -> Ints:
    """Least idle time of each request in its interval that the process's counters show, nanoseconds.

    The kernel counts a wait for a core when it ends, and time on a core at a tick, so all that was counted from the
    reading before the interval to the one after it may belong to it. The last wait of a thread that ended is never
    read. If the request was there in much idle time, it is taken to be idle for the same share of the time that it
    spent with busy others: while it sleeps, they still run and wait for cores.

    :param served: as from :func:`side_by_side`.
    """
    cpu, delay = Counter.of(samples, CPU), Counter.of(samples, RUN_QUEUE)
    if not (cpu.known and delay.known):
        return np.zeros(len(start), np.int64)
    wall = cpu.seen(start, end)
    idle = np.maximum(wall - cpu.grown_around(start, end) - delay.grown_around(start, end), 0.0)
    unread = 0.0
    if np.count_nonzero(np.diff(Counter.of(samples, THREADS).value) < 0) > _COME_AND_GO * len(start):
        unread = max(2 * float(np.diff(delay.value).max()), _MUCH_IDLE_NS)
    idle[idle < unread] = 0.0
    alone = _wanted_alone(cpu, delay, served).grown(start, end)
    share = np.divide(idle, idle + alone, out=np.zeros(len(idle)), where=idle > 0)
    least = np.rint(np.where(idle < _MUCH_IDLE_NS, idle, share * wall))
    return np.asarray(least, dtype=np.int64)


def _wanted_alone(cpu: Counter, delay: Counter, served: tuple[Ints, Ints]) -> Counter:
    """Time on a core and run-queue delay of the process while at most one request was there."""
    begun, ended = (np.sort(times) for times in served)
    low, high = cpu.at_ns[:-1], cpu.at_ns[1:]
    # The work of a request may be counted in the reading after its end.
    there = np.searchsorted(begun, high) - np.searchsorted(ended, np.concatenate([low[:1], low[:-1]]))
    wanted = np.diff(cpu.value + np.interp(cpu.at_ns, delay.at_ns, delay.value))
    return cumulative(cpu.at_ns, np.where(there <= 1, wanted, 0.0))


def delay_of_each(samples: Columns, at: Ints, end: Ints) -> Counter:
    """The process's run-queue delay, of each reading in equal parts for the requests that were there.

    Threads that each serve one request wait for a core apart; a thread that serves several, such as an event loop's,
    delays all of them (:func:`most_at_once`). The kernel counts a wait when it ends.
    """
    cpu, delay = Counter.of(samples, CPU), Counter.of(samples, RUN_QUEUE)
    begun, ended = np.sort(at), np.sort(end)
    times = cpu.at_ns
    there = np.searchsorted(begun, times[1:]) - np.searchsorted(ended, times[:-1])
    threads = np.clip(there, 1.0, most_at_once(samples, at, end))
    room = threads * np.diff(times) - np.diff(cpu.value)
    return cumulative(times, _when_waited(np.diff(delay.at(times)), room, there) / threads)


def _when_waited(counted: Floats, room: Floats, there: Ints | Floats) -> Floats:
    """Run-queue delay by reading; what exceeds the ``room`` for it began before, with requests there."""
    waited, earlier = counted.copy(), 0.0
    for k in range(len(room) - 1, -1, -1):
        pending = earlier + float(counted[k]) if there[k] > 0 else 0.0
        waited[k] = min(pending, max(float(room[k]), 0.0))
        earlier = pending - waited[k]
    return waited


def cumulative(at_ns: Floats, grown: Floats) -> Counter:
    """The counter that grew by so much between each two readings."""
    return Counter(at_ns=at_ns, value=np.concatenate([[0.0], np.cumsum(grown)]))


def present(times: Floats, at: Ints, end: Ints) -> Floats:
    """Mean number of requests at the service between each two times."""

    def since(moments: Ints) -> Floats:
        ordered = np.sort(moments).astype(np.float64)
        count = np.searchsorted(ordered, times, side="right")
        return np.asarray(count * times - np.concatenate([[0.0], np.cumsum(ordered)])[count])

    return np.asarray(np.diff(since(at) - since(end)) / np.maximum(np.diff(times), 1.0), dtype=np.float64)


def most_at_once(samples: Columns, at: Ints, end: Ints) -> float:
    """The most threads of the process that ran or wanted a core at once, at least 1; infinite if no limit shows.

    It shows if the process never runs more than one thread, as an event loop does, or while far more requests have
    unfinished work than threads run or want a core. If the process is idle meanwhile, the requests wait for something
    else.
    """
    cpu, delay = Counter.of(samples, CPU), Counter.of(samples, RUN_QUEUE)
    times = cpu.at_ns
    there, ran, step = present(times, at, end), np.diff(cpu.value), np.diff(times)
    waited = np.diff(delay.at(times))
    busy = np.minimum(ran + _when_waited(waited, step - ran, there), step)
    unfinished = _unfinished(ran, there, times, at)
    for requests in (there, unfinished):
        several = requests >= _SEVERAL
        if np.count_nonzero(several) < _LEAST_READINGS:
            return float("inf")
        crowded = requests >= np.quantile(requests[several], _CROWDED)
        if float(busy[crowded].sum()) < _BUSY * float(step[crowded].sum()):
            return float("inf")
        most = max(float((ran + waited)[crowded].sum() / step[crowded].sum()), 1.0)
        if requests is there and most <= _SINGLE:
            return 1.0
    return float("inf") if most > _LIMITED * float(unfinished[crowded].mean()) else most


def _unfinished(ran: Floats, there: Floats, times: Floats, at: Ints) -> Floats:
    """Number of requests at each reading whose work is not finished, if all need the same; at most those there."""
    work = typical_work(ran, there, times, at)
    came = np.searchsorted(np.sort(at), times[1:]).astype(np.float64)
    left = came - np.cumsum(ran) / max(work, 1.0)
    begun = np.maximum.accumulate(np.where(there == 0, np.arange(len(there)), 0))
    return np.clip(left - left[begun], 0.0, np.maximum(there, 0.0)) if work else np.zeros(len(there))


def typical_work(ran: Floats, there: Floats, times: Floats, at: Ints) -> float:
    """On-CPU time of a typical request: the median over stretches in which some request was there.

    :param ran: what the process ran between each two ``times``; ``there`` the mean number of requests.
    """
    busy = there > 0
    busy[1:] |= busy[:-1]  # work is counted at the kernel's next tick
    edges = np.flatnonzero(np.diff(np.concatenate([[False], busy, [False]]).astype(np.int8)))
    first, last = edges[::2], edges[1::2]
    came = np.diff(np.searchsorted(np.sort(at), np.stack([times[first], times[last]])), axis=0)[0]
    spent = np.concatenate([[0.0], np.cumsum(ran)])
    each = (spent[last] - spent[first])[came > 0] / came[came > 0]
    if not len(each):
        return 0.0
    order = np.argsort(each)
    below = np.cumsum(came[came > 0][order])
    return float(each[order][np.searchsorted(below, below[-1] / 2)])


def apportioned(counter: Counter, end: Ints, wanted: Ints, most: Floats) -> Ints:
    """What a counter that is read rarely explains of each request's time.

    The growth between two readings is divided among the requests that ended then, as far as they ask for it.

    :param wanted: ``(n,)`` nanoseconds that each has to explain; ``most`` the growth around it.
    """
    asked = np.minimum(wanted, most)
    if not counter.known:
        return np.zeros(len(end), np.int64)
    step = np.searchsorted(counter.at_ns, end)
    total = np.bincount(step, weights=asked, minlength=len(counter.at_ns) + 1)
    there = np.zeros(len(total))
    np.maximum.at(there, step, most)
    share = np.divide(there, total, out=np.ones(len(total)), where=total > there)
    return np.asarray(np.rint(asked * share[step]), dtype=np.int64)


def delayed_acknowledgments(rows: Columns, samples: Columns, ok: Bools) -> str:
    """The part of answers in which a kernel seems to have delayed an acknowledgment.

    A message written in two pieces without TCP_NODELAY sends the second piece only after the first was acknowledged
    (RFC 896), which Linux delays by 40 ms. Such waits start sharply there; waits for work do not.

    :param rows: as from :func:`as_served`; ``ok`` those that count.
    :returns: the part as text, or an empty string.
    """
    at, end = presence(rows)
    first = end - rows["finish_ns"]
    parts = {"to the first byte of": (at, first), "between the first byte and the last of": (first, end)}
    for words, (begun, ended) in parts.items():
        took = ended - begun
        late = ok & (took >= _DELAYED_ACK_NS) & (took < _DELAYED_ACK_NS + _DELAYED_ACK_TICK_NS)
        just_below = np.count_nonzero(
            ok & (took < _DELAYED_ACK_NS) & (took >= _DELAYED_ACK_NS - _DELAYED_ACK_TICK_NS)
        )
        many = np.count_nonzero(late)
        if many < max(_LEAST, _MOST_ANSWERS * np.count_nonzero(ok)) or just_below > _SHARP * many:
            continue
        idle = divided(samples, begun[late], ended[late])[1]
        if not Counter.of(samples, CPU).known or np.median(idle) > _IDLE * _DELAYED_ACK_NS:
            return f"{words} {many / np.count_nonzero(ok):.0%}"
    return ""


def as_served(record: RunRecord, servers: int, queued: Ints | None = None) -> RunRecord:
    """The record with queue waits and service times as if the runner had recorded them.

    :param servers: behind one queue (:func:`latfix.profilers.evidence.outside.lock_waits.servers_of`).
    :param queued: ``(n,)`` nanoseconds in the queue, as the service reports them; used if ``servers`` is 0.
    """
    rows = dict(record.requests)
    at, end = presence(rows)
    taken = np.asarray(rows["http_status"] > 0)
    start, lane = at.copy(), np.zeros(len(at), np.int64)
    if servers:
        chosen = np.flatnonzero(taken)
        turns, lanes = in_line(at[chosen], end[chosen], servers)
        lane[chosen] = lanes
        first = (end - rows["finish_ns"])[chosen]
        start[chosen] = np.minimum(turns, np.maximum(first, at[chosen]))
    elif queued is not None:
        start = at + np.where(taken, np.minimum(queued, rows["compute_ns"]), 0)
    rows["queue_ns"] = start - at
    rows["compute_ns"] = rows["compute_ns"] - rows["queue_ns"]
    rows["batch_id"] = np.where(taken, np.arange(len(at)), -1)
    # The only known sizes of a request, apart from the traffic's features.
    rows["input_elements"], rows["input_length"] = rows["sent_bytes"], rows["output_tokens"]
    answered = start + rows["compute_ns"]
    together = side_by_side(start, end, servers)
    rows["finish_runq_ns"], _ = divided(record.samples, answered, end, together)
    rows["finish_cpu_ns"] = rows["finish_ns"] - rows["finish_runq_ns"]
    batches = _places(rows, record.samples, np.flatnonzero(taken), start, answered, end, lane, together)
    return replace(record, requests=rows, batches=batches)


def _places(
    rows: Columns,
    samples: Columns,
    chosen: Ints,
    start: Ints,
    answered: Ints,
    end: Ints,
    lane: Ints,
    together: tuple[Ints, Ints],
) -> Columns:
    """Each request's service as a batch of one."""
    found = {name: np.zeros(len(chosen), np.int64) for name in BATCH_DTYPE.names or ()}
    begun, first = start[chosen], answered[chosen]
    for name in ("free_ns", "open_ns", "close_ns", "collated_ns", "h2d_end_ns"):
        found[name] = begun
    found["batch_id"], found["worker"] = rows["batch_id"][chosen], lane[chosen]
    found["size"] += 1
    found["warmup"] = rows["warmup"][chosen]
    found["compute_end_ns"] = found["d2h_end_ns"] = first
    found["finish_end_ns"] = end[chosen]
    found["compute_runq_ns"], _ = divided(samples, begun, first, together)
    found["compute_cpu_ns"] = first - begun - found["compute_runq_ns"]
    return found


def in_line(at: Ints, end: Ints, servers: int) -> tuple[Ints, Ints]:
    """Each request's start of service, first come first served, and its server."""
    order = np.argsort(at, kind="stable")
    turn, lane = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    turn[order] = starts(at[order], end[order], servers)
    # Servers become free in order of their ends, and each takes the next request in line.
    free = np.argsort(np.maximum(end, turn)[order], kind="stable").tolist()
    places = list(range(servers))
    for before in free[: max(len(at) - servers, 0)]:
        places.append(places[before])
    lane[order] = places[: len(at)]
    return turn, lane


def stage_values(rows: Columns) -> dict[str, Ints]:
    """Nanoseconds of each stage as the client sees it, by name; their sum is the latency."""
    connect = np.maximum(rows["prepare_ns"] - rows["send_ns"], 0)
    own = {"connect": connect, "send": rows["prepare_ns"] - connect}
    return {name: own[name] if name in own else rows[f"{stage}_ns"] for name, stage in OUTSIDE_STAGES.items()}
