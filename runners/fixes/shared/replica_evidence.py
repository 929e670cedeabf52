"""What a record shows of its replicas' speed: what the router would have made of its batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.shared.queue_evidence import lengths, workers_of
from latfix.runners.scheduling.replica_speed import Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One worker of a run.

    :param share: of all batches.
    :param slowest: how many times longer than the fastest its batches took, at most.
    :param slow: the share of the run's batches during which it counted as slower.
    """

    worker: int
    share: float
    slowest: float
    slow: float


def watch(record: RunRecord) -> list[Watched]:
    """Each worker's speed, learned batch by batch as the service would; nothing where the run had one worker."""
    count = int(record.meta["settings"].get("workers", 1))
    rows, batches = record.requests, record.batches
    worker = workers_of(record)
    if count < 2 or not len(worker):
        return []
    count = max(count, int(worker.max()) + 1)
    longest, total = np.zeros(len(worker), np.int64), np.zeros(len(worker), np.int64)
    inside = np.flatnonzero(rows["batch_id"] >= 0)
    at = np.searchsorted(batches["batch_id"], rows["batch_id"][inside])
    length = lengths(record)[inside]
    np.maximum.at(longest, at, length)
    np.add.at(total, at, length)
    # A failed batch's time, and a later one's of one member, say nothing of the worker.
    usable = np.flatnonzero((batches["warmup"] == 0) & (batches["retried"] == 0) & (longest > 0))
    usable = usable[np.argsort(batches["finish_end_ns"][usable], kind="stable")]
    pace, slowest, slow = Pace(count), [1.0] * count, [0] * count
    for b in usable.tolist():
        pace.learn(
            int(worker[b]),
            size=int(batches["size"][b]),
            longest=int(longest[b]),
            total=int(total[b]),
            took_ns=max(int(batches["finish_end_ns"][b] - batches["close_ns"][b]), 1),
        )
        for k, weight in enumerate(pace.weights):
            slowest[k] = max(slowest[k], weight)
            slow[k] += weight > 1.0
    shares = np.bincount(worker[usable], minlength=count) / max(len(usable), 1)
    return [
        Watched(worker=k, share=float(shares[k]), slowest=slowest[k], slow=slow[k] / max(len(usable), 1))
        for k in range(count)
    ]
