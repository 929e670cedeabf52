"""The two queues of a recorded run, served again with less work, with the same servers, order and batches.

A small model of the service, written for the self-test's ground truth and not shared with the diagnosis. Prepare
threads and workers take the same requests as in the recorded run, in the same order; batches keep their members.
Service begins when the server is free and all its requests have arrived, plus the wait of the recorded run beyond
that (a batch window, a late wake-up). With one prepare thread and batches of one this is Lindley's recursion, and
exact; with the measured service times it reproduces the measured waits.

With several prepare threads, requests overtake one that is slow there. Without its fault it would be served before
them: batches of one are therefore served in the order in which they are enqueued.

With larger batches, a request that arrives earlier than recorded need not wait for its recorded batch: it begins with
the first batch that has room or that takes a later request, or, if a worker is idle, after the batch window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.run_record.run_record import RunRecord

#: Assumed number of operators of equal length in the model.
_OPERATORS = 16
#: Two requests that are enqueued within this time may be served in either order.
_TOGETHER_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedQueue:
    """The queues of a run. All times in nanoseconds from the start of the run.

    :param rows: ``(m,)`` prepared rows of the record, in the order in which prepare threads took them.
    :param batch: ``(m,)`` index of each row's batch among ``b`` batches in order of closing; -1 for none.
    :param handed: ``(m,)`` when it was handed over.
    :param prepare: ``(m,)`` measured service in prepare; ``prepare_hold``: the wait beyond server and arrival.
    :param thread: ``(m,)`` the prepare thread; ``enqueued``: when it was prepared.
    :param service: ``(b,)`` measured service from the batch's closing on; ``hold`` and ``worker`` likewise;
        ``compute_start`` and ``compute_end``: when the model was called and returned.
    :param operator_ns: half the duration of a typical operator of the model: how long a thread in the model still
        runs after another thread took the interpreter lock.
    :param most: maximum batch size; ``workers``: their number; ``window``: the batch window.
    :param first_come: batches closed in the order in which they were enqueued: none overtook others in the queue.
    """

    rows: Ints
    batch: Ints
    handed: Ints
    prepare: Ints
    prepare_hold: Ints
    thread: Ints
    service: Ints
    hold: Ints
    worker: Ints
    compute_start: Ints
    compute_end: Ints
    operator_ns: int
    enqueued: Ints
    most: int
    workers: int
    window: int
    first_come: bool

    def waits(self, handed_less: Ints, prepare_less: Ints, service_less: Ints) -> Ints:
        """``(m,)`` waits before prepare and before the batch, with lag and work reduced by the arguments."""
        prepared, waited = _series(
            (self.handed - handed_less).tolist(),
            self.thread.tolist(),
            (self.prepare - prepare_less).tolist(),
            self.prepare_hold.tolist(),
        )
        enqueued = np.array(prepared, dtype=np.int64)
        last = self.last_enqueued(enqueued)
        service = self.service - service_less
        in_order = self.most == 1 and self.first_come
        order = np.argsort(last, kind="stable") if in_order else np.arange(len(last))
        ends = np.empty_like(service)
        ends[order] = _series(*(part[order].tolist() for part in (last, self.worker, service, self.hold)))[0]
        closed = ends - service
        inside = self.batch >= 0
        total = np.array(waited, dtype=np.int64)
        begun = closed[self.batch[inside]]
        if self.most > 1:
            begun = np.minimum(begun, self._sooner(np.flatnonzero(inside), enqueued, last, closed, ends))
        total[inside] += begun - enqueued[inside]
        return total

    def _sooner(self, inside: Ints, enqueued: Ints, last: Ints, closed: Ints, ends: Ints) -> Ints:
        """When each request that is enqueued earlier than recorded could begin; the maximum for all others."""
        found = np.full(len(inside), np.iinfo(np.int64).max, dtype=np.int64)
        room = np.bincount(self.batch[inside], minlength=len(closed)) < self.most
        for k in np.flatnonzero(enqueued[inside] < self.enqueued[inside]).tolist():
            now = enqueued[inside[k]]
            open_to = (closed >= now) & (room | (last > now))
            busy = (closed <= now) & (now < ends)
            idle = len(np.unique(self.worker[busy])) < self.workers
            found[k] = min(closed[open_to].min(initial=found[k]), now + self.window if idle else found[k])
        return found

    def typical(self, handed_less: Ints, prepare_less: Ints, service_less: Ints) -> Ints:
        """``(m,)`` waits without the faults, and with all service times and holds capped at their median."""
        bare = [self.prepare - prepare_less, self.service - service_less]
        prepare, service = (np.minimum(part, _median(part)) for part in bare)
        calm = replace(
            self,
            prepare=prepare,
            service=service,
            prepare_hold=np.minimum(self.prepare_hold, _median(self.prepare_hold)),
            hold=np.minimum(self.hold, _median(self.hold)),
        )
        return calm.waits(handed_less, np.zeros_like(prepare), np.zeros_like(service))

    def last_enqueued(self, enqueued: Ints) -> Ints:
        """``(b,)`` when the last member of each batch was enqueued."""
        last = np.full(len(self.service), np.iinfo(np.int64).min, dtype=np.int64)
        inside = self.batch >= 0
        np.maximum.at(last, self.batch[inside], enqueued[inside])
        return last


def _median(values: Ints) -> int:
    return int(np.median(values)) if len(values) else 0


def _series(
    arrivals: list[int], servers: list[int], service: list[int], hold: list[int]
) -> tuple[list[int], list[int]]:
    """Ends and waits of jobs that servers take in this order."""
    free: dict[int, int] = {}
    ends, waits = [], []
    for arrived, server, work, held in zip(arrivals, servers, service, hold, strict=True):
        start = max(arrived, free.get(server, arrived)) + held
        free[server] = end = start + work
        ends.append(end)
        waits.append(start - arrived)
    return ends, waits


def fixed_queue(record: RunRecord) -> FixedQueue:
    """The queues of a run's record, without warm-up, which ends before the run begins."""
    rows, batches, settings = record.requests, record.batches, record.meta.settings
    prepared = np.flatnonzero(record.measured & (rows["prepare_thread"] >= 0))
    handed = (rows["arrival_ns"] + rows["dispatch_ns"] + rows["intake_ns"])[prepared]
    begun = handed + (rows["prepare_wait_ns"] - rows["intake_ns"])[prepared]
    order = np.argsort(begun, kind="stable")
    prepared, handed, begun = prepared[order], handed[order], begun[order]
    prepare = (rows["prepare_ns"] - rows["prepare_wait_ns"])[prepared]
    thread = rows["prepare_thread"][prepared]
    counted = np.flatnonzero((batches["warmup"] == 0) & (batches["retried"] == 0))
    counted = counted[np.argsort(batches["close_ns"][counted], kind="stable")]
    place = {int(batches["batch_id"][k]): spot for spot, k in enumerate(counted.tolist())}
    batch = np.array([place.get(int(each), -1) for each in rows["batch_id"][prepared]], dtype=np.int64)
    closed, finished = batches["close_ns"][counted], batches["finish_end_ns"][counted]
    queue = FixedQueue(
        rows=prepared,
        batch=batch,
        handed=handed,
        prepare=prepare,
        prepare_hold=_holds(handed, thread, begun, begun + prepare),
        thread=thread,
        service=finished - closed,
        hold=np.zeros(len(counted), dtype=np.int64),
        worker=batches["worker"][counted],
        compute_start=batches["h2d_end_ns"][counted],
        compute_end=batches["compute_end_ns"][counted],
        operator_ns=int(np.median(rows["compute_ns"][prepared]) / _OPERATORS / 2) if len(prepared) else 0,
        enqueued=begun + prepare,
        most=settings.max_batch_size,
        workers=settings.workers,
        window=int(settings.batch_window_ms * 1e6),
        first_come=True,
    )
    last = queue.last_enqueued(queue.enqueued)
    last = np.where(last == np.iinfo(np.int64).min, closed, last)
    first_come = bool((np.diff(last) > -_TOGETHER_NS).all())
    return replace(queue, hold=_holds(last, queue.worker, closed, finished), first_come=first_come)


def _holds(arrivals: Ints, servers: Ints, begun: Ints, ended: Ints) -> Ints:
    """How long each job waited although it had arrived and its server was free; negative if it was early."""
    free: dict[int, int] = {}
    holds: list[int] = []
    columns: list[Any] = [column.tolist() for column in (arrivals, servers, begun, ended)]
    for arrived, server, start, end in zip(*columns, strict=True):
        holds.append(start - max(arrived, free.get(server, arrived)))
        free[server] = end
    return np.array(holds, dtype=np.int64)
