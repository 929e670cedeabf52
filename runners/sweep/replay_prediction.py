"""latfix's own prediction of a load: the runner's queues replayed at it, with service times measured at another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from latfix.capacity.batch_queue_model import BatchService
from latfix.queueing.queue_simulator import Policy, begun_in_order, replay
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """What each request of the schedule brought, in nanoseconds; medians where it did not end ``ok``.

    :param prepare: ``(n,)`` service in the prepare pool; ``finish`` its own part of finishing; ``lag`` the replay's.
    :param extra: ``(n,)`` its share of what its batch took beyond the typical service of a batch of that size.
    :param reference: ``(most + 1,)`` that typical service, by size.
    :param length: ``(n,)`` what batches by length go by.
    """

    prepare: Floats
    finish: Floats
    lag: Floats
    extra: Floats
    reference: Floats
    length: npt.NDArray[np.int64]

    def times_over(self, n: int) -> MeasuredWork:
        """The same for a schedule of ``n`` requests that begins again after the last of these."""
        place = np.arange(n) % len(self.prepare)
        return replace(
            self,
            prepare=self.prepare[place],
            finish=self.finish[place],
            lag=self.lag[place],
            extra=self.extra[place],
            length=self.length[place],
        )


def measured_work(record: RunRecord, service: BatchService, settings: RunnerSettings) -> MeasuredWork:
    """The work of a replay's requests, by their place in its schedule.

    :param service: of batches, in seconds, fitted to this record or to several.
    """
    rows, batches = record.requests, record.batches
    ok = record.measured & (rows["status"] == Status.OK) & (rows["index"] < len(record.traffic))
    index, n = rows["index"][ok], len(record.traffic)
    whole = np.flatnonzero((batches["retried"] == 0) & (batches["finish_end_ns"] > 0))
    size = np.maximum(batches["size"].astype(np.float64), 1.0)
    took = (batches["finish_end_ns"] - batches["close_ns"]).astype(np.float64)
    beyond = (took - service.mean(size) * 1e9) / size
    by_id = {int(batches["batch_id"][k]): float(beyond[k]) for k in whole.tolist()}
    extra = np.array([by_id.get(int(each), 0.0) for each in rows["batch_id"][ok].tolist()])
    typical = service.mean(np.arange(settings.max_batch_size + 1)) * 1e9
    return MeasuredWork(
        prepare=_placed(n, index, (rows["prepare_ns"] - rows["prepare_wait_ns"])[ok]),
        finish=_placed(n, index, (rows["finish_ns"] - rows["finish_wait_ns"])[ok]),
        lag=_placed(n, index, (rows["dispatch_ns"] + rows["intake_ns"])[ok]),
        extra=_placed(n, index, extra),
        reference=np.asarray(typical, dtype=np.float64),
        length=_placed(n, index, rows["bucket_length"][ok]).astype(np.int64),
    )


def _placed(n: int, index: npt.NDArray[np.int64], values: npt.NDArray[np.generic]) -> Floats:
    some = np.asarray(values, dtype=np.float64)
    placed = np.full(n, float(np.median(some)) if len(some) else 0.0)
    placed[index] = some
    return placed


def replays_exactly(settings: RunnerSettings) -> str:
    """Why the queue replay does not know these settings; empty where it does."""
    if settings.batching != "fixed":
        return f"the queue replay does not know batching = {settings.batching!r}"
    if settings.schedule != "arrival":
        return "the queue replay does not know this schedule"
    if settings.admission != "all" or settings.max_queue:
        return "the queue replay sheds nothing"
    return ""


def replayed(work: MeasuredWork, traffic: Traffic, settings: RunnerSettings) -> tuple[Floats, Floats]:
    """Wait before prepare and before its batch closes, and latency, of every request in seconds.

    :param traffic: the schedule of the load, request for request the one that ``work`` was measured on; where it is
        longer, that one several times over.
    """
    n = len(traffic)
    work = work.times_over(n)
    handed = traffic.arrival_ns.astype(np.float64) + work.lag
    prepared = begun_in_order(handed, work.prepare, settings.prepare_threads)
    ready = prepared + work.prepare
    policy = Policy(
        workers=settings.workers,
        max_batch=settings.max_batch_size,
        window=settings.batch_window_ms * 1e6,
        reference=work.reference,
        by_length=settings.batch_order == "length",
        ageing=settings.ageing_ms * 1e6,
    )
    served = replay(policy, ready, work.extra, traffic.priority.astype(np.int64), work.length)
    closed, ended = served.by_request(served.closed), served.by_request(served.end)
    batch = served.by_request(np.arange(len(served.first)))
    wait = (prepared - handed) + np.maximum(closed - ready, 0.0)
    latency = ended - _finished_later(batch, ready, work.finish) - traffic.arrival_ns
    return np.rint(wait) / 1e9, np.rint(latency) / 1e9


def _finished_later(batch: npt.NDArray[np.int64], ready: Floats, finish: Floats) -> Floats:
    """Nanoseconds of finishing the members that come after each request in its batch."""
    order = np.lexsort((ready, batch))
    running = np.cumsum(finish[order])
    last = np.searchsorted(batch[order], batch[order], side="right") - 1
    later = np.empty(len(order))
    later[order] = running[last] - running
    return later
