"""Measurements at one load: figures of each replay (a point), of all together (a cell), and how much they differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from latfix.arrays import Bools, Floats, Ints, places
from latfix.capacity.objective import LatencyObjective, percentile_of, slow_share
from latfix.files.json_documents import Document, json_key
from latfix.queueing.length_buckets import padded_elements
from latfix.run_record.dispatch_lag import is_on_time, lag_p99_ms
from latfix.stages import Status
from latfix.statistics.censored import Outcomes
from latfix.statistics.decision import Interval
from latfix.statistics.distributions import normal_quantile

if TYPE_CHECKING:
    from latfix.run_record.run_record import RunRecord


#: A backlog that keeps growing holds at least this share of all requests at the end.
_BACKLOG_SHARE = 0.1
#: Prior run-to-run ratio of replays of one point, which counts as this many repeats. Without it, a service replayed
#: once would seem exactly known, and a single outlying pair would dominate.
USUAL_SPREAD, _USUAL_FREEDOM = 1.1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches of a replay, as ``(m,)`` columns; times in seconds.

    :param service: from a batch's closing to the end of its last member, during which it occupies its worker.
    :param held: how long it was held open before.
    :param run_delay: part of the service during which its thread was runnable but no core was free.
    :param padding: share of the batch's elements that is padding.
    """

    size: Floats
    service: Floats
    held: Floats
    run_delay: Floats
    padding: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One replay at one load. Times in seconds, rates per second.

    :param offered: rate of the whole schedule, even if the replay was ended early.
    :param span: from the first arrival to the last that was sent.
    :param achieved: requests that ended ``ok`` over the time from the first arrival to the last end.
    :param latency: ``(n,)`` in order of arrival; infinite for a lost request (error, timeout, shed), and for one in
        flight when the replay was ended early, which counts with at least its age.
    :param age: ``(n,)`` how long each request was observed: its latency, or its age when the replay ended.
    :param outcomes: the same requests, with how long the lost ones had waited.
    :param requests: how many ended in each status.
    :param wait: ``(k,)`` wait of ``ok`` requests before prepare and in the queue, until their batch closed.
    :param prepare: ``(k,)`` service in the prepare pool, for the same requests.
    :param prepare_share: share of time that a prepare thread is busy; ``worker_share`` a worker.
    :param held_share: share of time that workers hold a batch open.
    :param in_flight: requests in the service at the last arrival.
    :param grew: the backlog kept growing: see :func:`backlog_grew`.
    :param cut: the replay was ended early.
    :param until: seconds of the schedule until which it was observed.
    :param lag_p99: the replay's own lag; ``trustworthy`` as defined by :mod:`latfix.run_record.dispatch_lag`.
    """

    offered: float
    span: float
    achieved: float
    latency: Floats
    age: Floats
    outcomes: Outcomes
    requests: dict[str, int]
    wait: Floats
    prepare: Floats
    batches: Batches
    prepare_share: float
    worker_share: float
    held_share: float
    in_flight: int
    grew: bool
    cut: bool
    until: float
    lag_p99: float
    trustworthy: bool
    error: str = ""

    @property
    def lost(self) -> int:
        """Requests that failed, timed out, or were shed."""
        return sum(count for name, count in self.requests.items() if name not in ("ok", "unfinished"))

    @property
    def mean_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batches.size.mean()) if len(self.batches.size) else 0.0


def backlog_grew(arrival: Ints, end: Ints, *, at_once: int) -> bool:
    """True if the number of requests in the service kept growing over a replay.

    Requires all three: its minimum is higher in the third and last quarters of the time than in the second, and in
    the last at most a tenth lower than in the third; in the last it never falls to two full batches per worker; and
    at the last arrival a tenth of all requests are in the service. A burst that is worked off fails the first
    condition, a short queue the others.

    :param arrival: ascending; ``end`` when each of them ended, very large if it never did.
    :param at_once: how many requests the workers process together.
    """
    n = len(arrival)
    if n < 8 or arrival[-1] <= arrival[0]:
        return False
    inside = np.arange(1, n + 1) - np.searchsorted(np.sort(end), arrival, side="right")
    edges = arrival[0] + (arrival[-1] - arrival[0]) * np.arange(1, 5) / 4
    cut = np.searchsorted(arrival, edges, side="right")
    quarters = [inside[a:b] for a, b in itertools.pairwise(cut.tolist())]
    if any(not len(quarter) for quarter in quarters):
        return False
    second, third, last = (int(quarter.min()) for quarter in quarters)
    grew = second < min(third, last) and last > 0.9 * third
    return grew and last > 2 * at_once and int(inside[-1]) >= _BACKLOG_SHARE * n


def load_point(record: RunRecord, *, cut_s: float | None = None, hopeless: bool = True) -> LoadPoint:
    """The figures of a replay.

    :param cut_s: when it was ended early, in seconds of the schedule: before the last arrival because its backlog
        kept growing, or while draining. Requests in flight then have only an age.
    :param hopeless: the backlog ended it, not the budget.
    """
    rows, measured = record.requests, record.measured
    settings, scheduled = record.meta.settings, len(record.traffic)
    workers, threads = settings.workers, settings.prepare_threads
    at_once = settings.max_batch_size * workers
    sent = scheduled if record.meta.sent is None else min(record.meta.sent, scheduled)
    arrival = record.traffic.arrival_ns[:sent].astype(np.int64)
    measured &= rows["status"] != Status.UNFINISHED
    index = rows["index"][measured]
    latency_ns, end = np.full(sent, -1, np.int64), np.full(sent, np.iinfo(np.int64).max, np.int64)
    status = np.full(sent, Status.UNFINISHED, np.int64)
    known = index < sent
    status[index[known]] = rows["status"][measured][known]
    latency_ns[index[known]] = rows["latency_ns"][measured][known]
    end[index[known]] = (rows["arrival_ns"] + rows["latency_ns"])[measured][known]
    ok = measured & (rows["status"] == Status.OK)
    latency = np.full(sent, math.inf)
    served = rows["index"][ok]
    latency[served[served < sent]] = rows["latency_ns"][ok][served < sent] / 1e9
    over = latency_ns >= 0
    last_end = int(end[over].max()) if over.any() else 0
    until = max(last_end, round((cut_s or 0.0) * 1e9))
    age = np.where(over, np.where(np.isfinite(latency), latency, -1.0), np.maximum(until - arrival, 0) / 1e9)
    span = max(float(arrival[-1] - arrival[0]) / 1e9, 1e-9) if sent else 1e-9
    took = max((until - int(arrival[0])) / 1e9, 1e-9) if sent else 1e-9
    counts = record.counts()
    return LoadPoint(
        offered=_rate(record.traffic.arrival_ns),
        span=span,
        achieved=counts["ok"] / took,
        latency=latency,
        age=age,
        outcomes=Outcomes.of(np.where(over, latency_ns, np.maximum(until - arrival, 0)), status),
        requests=counts,
        wait=_waits(record, ok),
        prepare=(rows["prepare_ns"] - rows["prepare_wait_ns"])[ok] / 1e9,
        batches=_batches(record),
        prepare_share=float((rows["prepare_ns"] - rows["prepare_wait_ns"])[measured].sum()) / 1e9 / took / threads,
        worker_share=_share(record, "close_ns", "finish_end_ns") / took / workers,
        held_share=_share(record, "open_ns", "close_ns") / took / workers,
        in_flight=int(np.count_nonzero(end > arrival[-1])) if sent else 0,
        grew=(hopeless and cut_s is not None and sent < len(record.traffic))
        or backlog_grew(arrival, end, at_once=at_once),
        cut=cut_s is not None,
        until=until / 1e9,
        lag_p99=lag_p99_ms(record) / 1e3,
        trustworthy=is_on_time(record),
        error=next(iter(record.errors.values()), ""),
    )


def _rate(arrival_ns: Ints) -> float:
    span = float(arrival_ns[-1] - arrival_ns[0]) / 1e9 if len(arrival_ns) > 1 else 0.0
    return (len(arrival_ns) - 1) / span if span > 0 else 0.0


def _share(record: RunRecord, begin: str, end: str) -> float:
    """Seconds of workers between two stamps of batches, summed; batches whose last stamp is missing are left out."""
    batches = record.batches
    some = (batches["warmup"] == 0) & (batches[end] > 0)
    # Requests that share a worker's steps share its time.
    shared = batches["size"][some] if record.meta.settings.places > 1 else 1
    return float((np.maximum(batches[end][some] - batches[begin][some], 0) / shared).sum()) / 1e9


def _waits(record: RunRecord, ok: Bools) -> Floats:
    """Seconds before prepare and from entering the queue to the closing of the batch, for some requests."""
    rows, batches = record.requests, record.batches
    entered = (rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"])[ok]
    if not len(batches["batch_id"]):
        return np.zeros(int(np.count_nonzero(ok)))
    place = places(rows["batch_id"][ok], batches["batch_id"])
    closed = np.where(place >= 0, batches["close_ns"][place], entered)
    return np.asarray((np.maximum(closed - entered, 0) + rows["prepare_wait_ns"][ok]) / 1e9, dtype=np.float64)


def _batches(record: RunRecord) -> Batches:
    """Complete batches without warm-up; the time of a failed batch is not service time."""
    batches, rows = record.batches, record.requests
    keep = (batches["warmup"] == 0) & (batches["retried"] == 0) & (batches["finish_end_ns"] > batches["close_ns"])
    keep &= ~np.isin(batches["batch_id"], rows["batch_id"][rows["status"] == Status.ERROR])
    some = {name: column[keep] for name, column in batches.items()}
    padded = padded_elements(some)
    real = some["real_elements"].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        padding = np.where(padded > 0, 1.0 - real / padded, 0.0)
    return Batches(
        size=some["size"].astype(np.float64),
        service=(some["finish_end_ns"] - some["close_ns"]) / 1e9,
        held=np.maximum(some["close_ns"] - some["open_ns"], 0) / 1e9,
        run_delay=(some["collate_runq_ns"] + some["compute_runq_ns"]) / 1e9,
        padding=np.asarray(padding, dtype=np.float64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting at one load.

    :param load: multiple of the recorded rate.
    :param achieved: requests ended ``ok`` per second, the mean over the replays.
    :param percentile: the objective's, in seconds, over all replays together; lost requests count as slower than any.
    :param runs: the same of each replay alone.
    :param slow: share of requests beyond the objective's limit; ``None`` without a limit.
    :param saturated: the backlog kept growing in at least half of the replays.
    :param enough: the replays together hold enough slow requests for the percentile.
    """

    load: float
    achieved: float
    percentile: Interval
    runs: tuple[float, ...]
    slow: Interval | None
    saturated: bool
    enough: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Document):
    """How much replays of the same cell differ beyond what their requests explain.

    :param ratio: one standard deviation of a replay's percentile as a factor: 1.1 is ten percent up or down.
        It starts at :data:`USUAL_SPREAD`, which counts as much as four repeats.
    :param freedom: repeats beyond the first, over all cells.
    :param largest: the largest ratio of two replays of one cell.
    """

    ratio: float = field(metadata=json_key("run_to_run_ratio"))
    freedom: int = field(metadata=json_key("repeats"))
    largest: float | None = field(metadata=json_key("largest_ratio"))


def cell_of(load: float, points: Sequence[LoadPoint], target: LatencyObjective) -> Cell:
    """Combine all replays of one setting at one load; at least one."""
    series = [point.latency for point in points]
    saturated = 2 * sum(point.grew for point in points) >= len(points)
    return Cell(
        load=load,
        achieved=float(np.mean([point.achieved for point in points])),
        percentile=_followed(points, target),
        runs=tuple(_followed([point], target).value for point in points),
        slow=None if target.limit is None else slow_share(series, [point.age for point in points], target),
        saturated=saturated,
        enough=target.enough(sum(len(part) for part in series)),
    )


def _followed(points: Sequence[LoadPoint], target: LatencyObjective) -> Interval:
    """The percentile; for a replay that was ended early a lower bound, from the ages of requests in flight."""
    found = percentile_of([followed(point) for point in points], target.percentile)
    return replace(found, hi=math.inf) if any(point.cut for point in points) else found


def followed(point: LoadPoint) -> Floats:
    """Latencies in seconds, ages of requests in flight at an early end, infinite for lost requests."""
    seen = np.where(point.age >= 0, point.age, math.inf) if point.cut else math.inf
    return np.where(np.isfinite(point.latency), point.latency, seen)


def run_spread(cells: Sequence[Cell]) -> Spread:
    """Pooled variance of the logarithm between replays of a cell, less what their requests explain.

    Saturated cells are left out: the length of a backlog says nothing about a steady service.
    """
    total, explained, freedom, largest = 0.0, 0.0, 0, None
    z = normal_quantile(0.95)
    for cell in cells:
        values = [value for value in cell.runs if math.isfinite(value) and value > 0]
        if cell.saturated or len(values) < 2:
            continue
        logs = np.log(values)
        total += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(values) - 1
        largest = max(largest or 1.0, max(values) / min(values))
        lo, hi = cell.percentile.lo, cell.percentile.hi
        half = math.log(hi / lo) / 2 if 0 < lo <= hi < math.inf else math.inf
        explained += (len(values) - 1) * min((half / z) ** 2 * len(values), float(logs.var(ddof=1)))
    beyond = max(0.0, total - explained) + _USUAL_FREEDOM * math.log(USUAL_SPREAD) ** 2
    ratio = math.exp(math.sqrt(beyond / (freedom + _USUAL_FREEDOM)))
    return Spread(ratio=ratio, freedom=freedom, largest=largest)
