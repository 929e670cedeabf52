"""The true cost of a run's faults for each request, from the injectors' log and the stamps, never from a diagnosis.

A fault in ``prepare`` delays its request; one in the model delays every member of the batch once; one in ``finish``
delays its request and the members of its batch that are finished later. A garbage collection holds the interpreter
lock: it also delays the work of other threads at that time, and the handover of requests that arrive.

The delay of other requests through the queues is found by serving the run again
(:mod:`latfix.runners.selftest.fixed_queue`) with the logged faults scaled from zero to their length in small steps,
one cause at a time, with the order rotated from step to step: the shares sum exactly to the growth of each wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.errors import InputError
from latfix.run_record.run_record import RunRecord
from latfix.runners.selftest.faults.fault_log import Fault
from latfix.runners.selftest.fixed_queue import FixedQueue, fixed_queue
from latfix.stages import Status
from latfix.statistics.latency_summary import percentile_ns

STEPS = 32
#: Tolerance between the times of a stamp and of a log line.
_SLACK_NS = 2_000_000
#: Kinds that hold the interpreter lock from start to end.
_HOLDS_LOCK = ("gc", "collector", "held_faults")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The true delay by cause and request, in nanoseconds.

    :param causes: ``k`` causes whose faults are known for each request.
    :param index: ``(n,)`` schedule index of each measured request that ended ``ok``.
    :param own: ``(k, n)`` on its own path.
    :param propagated: ``(k, n)`` through the queues.
    :param natural: ``(n,)`` wait due to arrivals alone: without faults, and with no service longer than typical.
    :param tail: ``(n,)`` true for requests in the tail.
    :param faults: number of faults within the run, by cause; ``kept``: of those large enough to count.
    """

    causes: tuple[str, ...]
    index: Ints
    own: Ints
    propagated: Floats
    natural: Ints
    tail: Bools
    faults: dict[str, int]
    kept: dict[str, int]

    def tail_ms(self, cause: str) -> float:
        """Mean of own and propagated over the tail; 0 for a cause that was not injected."""
        if cause not in self.causes or not self.tail.any():
            return 0.0
        k = self.causes.index(cause)
        return float((self.own[k] + self.propagated[k])[self.tail].mean()) / 1e6

    def natural_tail_ms(self) -> float:
        """Mean over the tail of the wait due to arrivals alone."""
        return float(self.natural[self.tail].mean()) / 1e6 if self.tail.any() else 0.0


@dataclass(slots=True)
class _Extra:
    """The time that faults added to each row and each batch, by cause: ``(k, rows)`` or ``(k, batches)``."""

    lag: Ints
    prepare: Ints
    model: Ints
    finish: Ints
    batch: Ints


def find_truth(record: RunRecord, faults: Sequence[Fault], percentile: float, *, least_ns: int) -> Truth:
    """Join a run with its faults.

    :param percentile: start of the tail.
    :param least_ns: a shorter fault does not count as injected, but its time does.
    :raises InputError: the run is incomplete.
    """
    rows = record.requests
    queue = fixed_queue(record)
    t0 = _start_ns(record)
    ended = int((rows["arrival_ns"] + rows["latency_ns"]).max(initial=0))
    struck = [(fault, _row_of(record, fault)) for fault in faults]
    within = [
        (fault, row)
        for fault, row in struck
        if row is not None or (not fault.request and fault.end_ns > t0 and fault.start_ns < t0 + ended)
    ]
    causes = tuple(sorted({fault.cause for fault, row in within if row is not None or fault.kind in _HOLDS_LOCK}))
    extra = _extra(record, queue, causes, within)
    service = np.array([_per_batch(queue, (extra.model + extra.finish)[k]) for k in range(len(causes))])
    service = service.reshape(extra.batch.shape).astype(np.int64) + extra.batch
    less = extra.lag[:, queue.rows], extra.prepare[:, queue.rows], service
    shares = share_waits(queue, *less)
    propagated = np.zeros((len(causes), len(rows["index"])))
    natural = np.zeros(len(rows["index"]), dtype=np.int64)
    propagated[:, queue.rows] = shares
    natural[queue.rows] = queue.typical(*(part.sum(axis=0) for part in less))
    own = extra.lag + extra.prepare + _own_in_batch(record, extra.model, extra.finish)
    inside = queue.batch >= 0
    own[:, queue.rows[inside]] += extra.batch[:, queue.batch[inside]]
    ok = record.measured & (rows["status"] == Status.OK)
    latency = rows["latency_ns"][ok]
    return Truth(
        causes=causes,
        index=rows["index"][ok],
        own=own[:, ok],
        propagated=propagated[:, ok],
        natural=natural[ok],
        tail=np.asarray(latency >= percentile_ns(latency, percentile)),
        faults=_strikes([fault for fault, _ in within]),
        kept=_strikes([fault for fault, _ in within if fault.ns >= least_ns]),
    )


def _start_ns(record: RunRecord) -> int:
    """The start of the run's clock on the performance counter's."""
    if record.meta.t0_ns is None:
        raise InputError(f"{record.folder}: found a run that did not reach its end; expected a complete one to score")
    return record.meta.t0_ns


def _strikes(faults: Sequence[Fault]) -> dict[str, int]:
    """The number of faults by cause; growth is one, regardless of how many requests it slows down."""
    growing = {fault.cause for fault in faults if fault.kind == "growth"}
    counts = Counter(fault.cause for fault in faults if fault.kind != "growth")
    return {**counts, **dict.fromkeys(growing, 1)}


def _row_of(record: RunRecord, fault: Fault) -> int | None:
    """The row of the request that a fault struck; ``None`` if that was outside the measured run.

    Warm-up sends the first requests too, under the same ids, so the fault's time must be within the request's.
    """
    rows = record.requests
    if not fault.request:
        return None
    position = int(fault.request[1:])
    row = int(np.searchsorted(rows["index"], position))
    if row >= len(rows["index"]) or rows["index"][row] != position or rows["warmup"][row]:
        return None
    since = fault.start_ns - _start_ns(record) - int(rows["arrival_ns"][row])
    inside = -_SLACK_NS <= since <= int(rows["latency_ns"][row]) + _SLACK_NS
    return row if inside else None


def _extra(
    record: RunRecord, queue: FixedQueue, causes: tuple[str, ...], within: Sequence[tuple[Fault, int | None]]
) -> _Extra:
    k, rows, batches = len(causes), len(record.requests["index"]), len(queue.service)
    extra = _Extra(*(np.zeros((k, size), dtype=np.int64) for size in (rows, rows, rows, rows, batches)))
    for fault, row in within:
        if fault.cause not in causes:
            continue
        cause = causes.index(fault.cause)
        if row is not None:
            {"prepare": extra.prepare, "model": extra.model, "finish": extra.finish}[fault.where][cause, row] += (
                fault.ns
            )
        if fault.kind in _HOLDS_LOCK:
            _hold_others(record, queue, extra, cause, fault, row)
    return extra


def _hold_others(
    record: RunRecord, queue: FixedQueue, extra: _Extra, cause: int, fault: Fault, row: int | None
) -> None:
    """Add the delay that a fault with the interpreter lock causes in other threads."""
    rows = record.requests
    start, end = (point - _start_ns(record) for point in (fault.start_ns, fault.end_ns))
    arrived = (rows["arrival_ns"] >= start) & (rows["arrival_ns"] < end) & record.measured
    extra.lag[cause] += np.where(
        arrived, np.minimum(rows["dispatch_ns"] + rows["intake_ns"], end - rows["arrival_ns"]), 0
    )
    begun = queue.handed + (rows["prepare_wait_ns"] - rows["intake_ns"])[queue.rows]
    held = _overlap(start, end, begun, begun + queue.prepare)
    own = (queue.rows == row) & (fault.where == "prepare")
    extra.prepare[cause, queue.rows] += np.where(own, 0, held)
    # A worker continues until its operator ends and it needs the lock again.
    held = np.maximum(_overlap(start, end, queue.compute_start, queue.compute_end) - queue.operator_ns, 0)
    if fault.where in ("model", "finish"):
        held[np.setdiff1d(queue.batch[queue.rows == row], [-1])] = 0
    extra.batch[cause] += held


def _overlap(start: int, end: int, first: Ints, last: Ints) -> Ints:
    return np.asarray(np.maximum(np.minimum(last, end) - np.maximum(first, start), 0), dtype=np.int64)


def _per_batch(queue: FixedQueue, extra: Ints) -> Ints:
    """The time that a batch's members' faults add to its service."""
    total = np.zeros(len(queue.service), dtype=np.int64)
    inside = queue.batch >= 0
    np.add.at(total, queue.batch[inside], extra[queue.rows[inside]])
    return total


def _own_in_batch(record: RunRecord, model: Ints, finish: Ints) -> Ints:
    """For each member of a batch: the batch's model faults, and finish faults of itself and of earlier members."""
    rows = record.requests
    own = np.zeros_like(model)
    for batch_id in np.unique(rows["batch_id"][(model + finish).any(axis=0)]).tolist():
        if batch_id < 0:
            continue
        members = np.flatnonzero(rows["batch_id"] == batch_id)
        members = members[np.argsort(rows["finish_wait_ns"][members], kind="stable")]
        own[:, members] = model[:, members].sum(axis=1, keepdims=True) + np.cumsum(finish[:, members], axis=1)
    return own


def share_waits(queue: FixedQueue, lag: Ints, prepare: Ints, service: Ints, *, steps: int = STEPS) -> Floats:
    """Divide the growth of every wait among causes.

    :param lag: ``(k, m)`` nanoseconds by which each cause delayed each request's handover.
    :param prepare: ``(k, m)`` nanoseconds added to its prepare.
    :param service: ``(k, b)`` nanoseconds added to each batch's service.
    :returns: ``(k, m)`` shares that sum to the growth.
    """
    causes = len(prepare)
    shares = np.zeros((causes, len(queue.rows)))
    alpha = np.zeros(causes)

    def waits() -> Ints:
        left = 1.0 - alpha
        return queue.waits(*(np.rint(left @ part).astype(np.int64) for part in (lag, prepare, service)))

    before = waits()
    for step in range(steps):
        for turn in range(causes):
            k = (step + turn) % causes
            alpha[k] = (step + 1) / steps
            after = waits()
            shares[k] += after - before
            before = after
    return shares
