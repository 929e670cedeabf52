"""Statistics per worker of a run: device, batches, utilization, speed, and share of the tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Ints, places
from latfix.files.json_documents import Document
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import Status
from latfix.statistics.quantile_sketch import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow(Document):
    """One worker of a run, over its measured batches.

    :param device: the torch device of its model.
    :param requests: served in its batches, in any status.
    :param busy_share: of the time from the run's first batch to the end of its last.
    :param compute_p50_ms: of its batches; ``compute_p99_ms`` the same.
    :param tail_requests: those at or above the tail's percentile; ``tail_share`` of all such requests.
    :param weight: least and most estimate of how many times longer than the fastest it takes; ``None`` if routing
        was not by weight.
    :param slow_s: how long it counted as slower than the fastest.
    """

    worker: int
    device: str
    batches: int
    requests: int
    busy_share: float
    compute_p50_ms: float
    compute_p99_ms: float
    tail_requests: int
    tail_share: float
    weight: tuple[float, float] | None = None
    slow_s: float = 0.0


def workers_of(record: RunRecord) -> Ints:
    """``(m,)`` the worker of each batch; with continuous batching, batches name one of a worker's places."""
    return np.asarray(record.batches["worker"] // record.meta.settings.places, dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class _Served:
    """Running totals of one worker."""

    compute: Distribution
    batches: int = 0
    requests: int = 0
    tail: int = 0
    covered_ns: int = 0
    reach_ns: int = -(2**62)
    weight: tuple[float, float] | None = None


class WorkerTally:
    """Statistics of each worker of a run, counted chunk by chunk in order of time.

    :param tail_ns: requests that ended ``ok`` are in the tail from this latency on.
    :param exact: keep durations, which makes percentiles exact.
    """

    def __init__(self, meta: RunMeta, tail_ns: float, *, exact: bool) -> None:
        self._meta, self._tail_ns, self._exact = meta, tail_ns, exact
        self._count = meta.settings.workers
        self._served: dict[int, _Served] = {}
        self._begin_ns, self._end_ns = 2**62, -(2**62)
        self._tail = 0

    def add(self, record: RunRecord) -> None:
        """Count a chunk, or a whole run."""
        if self._count < 2:
            return
        batches, rows = record.batches, record.requests
        worker = workers_of(record)
        measured = (batches["warmup"] == 0) & (batches["finish_end_ns"] > 0)
        self._begin_ns = min(self._begin_ns, int(batches["close_ns"][measured].min(initial=2**62)))
        self._end_ns = max(self._end_ns, int(batches["finish_end_ns"][measured].max(initial=-(2**62))))
        served = (rows["warmup"] == 0) & (rows["batch_id"] >= 0)
        by_request = np.append(worker, -1)[places(rows["batch_id"], batches["batch_id"])]
        tail = served & (rows["status"] == Status.OK) & (rows["latency_ns"] >= self._tail_ns)
        self._tail += int(np.count_nonzero(tail))
        for k in range(max(self._count, int(worker.max(initial=0)) + 1)):
            known = self._of(k)
            own = measured & (worker == k)
            known.compute.add((batches["compute_end_ns"] - batches["h2d_end_ns"])[own])
            known.batches += int(np.count_nonzero(own))
            known.requests += int(np.count_nonzero(served & (by_request == k)))
            known.tail += int(np.count_nonzero(tail & (by_request == k)))
            _cover(known, batches["close_ns"][own], batches["finish_end_ns"][own])
            weight = series_range(record, f"runner.worker_{k}.weight")
            if weight is not None:
                low, high = known.weight or weight[:2]
                known.weight = min(low, weight[0]), max(high, weight[1])

    def rows(self, notes: Columns) -> tuple[WorkerRow, ...]:
        """One row per worker; none if the run had only one.

        :param notes: events of the whole run, at least those of kind ``note``.
        """
        if self._count < 2:
            return ()
        span = max(float(self._end_ns - self._begin_ns), 1.0)
        devices = self._meta.worker_devices
        return tuple(
            WorkerRow(
                worker=k,
                device=devices[k] if k < len(devices) else self._meta.device,
                batches=known.batches,
                requests=known.requests,
                busy_share=known.covered_ns / span,
                compute_p50_ms=known.compute.percentile(50) / 1e6,
                compute_p99_ms=known.compute.percentile(99) / 1e6,
                tail_requests=known.tail,
                tail_share=known.tail / max(self._tail, 1),
                weight=known.weight,
                slow_s=_slow_s(notes, k),
            )
            for k, known in sorted(self._served.items())
        )

    def _of(self, worker: int) -> _Served:
        return self._served.setdefault(worker, _Served(compute=Distribution(exact=self._exact)))


def series_range(record: RunRecord, name: str) -> tuple[float, float, float] | None:
    """Lowest, highest and last value of a sampled series; ``None`` if it was not sampled."""
    samples = record.samples
    if not len(samples["series"]):
        return None
    values = samples["value"][samples["series"] == name]
    return (float(values.min()), float(values.max()), float(values[-1])) if len(values) else None


def _slow_s(events: Columns, worker: int) -> float:
    """Seconds for which a run's notes report a worker as slow."""
    if not len(events["kind"]):
        return 0.0
    total = 0
    for k in np.flatnonzero(events["kind"] == "note").tolist():
        detail = events["detail"][k]
        if isinstance(detail, dict) and detail.get("worker") == worker and detail.get("slow") is False:
            total += int(events["duration_ns"][k])
    return total / 1e9


def _cover(known: _Served, begin: Ints, end: Ints) -> None:
    """Add the nanoseconds that at least one of the intervals covers and no earlier one did."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(np.concatenate([[known.reach_ns], end]))
    known.covered_ns += int(np.maximum(end - np.maximum(begin, reach[:-1]), 0).sum())
    known.reach_ns = int(reach[-1])
