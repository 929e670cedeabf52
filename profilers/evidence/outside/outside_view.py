"""A service behind an address, laid out like a runner's record as far as it is visible from outside.

The client knows when a request was sent and when its answer came. The time between is one wait, unless the service
behaves as one queue in front of a fixed number of servers that take requests in order, one at a time or in batches:
then the times of answers show which request waited behind which. That is tested, not assumed; if it does not hold,
the queue is unknown and the whole wait is service time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.outside.service_process import ServiceProcess
from latfix.queueing.inference.batch_inference import Rule
from latfix.queueing.inference.queue_inference import starts
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, Columns
from latfix.stages import OUTSIDE_STAGES

#: Column of requests, if each of several processes has a line of time of its own
#: (:mod:`latfix.profilers.evidence.outside.serving_processes`): by how much theirs is later than the run's.
MOVED = "moved_ns"
#: Linux delays an acknowledgment by 40 ms; its timer ticks every 4 ms, plus a little.
_DELAYED_ACK_NS, _DELAYED_ACK_TICK_NS = 39_500_000, 6_000_000
#: A growing backlog: its requests at the end, stretches of the run, and the share of arrivals that each leaves over.
_LEAST_PILED, _STRETCHES, _UNANSWERED = 20, 4, 0.05
#: Least number and share of answers with such a wait, largest share slightly below it, and most that is computed.
_LEAST, _MOST_ANSWERS, _SHARP, _COMPUTED = 20, 0.3, 0.1, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a service behind an address takes its requests, as the times of its answers show.

    :param servers: behind one queue; 0 if unknown.
    :param rule: how they gather requests in batches; ``None`` if they serve one at a time.
    :param outside_ns: time of a request before and after its server, which others may occupy then.
    :param until_first: a server is free after the first byte of an answer: the last may wait for an acknowledgment.
    """

    servers: int = 0
    rule: Rule | None = None
    outside_ns: int = 0
    until_first: bool = False

    @property
    def one_at_a_time(self) -> bool:
        """True if a request or batch is never beside another: a single server, and hardly any time outside of it."""
        return self.servers == 1 and not self.outside_ns


def presence(rows: Columns) -> tuple[Ints, Ints]:
    """When each request reached the service, and its last byte; nanoseconds on the line of time of its process."""
    came: Ints = rows["arrival_ns"] + rows.get(MOVED, np.zeros(1, np.int64))
    return came + rows["dispatch_ns"] + rows["prepare_ns"], came + rows["latency_ns"]


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


def process_of(record: RunRecord, serving: Serving | None, background: tuple[str, ...] = ()) -> ServiceProcess:
    """The service's process with the requests, or batches, that it served side by side: none with a single server.

    :param record: as from :func:`as_served`.
    :param background: series of the threads that serve no request.
    """
    rows, batches = record.requests, record.batches
    at, end = presence(rows)
    begun = at + rows["queue_ns"]
    if serving is not None and serving.rule is not None:
        begun, end = batches["h2d_end_ns"], batches["compute_end_ns"]
    chosen = slice(0 if serving is not None and serving.one_at_a_time else None)
    return ServiceProcess(record.samples, begun[chosen], end[chosen], background)


def serves(rows: Columns, process: ServiceProcess) -> bool:
    """False if the process does not seem to serve these requests, so that ``--pid`` is wrong."""
    return process.follows(np.concatenate(presence(rows)))


def long_as_acknowledgments(rows: Columns, ok: Bools) -> dict[str, Bools]:
    """By stage, the answers that took as long as a delayed acknowledgment.

    :param rows: as from :func:`as_served`; ``ok`` those that count.
    :returns: masks ``(n,)`` of the time until the first byte (``compute``), and after it (``finish``).
    """
    at, end = presence(rows)
    until_first = end - rows["finish_ns"] - at
    parts = {"compute": (until_first, ok), "finish": (rows["finish_ns"], ok & (rows["chunks"] <= 1))}
    return {
        stage: among & (took >= _DELAYED_ACK_NS) & (took < _DELAYED_ACK_NS + _DELAYED_ACK_TICK_NS)
        for stage, (took, among) in parts.items()
    }


def delayed_acknowledgments(rows: Columns, process: ServiceProcess, ok: Bools) -> tuple[str, ...]:
    """The stages in which a kernel seems to have delayed acknowledgments.

    A message written in two pieces without TCP_NODELAY sends the second piece only after the first was acknowledged
    (RFC 896), which Linux delays by 40 ms. Such waits start sharply there; waits for work do not. After the first
    byte, a service that does not stream has nothing to wait for, so some are enough.

    :param rows: as for :func:`long_as_acknowledgments`, as ``ok``.
    """
    at, end = presence(rows)
    first = end - rows["finish_ns"]
    whole, found = ok & (rows["chunks"] <= 1), []
    parts = {"compute": (at, first, ok), "finish": (first, end, whole & (end - first >= _DELAYED_ACK_NS))}
    as_long = long_as_acknowledgments(rows, ok)
    for stage, (begun, ended, among) in parts.items():
        took, late = ended - begun, as_long[stage]
        just_below = np.count_nonzero(
            ok & (took < _DELAYED_ACK_NS) & (took >= _DELAYED_ACK_NS - _DELAYED_ACK_TICK_NS)
        )
        many = np.count_nonzero(late)
        if many < max(_LEAST, _MOST_ANSWERS * np.count_nonzero(among)) or just_below > _SHARP * many:
            continue
        spans = Intervals.merged(begun[late], took[late])
        # Work of just this length would keep the process busy. It serves others meanwhile, so their sum counts.
        if process.cpu.grown(spans.start, spans.end).sum() <= _COMPUTED * took[late].sum():
            found.append(stage)
    return tuple(found)


def as_served(
    record: RunRecord, serving: Serving, queued: Ints | None = None, background: tuple[str, ...] = ()
) -> RunRecord:
    """The record with waits, batches and service times as if the runner had recorded them.

    :param serving: as from :func:`latfix.profilers.evidence.outside.service_queue.serving_of`.
    :param queued: ``(n,)`` nanoseconds in the queue, as the service reports them; used if the queue is unknown.
    :param background: as for :func:`process_of`.
    """
    rows = dict(record.requests)
    taken = np.asarray(rows["http_status"] > 0)
    if serving.rule is not None and taken.any():
        served = _in_batches(rows, taken, serving.rule)
    else:
        served = _one_by_one(rows, taken, serving, queued)
    # The only known sizes of a request, apart from the traffic's features.
    rows["input_elements"], rows["input_length"] = rows["sent_bytes"], rows["output_tokens"]
    batches = {name: np.zeros(len(served["batch_id"]), np.int64) for name in BATCH_DTYPE.names or ()} | served
    for name in ("collated_ns", "h2d_end_ns"):
        batches[name] = batches["close_ns"]
    batches["free_ns"], batches["d2h_end_ns"] = batches["open_ns"], batches["compute_end_ns"]
    record = replace(record, requests=rows, batches=batches)
    process, (_, end) = process_of(record, serving, background), presence(rows)
    rows["finish_runq_ns"] = process.delayed(end - rows["finish_ns"], end)
    rows["finish_cpu_ns"] = rows["finish_ns"] - rows["finish_runq_ns"]
    begun, first = batches["h2d_end_ns"], batches["compute_end_ns"]
    batches["compute_runq_ns"] = process.delayed(begun, first)
    batches["compute_cpu_ns"] = first - begun - batches["compute_runq_ns"]
    return record


def _one_by_one(rows: Columns, taken: Bools, serving: Serving, queued: Ints | None) -> Columns:
    """Batches of one request each; adds the requests' waits and batches to ``rows``."""
    at, end = presence(rows)
    start, lane = at.copy(), np.zeros(len(at), np.int64)
    if serving.servers:
        chosen = np.flatnonzero(taken)
        first = (end - rows["finish_ns"])[chosen]
        free = (first if serving.until_first else end[chosen]) - serving.outside_ns
        turns, lanes = in_line(at[chosen], free, serving.servers)
        lane[chosen] = lanes
        start[chosen] = np.minimum(turns, np.maximum(first, at[chosen]))
    elif queued is not None:
        start = at + np.where(taken, np.minimum(queued, rows["compute_ns"]), 0)
    rows["queue_ns"] = start - at
    rows["compute_ns"] = rows["compute_ns"] - rows["queue_ns"]
    rows["batch_id"] = np.where(taken, np.arange(len(at)), -1)
    return {
        "batch_id": rows["batch_id"][taken],
        "worker": lane[taken],
        "size": np.ones(np.count_nonzero(taken), np.int64),
        "warmup": rows["warmup"][taken],
        "open_ns": start[taken],
        "close_ns": start[taken],
        "compute_end_ns": (start + rows["compute_ns"])[taken],
        "finish_end_ns": end[taken],
    }


def _in_batches(rows: Columns, taken: Bools, rule: Rule) -> Columns:
    """The inferred batches; adds the requests' waits and batches to ``rows``.

    A batch was computed when its first member was answered: a worker is free then.
    """
    at, end = presence(rows)
    order = np.flatnonzero(taken)
    order = order[np.argsort(at[order], kind="stable")]
    came, first_byte = at[order], np.maximum((end - rows["finish_ns"])[order], at[order])
    found = rule.batches(came, first_byte - came)
    number = np.repeat(np.arange(len(found.first)), found.size(len(order)))
    ended = np.maximum(found.end_ns, came[found.first])
    begun = np.clip(found.begin_ns, came[found.first], ended)
    opened = np.minimum(found.free_ns, begun)
    rows["batch_id"] = np.full(len(at), -1, np.int64)
    for name in ("queue_ns", "batch_ns"):
        rows[name] = np.zeros(len(at), np.int64)
    rows["batch_id"][order] = number
    rows["queue_ns"][order] = np.clip(opened[number] - came, 0, first_byte - came)
    rows["batch_ns"][order] = np.clip(begun[number], came, first_byte) - came - rows["queue_ns"][order]
    rows["compute_ns"] = rows["compute_ns"] - rows["queue_ns"] - rows["batch_ns"]
    return {
        "batch_id": np.arange(len(found.first)),
        "worker": in_line(came[found.first], ended, rule.workers)[1],
        "size": found.size(len(order)),
        "warmup": np.maximum.reduceat(rows["warmup"][order], found.first),
        "open_ns": opened,
        "close_ns": begun,
        "compute_end_ns": ended,
        "finish_end_ns": ended,
    }


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
    own = {"connect": connect, "send": rows["prepare_ns"] - connect, "queue": rows["queue_ns"] + rows["batch_ns"]}
    return {name: own[name] if name in own else rows[f"{stage}_ns"] for name, stage in OUTSIDE_STAGES.items()}
