"""What each worker of a run did, and on which device: batches, how busy it was, how fast, its part in the tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.files.json_documents import Document
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from latfix.statistics.latency_summary import percentile_ns

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow(Document):
    """One worker of a run, over its measured batches.

    :param device: the torch device that its model was on.
    :param requests: served in its batches, however they ended.
    :param busy_share: of the time from the run's first batch to its last one's end.
    :param compute_p50_ms: of its batches; ``compute_p99_ms`` the same.
    :param tail_requests: of them, those at or above the tail's percentile; ``tail_share`` of all such requests.
    :param weight: how many times longer than the fastest it was thought to take, at least and at most; ``None``
        where routing was not by weight.
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
    """``(m,)`` the worker of each batch; where requests join between steps, batches name one of its places."""
    settings = record.meta["settings"]
    places = int(settings["max_batch_size"]) if settings.get("batching") == "continuous" else 1
    return np.asarray(record.batches["worker"] // places, dtype=np.int64)


def worker_rows(record: RunRecord, percentile: float) -> tuple[WorkerRow, ...]:
    """A row a worker; none where the run had one only.

    :param percentile: where the tail begins, 0 to 100.
    """
    count = int(record.meta.get("settings", {}).get("workers", 1))
    if count < 2:
        return ()
    batches, rows = record.batches, record.requests
    worker = workers_of(record)
    count = max(count, int(worker.max(initial=0)) + 1)
    measured = (batches["warmup"] == 0) & (batches["finish_end_ns"] > 0)
    span = _span(batches["close_ns"][measured], batches["finish_end_ns"][measured])
    served = (rows["warmup"] == 0) & (rows["batch_id"] >= 0)
    by_request = _worker_by_request(rows["batch_id"], batches["batch_id"], worker)
    ok = served & (rows["status"] == Status.OK)
    latency = rows["latency_ns"]
    tail = ok & (latency >= percentile_ns(latency[ok], percentile)) if ok.any() else ok
    devices = [str(device) for device in record.meta.get("worker_devices") or ()]
    found = []
    for k in range(count):
        own = measured & (worker == k)
        compute = (batches["compute_end_ns"] - batches["h2d_end_ns"])[own]
        late = int(np.count_nonzero(tail & (by_request == k)))
        found.append(
            WorkerRow(
                worker=k,
                device=devices[k] if k < len(devices) else str(record.meta.get("device", "cpu")),
                batches=int(np.count_nonzero(own)),
                requests=int(np.count_nonzero(served & (by_request == k))),
                busy_share=_covered(batches["close_ns"][own], batches["finish_end_ns"][own]) / span,
                compute_p50_ms=percentile_ns(compute, 50) / 1e6 if len(compute) else 0.0,
                compute_p99_ms=percentile_ns(compute, 99) / 1e6 if len(compute) else 0.0,
                tail_requests=late,
                tail_share=late / max(int(np.count_nonzero(tail)), 1),
                weight=weight_range(record, k),
                slow_s=_slow_s(record, k),
            )
        )
    return tuple(found)


def weight_range(record: RunRecord, worker: int) -> tuple[float, float] | None:
    """The lowest and the highest weight that a worker had; ``None`` where routing was not by weight."""
    samples = record.samples
    if not len(samples["series"]):
        return None
    values = samples["value"][samples["series"] == f"runner.worker_{worker}.weight"]
    return (float(values.min()), float(values.max())) if len(values) else None


def _slow_s(record: RunRecord, worker: int) -> float:
    """Seconds for which the run's notes say that a worker was slow."""
    events = record.events
    if not len(events["kind"]):
        return 0.0
    total = 0
    for k in np.flatnonzero(events["kind"] == "note").tolist():
        detail = events["detail"][k]
        if isinstance(detail, dict) and detail.get("worker") == worker and detail.get("slow") is False:
            total += int(events["duration_ns"][k])
    return total / 1e9


def _worker_by_request(wanted: Ints, ids: Ints, worker: Ints) -> Ints:
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    known = (wanted >= 0) & (ids[order][at] == wanted)
    return np.where(known, worker[order][at], -1).astype(np.int64)


def _span(begin: Ints, end: Ints) -> float:
    return max(float(end.max() - begin.min()), 1.0) if len(begin) else 1.0


def _covered(begin: Ints, end: Ints) -> float:
    """Nanoseconds that lie in at least one of the intervals."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    if not len(begin):
        return 0.0
    before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0).sum())
