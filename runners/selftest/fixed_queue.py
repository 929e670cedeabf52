"""The two queues of a recorded run, served again with less work: who was served where and with whom is kept.

A small model of the service, written for the self-test's truth and not shared with the diagnosis. Prepare
threads and workers take what they took in the recorded run, in the same order; a batch keeps its members.
Service begins when the server is free and all it serves is there, plus whatever the recorded run waited
beyond that (a batch window, a late wake-up). With one prepare thread and batches of one this is Lindley's
recursion, and exact; at the measured services it reproduces the measured waits.

Where batches may be shared, whoever comes sooner than it did need not wait for those that it was served with:
it begins with the first batch that has room or that takes someone who came after it, or at once, but for the
window, where a worker is idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.run_record.run_record import RunRecord

Ints = npt.NDArray[np.int64]
#: So many operators of about equal length the model calls.
_OPERATORS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedQueue:
    """What is kept of a run. All times in nanoseconds from the start of the run.

    :param rows: ``(m,)`` rows of the record that were prepared, in the order in which prepare threads took them.
    :param batch: ``(m,)`` place of each one's batch among ``b`` batches in order of their closing; -1 for none.
    :param handed: ``(m,)`` when it was handed over.
    :param prepare: ``(m,)`` measured service in prepare; ``prepare_hold`` the wait beyond server and arrival.
    :param thread: ``(m,)`` the prepare thread; ``enqueued`` when it was prepared.
    :param service: ``(b,)`` measured service from the batch's closing on; ``hold`` and ``worker`` likewise, and
        ``compute_start`` and ``compute_end``, when the model was called and returned.
    :param operator_ns: a typical half of one of the model's operators: how long a thread in the model still runs
        after another took the interpreter lock.
    :param most: requests in a batch; ``workers`` that take batches, ``window`` that one is held open for at most.
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

    def waits(self, handed_less: Ints, prepare_less: Ints, service_less: Ints) -> Ints:
        """``(m,)`` wait before prepare and before the batch with so much less lag and work in each."""
        prepared, waited = _series(
            (self.handed - handed_less).tolist(),
            self.thread.tolist(),
            (self.prepare - prepare_less).tolist(),
            self.prepare_hold.tolist(),
        )
        enqueued = np.array(prepared, dtype=np.int64)
        last = self.last_enqueued(enqueued)
        ends, _ = _series(
            last.tolist(), self.worker.tolist(), (self.service - service_less).tolist(), self.hold.tolist()
        )
        closed = np.array(ends, dtype=np.int64) - (self.service - service_less)
        inside = self.batch >= 0
        total = np.array(waited, dtype=np.int64)
        begun = closed[self.batch[inside]]
        if self.most > 1:
            begun = np.minimum(begun, self._sooner(np.flatnonzero(inside), enqueued, last, closed, np.array(ends)))
        total[inside] += begun - enqueued[inside]
        return total

    def _sooner(self, inside: Ints, enqueued: Ints, last: Ints, closed: Ints, ends: Ints) -> Ints:
        """When each request that comes sooner than it did could begin; never for all others."""
        found = np.full(len(inside), np.iinfo(np.int64).max, dtype=np.int64)
        room = np.bincount(self.batch[inside], minlength=len(closed)) < self.most
        for k in np.flatnonzero(enqueued[inside] < self.enqueued[inside]).tolist():
            there = enqueued[inside[k]]
            open_to = (closed >= there) & (room | (last > there))
            busy = (closed <= there) & (there < ends)
            idle = len(np.unique(self.worker[busy])) < self.workers
            found[k] = min(closed[open_to].min(initial=found[k]), there + self.window if idle else found[k])
        return found

    def typical(self, handed_less: Ints, prepare_less: Ints, service_less: Ints) -> Ints:
        """``(m,)`` waits where, beside those faults, all that took longer than the median is cut to the median."""
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
        """``(b,)`` when the last member of each batch was there."""
        last = np.full(len(self.service), np.iinfo(np.int64).min, dtype=np.int64)
        inside = self.batch >= 0
        np.maximum.at(last, self.batch[inside], enqueued[inside])
        return last


def _median(values: Ints) -> int:
    return int(np.median(values)) if len(values) else 0


def _series(there: list[int], server: list[int], service: list[int], hold: list[int]) -> tuple[list[int], list[int]]:
    """Ends and waits of jobs that servers take in this order."""
    free: dict[int, int] = {}
    ends, waits = [], []
    for arrived, who, work, held in zip(there, server, service, hold, strict=True):
        start = max(arrived, free.get(who, arrived)) + held
        free[who] = end = start + work
        ends.append(end)
        waits.append(start - arrived)
    return ends, waits


def fixed_queue(record: RunRecord) -> FixedQueue:
    """Take a run's queues from its record, warm-up left out: it ends before the run begins."""
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
    )
    last = queue.last_enqueued(queue.enqueued)
    last = np.where(last == np.iinfo(np.int64).min, closed, last)
    return replace(queue, hold=_holds(last, queue.worker, closed, finished))


def _holds(there: Ints, server: Ints, begun: Ints, ended: Ints) -> Ints:
    """What each job waited although it was there and its server free; negative where it was early."""
    free: dict[int, int] = {}
    holds: list[int] = []
    columns: list[Any] = [column.tolist() for column in (there, server, begun, ended)]
    for arrived, who, start, end in zip(*columns, strict=True):
        holds.append(start - max(arrived, free.get(who, arrived)))
        free[who] = end
    return np.array(holds, dtype=np.int64)
