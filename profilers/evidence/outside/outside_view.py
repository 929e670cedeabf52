"""A service behind an address, laid out as a runner's record would be, as far as it can be told from outside.

The client knows when a request was sent and when its answer came. What lies between is one wait, unless the service
behaves as one queue in front of a fixed number of servers that take requests in order and one at a time: then who
waited behind whom follows from when answers came. That is tested, not assumed; where it does not hold, the queue is
not known, and all of the wait is the service's.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, Columns
from latfix.stages import OUTSIDE_STAGES

#: Servers that are tried for; requests that must have waited, and not have waited, for either to be compared.
_MOST_SERVERS, _LEAST = 16, 20
#: Medians and lower deciles of service after a wait and without one, as ratios, between which they are the same.
_SAME_MEDIAN, _SAME_LOW = 0.25, 0.7
#: By how much the latency of those that waited is longer at least, as a share of their wait.
_SHOWN = 0.6
#: Share of the requests in line that may have ended before their turn came.
_OUT_OF_TURN = 0.02
#: Requests whose order is looked at.
_LOOKED_AT = 20_000
#: A wait shorter than this is none: it is the system's own, between two answers.
_TOLERANCE_NS = 50_000

#: Linux puts off an acknowledgement by 40 ms, its timer ticks every 4 ms, and a little comes on top.
_PUT_OFF_NS, _PUT_OFF_TICK_NS = 39_500_000, 6_000_000
#: So many of the answers must have waited so, hardly any a little less, and the process been idle for most of it.
_MOST_ANSWERS, _SHARP, _PUT_OFF_IDLE = 0.3, 0.1, 0.8

CPU, RUN_QUEUE, THROTTLED = "server.cpu_ns", "server.runq_ns", "server.throttled_ns"
#: Threads in ``futex`` by place of the code, most of them at one address, at the interpreter's lock; threads that
#: wait for events as an event loop does. What is zero is left out, but the last.
FUTEX, ONE_ADDRESS, INTERPRETER, EPOLL = "server.futex.", "server.futex_one", "server.futex_python", "server.epoll"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A growing counter of the service's process, read every few milliseconds."""

    at_ns: Floats
    value: Floats

    @classmethod
    def of(cls, samples: Columns, name: str) -> Counter:
        """The counter's readings; none where it was not read."""
        keep = samples["series"] == name if len(samples["series"]) else np.zeros(0, bool)
        return cls(at_ns=samples["t_ns"][keep].astype(np.float64), value=samples["value"][keep].astype(np.float64))

    @property
    def known(self) -> bool:
        """Whether there are readings."""
        return len(self.at_ns) > 1

    def grown(self, start: Ints, end: Ints) -> Floats:
        """By how much it grew over each interval, readings joined by straight lines; zero where it was not read."""
        if not self.known:
            return np.zeros(len(start))
        low, high = (np.interp(at.astype(np.float64), self.at_ns, self.value) for at in (start, end))
        return np.asarray(np.maximum(high - low, 0.0), dtype=np.float64)


def divided(samples: Columns, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """What the service's process did during each interval: ran or wanted to run without a core, or neither.

    :returns: run-queue delay and idle time, nanoseconds; what is left of the interval it was on a core. Both zero
        where it was not watched.
    """
    cpu, delay = Counter.of(samples, CPU), Counter.of(samples, RUN_QUEUE)
    wall = np.maximum(end - start, 0).astype(np.float64)
    if not cpu.known:
        return np.zeros(len(wall), np.int64), np.zeros(len(wall), np.int64)
    ran, waited = cpu.grown(start, end), delay.grown(start, end)
    wanted = np.minimum(ran + waited, wall)
    share = np.divide(waited, ran + waited, out=np.zeros(len(wall)), where=ran + waited > 0)
    return np.rint(wanted * share).astype(np.int64), np.rint(wall - wanted).astype(np.int64)


def late_acknowledgements(rows: Columns, samples: Columns, ok: Bools) -> str:
    """In which part of most answers the client's or the service's kernel seems to have put off an acknowledgement.

    Who writes a message in two pieces without TCP_NODELAY sends the second once the first was acknowledged (RFC 896);
    Linux puts that off by 40 ms. Waits then begin sharply there, which those of work do not.

    :param rows: laid out as served; ``ok`` those that count.
    :returns: the part in words; empty where there is none.
    """
    parts = {
        "to the first byte of": rows["queue_ns"] + rows["compute_ns"],
        "between the first byte and the last of": rows["finish_ns"],
    }
    at = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
    for words, took in parts.items():
        late = ok & (took >= _PUT_OFF_NS) & (took < _PUT_OFF_NS + _PUT_OFF_TICK_NS)
        just_below = np.count_nonzero(ok & (took < _PUT_OFF_NS) & (took >= _PUT_OFF_NS - _PUT_OFF_TICK_NS))
        found = np.count_nonzero(late)
        if found < max(_LEAST, _MOST_ANSWERS * np.count_nonzero(ok)) or just_below > _SHARP * found:
            continue
        idle = divided(samples, at[late], (at + took)[late])[1]
        if not Counter.of(samples, CPU).known or np.median(idle) > _PUT_OFF_IDLE * _PUT_OFF_NS:
            return f"{words} {found / np.count_nonzero(ok):.0%}"
    return ""


def as_served(record: RunRecord, servers: int) -> RunRecord:
    """The record with queue, places of service and what the process did in them.

    :param servers: that one queue feeds (:func:`latfix.profilers.evidence.outside.lock_waits.servers_of`).
    """
    rows = dict(record.requests)
    at = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
    end = rows["arrival_ns"] + rows["latency_ns"]
    taken = np.asarray(rows["http_status"] > 0)
    start, lane = at.copy(), np.zeros(len(at), np.int64)
    if servers:
        chosen = np.flatnonzero(taken)
        turns, lanes = in_line(at[chosen], end[chosen], servers)
        lane[chosen] = lanes
        first = (end - rows["finish_ns"])[chosen]
        start[chosen] = np.minimum(turns, np.maximum(first, at[chosen]))
    rows["queue_ns"] = start - at
    rows["compute_ns"] = rows["compute_ns"] - rows["queue_ns"]
    rows["batch_id"] = np.where(taken, np.arange(len(at)), -1)
    # What there is to say of a request's size, beside the traffic's own features.
    rows["input_elements"], rows["input_length"] = rows["sent_bytes"], rows["output_tokens"]
    answered = start + rows["compute_ns"]
    rows["finish_runq_ns"], _ = divided(record.samples, answered, end)
    rows["finish_cpu_ns"] = rows["finish_ns"] - rows["finish_runq_ns"]
    batches = _places(rows, record.samples, np.flatnonzero(taken), start, answered, end, lane)
    return replace(record, requests=rows, batches=batches)


def _places(
    rows: Columns, samples: Columns, chosen: Ints, start: Ints, answered: Ints, end: Ints, lane: Ints
) -> Columns:
    """Each request's place of service, as a batch of one."""
    found = {name: np.zeros(len(chosen), np.int64) for name in BATCH_DTYPE.names or ()}
    begun, first = start[chosen], answered[chosen]
    for name in ("free_ns", "open_ns", "close_ns", "collated_ns", "h2d_end_ns"):
        found[name] = begun
    found["batch_id"], found["worker"] = rows["batch_id"][chosen], lane[chosen]
    found["size"] += 1
    found["warmup"] = rows["warmup"][chosen]
    found["compute_end_ns"] = found["d2h_end_ns"] = first
    found["finish_end_ns"] = end[chosen]
    found["compute_runq_ns"], _ = divided(samples, begun, first)
    found["compute_cpu_ns"] = first - begun - found["compute_runq_ns"]
    return found


def find_servers(at: Ints, end: Ints) -> int:
    """How many servers one queue feeds, each with one request at a time, in order of arrival; 0 where none fits.

    With as many servers as there are, a request that waited takes as long from its turn on as one that found a free
    server. With fewer it seems to take less: others were served beside it. With more it seems to take longer.

    :param at: ``(n,)`` when each request was at the service; ``end`` when it was answered.
    """
    order = np.argsort(at, kind="stable")[:_LOOKED_AT]
    at, end = at[order], end[order]
    fits = []
    for servers in range(1, _MOST_SERVERS + 1):
        turn, _ = in_line(at, end, servers)
        misfit = _misfit(at, end, turn)
        if misfit is None:
            continue
        fits.append((misfit, servers))
        if servers > 2 * fits[0][1]:
            break
    return min(fits)[1] if fits else 0


def in_line(at: Ints, end: Ints, servers: int) -> tuple[Ints, Ints]:
    """When each request's turn came, first come first served, and at which server."""
    turn, lane = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    free = [(-(2**62), k) for k in range(servers)]
    for k in np.argsort(at, kind="stable").tolist():
        since, place = heapq.heappop(free)
        turn[k], lane[k] = max(int(at[k]), since), place
        heapq.heappush(free, (max(int(end[k]), since), place))
    return turn, lane


def _misfit(at: Ints, end: Ints, turn: Ints) -> float | None:
    """How far service after a wait differs from service without one; ``None`` where it is another kind of queue."""
    waited = turn - at > _TOLERANCE_NS
    service = (end - turn).astype(np.float64)
    if min(np.count_nonzero(waited), np.count_nonzero(~waited)) < _LEAST:
        return None
    if np.count_nonzero(service < 0) > _OUT_OF_TURN * np.count_nonzero(waited):
        return None
    low, middle = (np.quantile(service[waited], q) / max(np.quantile(service[~waited], q), 1.0) for q in (0.1, 0.5))
    if low <= 0 or middle <= 0 or abs(np.log(middle)) > _SAME_MEDIAN or abs(np.log(low)) > _SAME_LOW:
        return None
    # Waiting shows in the latency, or nobody waited.
    longer = np.median((end - at)[waited]) - np.median((end - at)[~waited])
    if longer < _SHOWN * np.median((turn - at)[waited]):
        return None
    return float(abs(np.log(middle)))


def stage_values(rows: Columns) -> dict[str, Ints]:
    """The stages of a request as its client sees them, by name, nanoseconds; together its latency."""
    connect = np.maximum(rows["prepare_ns"] - rows["send_ns"], 0)
    own = {"connect": connect, "send": rows["prepare_ns"] - connect}
    return {name: own[name] if name in own else rows[f"{stage}_ns"] for name, stage in OUTSIDE_STAGES.items()}
