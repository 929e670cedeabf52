"""The queue in a record: waits, overtaking, and the effect of an ageing interval."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.queueing.queue_simulator import Offered, SimulatedQueue
from latfix.queueing.serving_order import MOST_SHARES, Backlog, FixedLimits, Ordering
from latfix.run_record.run_record import RunRecord
from latfix.runners.scheduling.work_estimates import Batch, WorkEstimate
from latfix.settings import RunnerSettings, Schedule
from latfix.statistics.latency_summary import percentile_ns

#: Ageing intervals that are tried, in medians of the waits.
_TRIED = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
#: A p99 within this factor of the best is as good.
_AS_GOOD = 1.02
#: Maximum number of simulated requests.
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Measured requests that reached a batch, by row. Times are in nanoseconds.

    :param rank: class of service, 0 is the highest.
    :param length: bucket length; ``elements``: number of elements of the inputs.
    :param enqueued: when the request reached the queue; ``taken``: when a worker took its batch.
    :param first: True for the request of each batch that arrived first.
    """

    rank: Ints
    length: Ints
    elements: Ints
    enqueued: Ints
    taken: Ints
    latency: Ints
    first: Bools

    @classmethod
    def of(cls, record: RunRecord, key: str | None = None) -> Waits:
        """The requests of a record.

        :param key: feature that gives lengths; ``None`` for the run's own bucket lengths, empty for elements.
        """
        rows = record.requests
        some = np.flatnonzero((rows["index"] >= 0) & (rows["batch_id"] >= 0) & (rows["warmup"] == 0))
        enqueued = (rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"])[some]
        _, batch = np.unique(rows["batch_id"][some], return_inverse=True)
        earliest = np.full(len(some), np.iinfo(np.int64).max)
        np.minimum.at(earliest, batch, enqueued)
        return cls(
            rank=record.traffic.priority[rows["index"][some]].astype(np.int64),
            length=lengths(record, key)[some],
            elements=rows["input_elements"][some],
            enqueued=enqueued,
            taken=enqueued + rows["queue_ns"][some],
            latency=rows["latency_ns"][some],
            first=np.asarray(enqueued == earliest[batch], dtype=bool),
        )

    @property
    def wait(self) -> Ints:
        """Time in the queue."""
        return self.taken - self.enqueued


def lengths(record: RunRecord, key: str | None = None) -> Ints:
    """``(n,)`` bucket lengths of the record's rows; ``key`` as in :meth:`Waits.of`."""
    rows = record.requests
    if key is None:
        return np.asarray(rows["bucket_length"], dtype=np.int64)
    column = record.traffic.features.get(key)
    if not key or column is None or column.dtype.kind not in "iuf":
        return np.asarray(rows["input_elements"], dtype=np.int64)
    position = rows["index"] % max(len(column), 1)
    known = column[position].astype(np.float64)
    return np.where(np.isnan(known), rows["input_elements"], np.rint(np.nan_to_num(known))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Overtaking:
    """How often a worker took a request while an earlier one was still waiting.

    :param lower_first: the waiting one had a higher class.
    :param same_class: it had the same class; ``shorter``: it also had longer inputs.
    """

    lower_first: int
    same_class: int
    shorter: int


def overtaking(waits: Waits, *, by_length: bool = False) -> Overtaking:
    """Count overtaking: each request against the earliest waiting one of its class, and of higher classes.

    :param by_length: batches are filled by similar length, so most members overtake for their similarity to the head.
        Then only the member that arrived first counts: if it overtook, so did the head.
    """
    order = np.argsort(waits.enqueued, kind="stable")
    rank, length = waits.rank[order].tolist(), waits.length[order].tolist()
    enqueued, taken = waits.enqueued[order].tolist(), waits.taken[order].tolist()
    counted = (waits.first[order] | (not by_length)).tolist()
    by_taken = sorted(range(len(taken)), key=lambda k: (taken[k], k))
    classes = sorted(set(rank))
    line: dict[int, list[int]] = {one: [] for one in classes}
    coming = lower = same = shorter = 0
    for k in by_taken:
        while coming < len(enqueued) and enqueued[coming] <= taken[k]:
            heapq.heappush(line[rank[coming]], coming)
            coming += 1
        for one in classes:
            while line[one] and taken[line[one][0]] <= taken[k]:
                heapq.heappop(line[one])
        if not counted[k]:
            continue
        lower += any(line[one] for one in classes if one < rank[k])
        ahead = line[rank[k]]
        if ahead and ahead[0] < k:
            same += 1
            shorter += length[k] < length[ahead[0]]
    return Overtaking(lower, same, shorter)


def batch_lengths(record: RunRecord, key: str | None = None) -> tuple[Ints, Ints]:
    """By batch, the longest bucket length and the sum of all members'; ``key`` as in :meth:`Waits.of`."""
    rows, batches = record.requests, record.batches
    inside = np.flatnonzero(rows["batch_id"] >= 0)
    at, length = np.searchsorted(batches["batch_id"], rows["batch_id"][inside]), lengths(record, key)[inside]
    longest, total = np.zeros(len(batches["size"]), np.int64), np.zeros(len(batches["size"]), np.int64)
    np.maximum.at(longest, at, length)
    np.add.at(total, at, length)
    return longest, total


def learned(record: RunRecord, key: str | None = None) -> WorkEstimate:
    """The engine's estimate of work, learned from a record's batches."""
    batches = record.batches
    longest, total = batch_lengths(record, key)
    estimate = WorkEstimate()
    plain = (batches["warmup"] == 0) & (batches["retried"] == 0) & (total > 0)
    for b in np.flatnonzero(plain).tolist():
        estimate.learn(
            Batch(
                size=int(batches["size"][b]),
                longest=int(longest[b]),
                total=int(total[b]),
                elements=int(batches["real_elements"][b]),
                compute_ns=int(batches["compute_end_ns"][b] - batches["collated_ns"][b]),
                busy_ns=int(batches["finish_end_ns"][b] - batches["close_ns"][b]),
            )
        )
    return estimate


def choose_ageing_ms(
    record: RunRecord, settings: RunnerSettings, schedule: Schedule, key: str | None = None
) -> float:
    """The best ageing interval in milliseconds for the record's traffic.

    The queue is simulated with intervals from a quarter to 32 times the median wait. Among those whose p99 is within
    2 % of the best, an order by work takes the one with the lowest mean. Classes alone take the longest, which keeps
    as much of their advantage as p99 allows.
    """
    waits = Waits.of(record, key)
    waited = waits.wait[waits.wait > 0]
    if not len(waited):
        return 1.0
    median = float(np.median(waited))
    estimate = learned(record, key)
    tried = [
        (
            factor * median,
            *_simulated(waits, settings, Ordering(schedule=schedule, ageing_ns=round(factor * median)), estimate),
        )
        for factor in _TRIED
    ]
    best = min(p99 for _, p99, _ in tried)
    good = [one for one in tried if one[1] <= _AS_GOOD * best]
    chosen = max(good) if schedule == "arrival" else min(good, key=lambda one: one[2])
    return max(float(f"{chosen[0] / 1e6:.3g}"), 0.001)


def _simulated(
    waits: Waits, settings: RunnerSettings, ordering: Ordering, estimate: WorkEstimate
) -> tuple[float, float]:
    """p99 and mean of the time from entering the queue to the end, in nanoseconds."""
    order = np.argsort(waits.enqueued, kind="stable")[:_MOST]
    columns = (column[order].tolist() for column in (waits.enqueued, waits.rank, waits.length, waits.elements))
    offered = [
        Offered(
            arrival_ns=at,
            rank=rank,
            length=length,
            share=estimate.sparseness(length, elements)
            if ordering.schedule == "work_per_byte"
            else estimate.share(length),
        )
        for at, rank, length, elements in zip(*columns, strict=True)
    ]

    def service(members: Sequence[Offered]) -> int:
        longest = max(one.length for one in members)
        return max(int(estimate.batch_compute_ns(len(members), longest) + estimate.beside.value), 1)

    queue = SimulatedQueue(
        service=service,
        limits=FixedLimits(settings.max_batch_size, int(settings.batch_window_ms * 1e6)),
        workers=settings.workers,
        backlog=Backlog(ordering=ordering, by_length=settings.batch_order == "length"),
    )
    latency = queue.run(offered).latency_ns()
    return percentile_ns(latency, 99), float(latency.mean()) if len(latency) else 0.0


def work_spread(record: RunRecord, estimate: WorkEstimate, key: str | None = None) -> float:
    """p90 over p10 of the requests' expected compute time; 1 if there is no request."""
    waits = Waits.of(record, key)
    if not len(waits.length):
        return 1.0
    shares = np.array([min(estimate.share(length), MOST_SHARES) for length in waits.length.tolist()])
    low, high = np.quantile(shares, [0.1, 0.9])
    return float(high / low) if low > 0 else float("inf")
