"""The figures of a diagnosis, summed over the ledgers of a run's chunks.

A run in one chunk keeps its ledger and every value, so its figures are exact. A run in several chunks keeps
histograms and sums over blocks of neighboring requests, in constant memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.attribution.cause_removal import QueueReplay
from latfix.profilers.attribution.tail import by_start
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.chunk_ledgers import Baselines, ChunkLedger, Scale
from latfix.profilers.chunked.survey import Survey
from latfix.profilers.over_time.time_windows import WindowTally, window_edges
from latfix.results.diagnosis import Ledger
from latfix.results.worker_summary import WorkerTally
from latfix.run_record.run_record import Throughput
from latfix.stages import OUTSIDE_STAGES, STAGES, STATUS_NAMES, Status
from latfix.statistics.block_bootstrap import block_length
from latfix.statistics.latency_summary import QUANTILES
from latfix.statistics.quantile_sketch import Distribution, LogHistogram

#: A cause touched a request if its own part exceeds this.
_OWN_FLOOR_NS = 1_000
#: From this share of the tail's excess on, waits for a worker justify a prediction with one more worker.
_WAITS = 0.5
_ENTRIES = len(CAUSES)
#: Blocks of requests that are resampled, and slots of time of a cause's activity. They bound the memory.
_BLOCKS, _MOMENTS = 2_000, 4_096
#: Shares of requests above the bands' bounds, relative to the tail's share.
_BOUNDS = (
    *(100.0, 70.0, 50.0, 35.0, 25.0, 17.0, 12.0, 8.0, 6.0, 4.0),
    *(3.0, 2.5, 2.0, 1.75, 1.5, 1.35, 1.25, 1.18, 1.12, 1.08, 1.05, 1.03, 1.015, 1.0),
    *(0.985, 0.97, 0.95, 0.92, 0.88, 0.82, 0.75, 0.65, 0.5, 0.35, 0.2),
)


def _bands_of(latency: LogHistogram, percentile: float, at_ns: float) -> Floats:
    """Bounds of latency around a percentile, nanoseconds, ascending; ``at_ns``, the percentile, is one of them."""
    n, share = len(latency), 1 - percentile / 100
    below = [latency.value_at((n - 1) * max(1 - share * part, 0.0)) if part != 1.0 else at_ns for part in _BOUNDS]
    return np.unique(below)


class RunTotals:
    """The sums. Row ``k`` of an array belongs to ``CAUSES[k]``; times in nanoseconds.

    :ivar tail: number of requests at or above the tail's percentile; ``tail_stages_ns`` their time by stage.
    :ivar sent: number of requests sent, warm-up included; ``sent_first_ns`` and ``sent_last_ns`` when.
    :ivar without: predicted latencies without each set of causes of ``removals``.
    :ivar another_worker: predicted latencies with one more worker; ``None`` unless slow requests mostly wait for a
        worker and the queue can be replayed.
    :ivar kept: the run's ledger if it is one chunk; ``blocks`` the sums otherwise.
    """

    def __init__(self, seen: Survey, baselines: Baselines, percentile: float, scale: Scale) -> None:
        self.exact = exact = seen.histogram is None
        self.tail_ns = seen.percentiles_ns[percentile]
        self.kept: ChunkLedger | None = None
        self._learned = learned = baselines.books.ledger
        self.blocks = None if exact else BlockTotals(seen, learned, percentile, scale)
        self.removals: list[tuple[str, ...]] = [(cause.id,) for cause in CAUSES]
        self.removals += [baselines.ranking[:count] for count in (2, 3) if len(baselines.ranking) >= count]
        self.without = [Distribution(exact=exact) for _ in self.removals]
        self.another_worker = Distribution(exact=exact) if _mostly_waits(baselines, self.tail_ns) else None
        self.windows: WindowTally | None = None
        self.span_s = (0.0, 0.0)
        if seen.requests:
            edges = window_edges(seen.requests, seen.first_ns, seen.last_ns)
            self.windows, self.span_s = WindowTally(edges, _ENTRIES, exact=exact), (float(edges[0]), float(edges[-1]))
        self.workers = WorkerTally(baselines.sample.meta, self.tail_ns, exact=exact)
        self.latency, self.lag = (Distribution(exact=exact) for _ in range(2))
        stages = OUTSIDE_STAGES if baselines.evidence.setup.outside else STAGES
        self.stages = {stage: Distribution(exact=exact) for stage in stages}
        self.tail_stages_ns = dict.fromkeys(stages, 0)
        self.sent, self.sent_first_ns, self.sent_last_ns = 0, 2**62, -(2**62)
        self.throughput = Throughput()
        self.statuses = np.zeros(len(STATUS_NAMES), np.int64)
        self.tail, self.tail_latency_ns = 0, 0
        self.tail_own, self.tail_propagated = np.zeros(_ENTRIES, np.int64), np.zeros(_ENTRIES, np.int64)
        self.present = np.zeros(_ENTRIES, dtype=bool)
        self.touched, self.largest = np.zeros(_ENTRIES, np.int64), np.zeros(_ENTRIES, np.int64)
        self.quiet, self.closure_ns, self.lock_closure_ns = 0, 0, 0

    @property
    def requests(self) -> int:
        """Number of ledger rows: requests that were measured, ended ``ok`` and were served in a batch."""
        return len(self.latency)

    def add(self, chunk: ChunkLedger) -> None:
        """Add the next chunk."""
        self._add_rows(chunk)
        self.workers.add(chunk.record)
        if self.exact:
            self.kept = chunk
        ledger = chunk.ledger
        if not len(ledger.latency_ns):
            return
        entries = ledger.own_ns + ledger.propagated_ns
        present = np.flatnonzero(ledger.own_ns.any(axis=1) | ledger.propagated_ns.any(axis=1))
        self.present[present] = True
        own = ledger.own_ns[present]
        self.touched[present] += np.count_nonzero(own > _OWN_FLOOR_NS, axis=1)
        self.largest[present] = np.maximum(self.largest[present], own.max(axis=1))
        self._add_latency(chunk)
        if self.windows is not None:
            arrival = chunk.evidence.rows["arrival_ns"][chunk.evidence.ok]
            self.windows.add(arrival, ledger.latency_ns, {int(k): entries[k] for k in present})
        if self.blocks is not None:
            self.blocks.add(chunk, entries, present)
        self._predict(chunk)

    def strikes(self, cause: int) -> tuple[Ints, Ints]:
        """A cause's own nanoseconds and the start of work, by request, or means of time slots."""
        if self.kept is not None:
            return self.kept.ledger.own_ns[cause], self.kept.begun_ns
        assert self.blocks is not None
        served, edges = self.blocks.moment_requests, self.blocks.moments_ns
        some = served > 0
        middle = ((edges[:-1] + edges[1:]) / 2)[some]
        each = (
            self.blocks.moment_own[cause][some] / served[some]
        )  # the mean, so that a busy slot is not a strong strike
        return each.astype(np.int64), middle.astype(np.int64)

    def ledger(self) -> Ledger:
        """The run's ledger, or its slowest rows."""
        if self.kept is not None:
            return self.kept.ledger
        assert self.blocks is not None
        return _stacked(self.blocks.listed or [self._learned], self.blocks.most_listed)

    def _add_rows(self, chunk: ChunkLedger) -> None:
        rows = chunk.evidence.rows
        sent_ns = rows["arrival_ns"] + rows["dispatch_ns"]
        self.sent += len(sent_ns)
        self.sent_first_ns = min(self.sent_first_ns, int(sent_ns.min(initial=self.sent_first_ns)))
        self.sent_last_ns = max(self.sent_last_ns, int(sent_ns.max(initial=self.sent_last_ns)))
        measured = rows["warmup"] == 0
        lost = measured & (rows["status"] != Status.OK)
        self.statuses += np.bincount(rows["status"][measured], minlength=len(STATUS_NAMES))
        self.lag.add(rows["dispatch_ns"][measured])
        self.throughput.add(rows)
        if self.windows is not None:
            self.windows.offer(rows["arrival_ns"][measured])
            self.windows.lose(rows["arrival_ns"][lost], rows["latency_ns"][lost])
        if self.blocks is not None:
            self.blocks.lose(chunk.first_row + np.flatnonzero(lost))

    def _add_latency(self, chunk: ChunkLedger) -> None:
        ledger, evidence = chunk.ledger, chunk.evidence
        latency, tail = ledger.latency_ns, ledger.latency_ns >= self.tail_ns
        self.latency.add(latency)
        self.tail += int(np.count_nonzero(tail))
        self.tail_latency_ns += int(latency[tail].sum())
        self.tail_own += ledger.own_ns[:, tail].sum(axis=1)
        self.tail_propagated += ledger.propagated_ns[:, tail].sum(axis=1)
        self.quiet += int(np.count_nonzero(evidence.quiet))
        self.closure_ns += int(chunk.closure_ns[tail].sum())
        self.lock_closure_ns += int(chunk.books.lock_closure_ns[tail].sum())
        for stage, taken in self.stages.items():
            values = evidence.stage_ns(stage)[evidence.ok]
            taken.add(values)
            self.tail_stages_ns[stage] += int(values[tail].sum())

    def _predict(self, chunk: ChunkLedger) -> None:
        """Add the predicted latencies without each set of causes."""
        ledger, books = chunk.ledger, chunk.books
        parts = (ledger.own_ns, ledger.propagated_ns, books.by_others)
        there = {cause for k, cause in enumerate(ledger.causes) if any(part[k].any() for part in parts)}
        changed = [k for k, removed in enumerate(self.removals) if there.intersection(removed)]
        unchanged = Distribution(exact=self.exact)
        unchanged.add(ledger.latency_ns)
        for k, latencies in enumerate(self.without):
            if k not in changed:
                latencies += unchanged
        carried = ledger.own_ns + ledger.propagated_ns - books.ledger.own_ns - books.ledger.propagated_ns
        backlog = bool(carried.any())
        queue = QueueReplay(books)
        for k, latency in zip(changed, queue.latencies_without([self.removals[k] for k in changed]), strict=True):
            if backlog:
                gone = [cause in self.removals[k] for cause in ledger.causes]
                latency = np.maximum(latency - carried[gone].sum(axis=0), 0)
            self.without[k].add(latency)
        if self.another_worker is not None:
            # The size of a backlog from before this chunk is unknown with another worker.
            faster = None if backlog else queue.latencies_with_another_worker()
            if faster is None:
                self.another_worker = None
            else:
                self.another_worker.add(faster)


def _mostly_waits(baselines: Baselines, tail_ns: float) -> bool:
    """True if waits for a worker are at least half of the tail's excess."""
    ledger, evidence = baselines.books.ledger, baselines.evidence
    slow = ledger.latency_ns >= tail_ns
    if evidence.setup.outside or not slow.any():
        return False
    excess_ns = ledger.latency_ns[slow].mean() - ledger.reference_ns
    return bool(evidence.stage_ns("queue")[evidence.ok][slow].mean() >= _WAITS * excess_ns)


class BlockTotals:
    """Sums over blocks of neighboring requests, bands of latency and slots of time.

    The last block has the requests that are slow by the start of the process, which are in every resample.

    :param learned: ledger of the sample, from which the dependence of neighbors is estimated.
    :ivar rows: rows per block; ``blocks`` their number; ``together`` the neighboring blocks that depend on each
        other and that the bootstrap draws as one.
    :ivar bands_ns: ascending bounds of latency bands around the start of the tail.
    :ivar listed_ns: requests from this latency on are kept individually, at most ``most_listed`` in the end.
    :ivar limits_ns: percentiles of all that arrived, in the order of ``QUANTILES``; requests beyond each are counted
        by block.
    :ivar moments_ns: bounds of the time slots for a cause's activity.
    """

    def __init__(self, seen: Survey, learned: Ledger, percentile: float, scale: Scale) -> None:
        assert seen.histogram is not None
        n, latency = seen.requests, seen.histogram
        self.rows = max(-(-seen.rows // _BLOCKS), 1)
        self.blocks = blocks = -(-seen.rows // self.rows)
        # The rule for the block length: dependence reaches further in longer series.
        dependent = block_length(learned.latency_ns) * math.cbrt(n / max(len(learned.latency_ns), 1))
        self.together = max(math.ceil(min(dependent, seen.rows / 8) / self.rows), 1)
        self.bands_ns = _bands_of(latency, percentile, seen.percentiles_ns[percentile])
        # Slightly more than are kept: the histogram's latency of a rank is exact to a twentieth of a percent.
        self.listed_ns = 0.998 * latency.value_at(n - scale.listed) if n > scale.listed else 0.0
        self.most_listed = scale.listed
        self.limits_ns = np.array([seen.arrived_ns[100 * q] for q in QUANTILES.values()])
        end = max(seen.last_ns, seen.first_ns + 1_000_000, seen.ended_ns)
        self.moments_ns = np.linspace(seen.first_ns, end, _MOMENTS + 1)
        self.listed: list[Ledger] = []
        bands = len(self.bands_ns) + 1
        self.band_counts: Ints = np.zeros((blocks + 1, bands), np.int64)
        self.band_entries: Floats = np.zeros((_ENTRIES, blocks + 1, bands))
        self.band_spread: Floats = np.zeros((_ENTRIES, bands))
        self.latency: Floats = np.zeros(blocks)
        self.requests: Ints = np.zeros(blocks, np.int64)
        self.lost: Ints = np.zeros(blocks, np.int64)
        self.largest: Ints = np.zeros(blocks, np.int64)
        self.beyond: Ints = np.zeros((len(self.limits_ns), blocks), np.int64)
        self.moment_own: Floats = np.zeros((_ENTRIES, _MOMENTS))
        self.moment_requests: Ints = np.zeros(_MOMENTS, np.int64)

    def add(self, chunk: ChunkLedger, entries: Ints, present: Ints) -> None:
        """Add a chunk's requests.

        :param entries: ``(K, n)`` own and propagated; ``present`` the causes that have any.
        """
        ledger = chunk.ledger
        block = np.minimum((chunk.first_row + np.flatnonzero(chunk.evidence.ok)) // self.rows, self.blocks - 1)
        self._add_blocks(ledger.latency_ns, block)
        self._add_bands(chunk, block, entries, present)
        self._add_moments(chunk, present)
        keep = np.flatnonzero(ledger.latency_ns >= self.listed_ns)
        if len(keep):
            self.listed.append(rows_of(ledger, keep))

    def lose(self, rows: Ints) -> None:
        """Add requests that did not end ``ok``, by their rows in the record."""
        self.lost += np.bincount(rows // self.rows, minlength=len(self.lost))

    def _add_blocks(self, latency: Ints, block: Ints) -> None:
        first, last = int(block[0]), int(block[-1]) + 1
        here = block - first
        self.latency[first:last] += np.bincount(here, latency, last - first)
        self.requests[first:last] += np.bincount(here, minlength=last - first)
        np.maximum.at(self.largest, block, latency)
        for k, limit in enumerate(self.limits_ns):
            self.beyond[k, first:last] += np.bincount(here[latency > limit], minlength=last - first)

    def _add_bands(self, chunk: ChunkLedger, block: Ints, entries: Ints, present: Ints) -> None:
        ledger, spread = chunk.ledger, chunk.books.doubt.spread
        bands = len(self.bands_ns) + 1
        band = np.searchsorted(self.bands_ns, ledger.latency_ns, side="right")
        place = np.where(by_start(ledger), self.blocks, block) * bands + band
        self.band_counts += np.bincount(place, minlength=self.band_counts.size).reshape(-1, bands)
        for k in present:
            self.band_entries[k] += np.bincount(place, entries[k], self.band_counts.size).reshape(-1, bands)
            if spread[k].any():
                self.band_spread[k] += np.bincount(band, spread[k], bands)

    def _add_moments(self, chunk: ChunkLedger, present: Ints) -> None:
        own = chunk.ledger.own_ns
        begin, end = self.moments_ns[[0, -1]]
        moment = np.clip(((chunk.begun_ns - begin) / ((end - begin) / _MOMENTS)).astype(np.int64), 0, _MOMENTS - 1)
        self.moment_requests += np.bincount(moment, minlength=_MOMENTS)
        for k in present:
            struck = np.flatnonzero(own[k] > 0)
            if len(struck):
                self.moment_own[k] += np.bincount(moment[struck], own[k, struck], _MOMENTS)


def rows_of(ledger: Ledger, rows: Ints) -> Ledger:
    """Some rows of a ledger."""
    return replace(
        ledger,
        request=ledger.request[rows],
        latency_ns=ledger.latency_ns[rows],
        own_ns=ledger.own_ns[:, rows],
        propagated_ns=ledger.propagated_ns[:, rows],
        ids=tuple(ledger.ids[k] for k in rows.tolist()) if ledger.ids else (),
    )


def _stacked(ledgers: Sequence[Ledger], most: int) -> Ledger:
    """The slowest rows of several ledgers as one, at most ``most``, in order of the requests."""
    whole = replace(
        ledgers[0],
        request=np.concatenate([ledger.request for ledger in ledgers]),
        latency_ns=np.concatenate([ledger.latency_ns for ledger in ledgers]),
        own_ns=np.concatenate([ledger.own_ns for ledger in ledgers], axis=1),
        propagated_ns=np.concatenate([ledger.propagated_ns for ledger in ledgers], axis=1),
        ids=tuple(name for ledger in ledgers for name in ledger.ids),
    )
    slowest = np.argsort(whole.latency_ns, kind="stable")[-most:]
    return rows_of(whole, slowest[np.argsort(whole.request[slowest], kind="stable")])
