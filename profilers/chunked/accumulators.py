"""Sums over a large run, piece by piece: all that its diagnosis says, without its ledger in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from latfix.profilers.causes import CAUSES
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.evidence.work_model import Floats, Ints
from latfix.results.diagnosis import Ledger
from latfix.stages import STAGES, STATUS_NAMES
from latfix.statistics.quantile_sketch import LogHistogram

#: A cause touched a request where its own part exceeds this.
OWN_FLOOR_NS = 1_000
_ENTRIES = len(CAUSES)
_OBSERVER = [cause.id for cause in CAUSES].index("observer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is counted where.

    :param block_rows: rows of the record in a block, of which there are ``blocks``; the bootstrap draws so many
        neighbors ``together`` as depend on each other.
    :param bands_ns: ascending bounds of latency around the tail's, between which sums are kept apart.
    :param tail_ns: the tail is at or above it; ``listed_ns`` the rows that are kept whole.
    :param limits_ns: percentiles of latency whose exceedances are counted by block.
    :param edges_ns: of the windows of the run; ``moments_ns`` of the finer slots that say when a cause struck.
    :param once: rows of the ledger of causes that belong to a run's start; requests that they touched are in
        every resample.
    :param removals: sets of causes for which latencies without them are predicted.
    """

    block_rows: int
    blocks: int
    together: int
    bands_ns: Floats
    tail_ns: float
    listed_ns: float
    limits_ns: Floats
    edges_ns: Floats
    moments_ns: Floats
    once: tuple[int, ...]
    removals: tuple[tuple[str, ...], ...]

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return len(self.edges_ns) - 1


@dataclass(slots=True, kw_only=True)
class StageTally:
    """One stage of the measured ``ok`` requests, nanoseconds."""

    histogram: LogHistogram = field(default_factory=LogHistogram)
    total: int = 0
    tail: int = 0


class RunTally:
    """The sums. Row ``k`` belongs to ``CAUSES[k]``; times in nanoseconds.

    Block ``layout.blocks`` holds the requests that a cause of ``once`` touched.
    """

    def __init__(self, layout: Layout) -> None:
        bands, blocks = len(layout.bands_ns) + 1, layout.blocks + 1
        self.layout = layout
        self.requests = 0
        self.tail_requests = 0
        self.tail_latency = 0
        self.quiet = 0
        self.closure = 0
        self.conservation_error = 0
        self.latency_total = 0
        self.latency_largest = 0
        self.lag_largest = 0
        self.statuses = np.zeros(len(STATUS_NAMES), np.int64)
        self.tail_own, self.tail_propagated = np.zeros(_ENTRIES, np.int64), np.zeros(_ENTRIES, np.int64)
        self.present = np.zeros(_ENTRIES, dtype=bool)
        self.touched, self.largest = np.zeros(_ENTRIES, np.int64), np.zeros(_ENTRIES, np.int64)
        self.band_counts = np.zeros((blocks, bands), np.int64)
        self.band_entries = np.zeros((_ENTRIES, blocks, bands))
        self.band_spread = np.zeros((_ENTRIES, bands))
        self.block_latency = np.zeros(layout.blocks)
        self.block_requests = np.zeros(layout.blocks, np.int64)
        self.block_largest = np.zeros(layout.blocks, np.int64)
        self.block_beyond = np.zeros((len(layout.limits_ns), layout.blocks), np.int64)
        self.window_latency = [LogHistogram() for _ in range(layout.windows)]
        self.window_entries = np.zeros((_ENTRIES, layout.windows))
        self.window_offered = np.zeros(layout.windows, np.int64)
        self.moment_own = np.zeros((_ENTRIES, len(layout.moments_ns) - 1))
        self.moment_requests = np.zeros(len(layout.moments_ns) - 1, np.int64)
        self.stages = {stage: StageTally() for stage in STAGES}
        self.lag, self.observed = LogHistogram(), LogHistogram()
        self.without = [LogHistogram() for _ in layout.removals]
        self.listed: list[Ledger] = []

    def add(self, first_row: int, evidence: Evidence, ledger: Ledger, closure_ns: Ints, spread: Floats) -> None:
        """Count a piece.

        :param first_row: of the piece in the record; ``ledger`` counts from the run's reference.
        :param spread: ``(K, n)`` standard errors of entries that rest on fitted or calibrated figures.
        """
        self._add_rows(evidence)
        if not len(ledger.latency_ns):
            return
        entries = ledger.own_ns + ledger.propagated_ns
        present = np.flatnonzero(ledger.own_ns.any(axis=1) | ledger.propagated_ns.any(axis=1))
        self.present[present] = True
        own = ledger.own_ns[present]
        self.touched[present] += np.count_nonzero(own > OWN_FLOOR_NS, axis=1)
        self.largest[present] = np.maximum(self.largest[present], own.max(axis=1))
        self.observed.add(ledger.own_ns[_OBSERVER])
        self.conservation_error = max(self.conservation_error, ledger.conservation_error_ns())
        self._add_latency(evidence, ledger, closure_ns)
        self._add_blocks(first_row, evidence, ledger, entries, present, spread)
        self._add_times(evidence, ledger, entries, present)
        self._list(ledger)

    def _add_rows(self, evidence: Evidence) -> None:
        rows = evidence.rows
        measured = rows["warmup"] == 0
        self.statuses += np.bincount(rows["status"][measured], minlength=len(STATUS_NAMES))
        lag = rows["dispatch_ns"][measured]
        self.lag.add(lag)
        self.lag_largest = max(self.lag_largest, int(lag.max(initial=0)))
        arrival = rows["arrival_ns"][measured]
        edges = self.layout.edges_ns
        inside = arrival[(arrival >= edges[0]) & (arrival <= edges[-1])]
        self.window_offered += np.bincount(_slot(inside, edges), minlength=self.layout.windows)

    def _add_latency(self, evidence: Evidence, ledger: Ledger, closure_ns: Ints) -> None:
        latency, ok = ledger.latency_ns, evidence.ok
        tail = latency >= self.layout.tail_ns
        self.requests += len(latency)
        self.tail_requests += int(np.count_nonzero(tail))
        self.tail_latency += int(latency[tail].sum())
        self.tail_own += ledger.own_ns[:, tail].sum(axis=1)
        self.tail_propagated += ledger.propagated_ns[:, tail].sum(axis=1)
        self.quiet += int(np.count_nonzero(evidence.quiet))
        self.closure += int(closure_ns[tail].sum())
        self.latency_total += int(latency.sum())
        self.latency_largest = max(self.latency_largest, int(latency.max()))
        for stage, tally in self.stages.items():
            values = evidence.rows[f"{stage}_ns"][ok]
            tally.histogram.add(values)
            tally.total += int(values.sum())
            tally.tail += int(values[tail].sum())

    def _add_blocks(
        self, first_row: int, evidence: Evidence, ledger: Ledger, entries: Ints, present: Ints, spread: Floats
    ) -> None:
        layout, latency = self.layout, ledger.latency_ns
        bands = len(layout.bands_ns) + 1
        block = np.minimum((first_row + np.flatnonzero(evidence.ok)) // layout.block_rows, layout.blocks - 1)
        first, last = int(block[0]), int(block[-1]) + 1
        here = block - first
        self.block_latency[first:last] += np.bincount(here, latency, last - first)
        self.block_requests[first:last] += np.bincount(here, minlength=last - first)
        np.maximum.at(self.block_largest, block, latency)
        for k, limit in enumerate(layout.limits_ns):
            self.block_beyond[k, first:last] += np.bincount(here[latency > limit], minlength=last - first)
        touched = np.zeros(len(latency), dtype=bool)
        for k in layout.once:
            touched |= entries[k] > 0.05 * max(ledger.reference_ns, 1)
        band = np.searchsorted(layout.bands_ns, latency, side="right")
        place = np.where(touched, layout.blocks, block) * bands + band
        self.band_counts += np.bincount(place, minlength=self.band_counts.size).reshape(self.band_counts.shape)
        for k in present:
            self.band_entries[k] += np.bincount(place, entries[k], self.band_counts.size).reshape(-1, bands)
            if spread[k].any():
                self.band_spread[k] += np.bincount(band, spread[k], bands)

    def _add_times(self, evidence: Evidence, ledger: Ledger, entries: Ints, present: Ints) -> None:
        layout, rows, ok = self.layout, evidence.rows, evidence.ok
        arrival = rows["arrival_ns"][ok]
        window = _slot(arrival, layout.edges_ns)
        for k in np.unique(window).tolist():
            self.window_latency[k].add(ledger.latency_ns[window == k])
        begun = arrival + (rows["dispatch_ns"] + rows["prepare_ns"] + rows["queue_ns"])[ok]
        moment, moments = _slot(begun, layout.moments_ns), len(self.moment_requests)
        self.moment_requests += np.bincount(moment, minlength=moments)
        for k in present:
            self.window_entries[k] += np.bincount(window, entries[k], layout.windows)
            struck = np.flatnonzero(ledger.own_ns[k] > 0)
            if len(struck):
                self.moment_own[k] += np.bincount(moment[struck], ledger.own_ns[k, struck], moments)

    def _list(self, ledger: Ledger) -> None:
        keep = np.flatnonzero(ledger.latency_ns >= self.layout.listed_ns)
        if len(keep):
            self.listed.append(rows_of(ledger, keep))


def rows_of(ledger: Ledger, rows: npt.NDArray[np.int64]) -> Ledger:
    """Some rows of a ledger."""
    return Ledger(
        request=ledger.request[rows],
        latency_ns=ledger.latency_ns[rows],
        reference_ns=ledger.reference_ns,
        causes=ledger.causes,
        own_ns=ledger.own_ns[:, rows],
        propagated_ns=ledger.propagated_ns[:, rows],
        classes=ledger.classes,
        ids=tuple(ledger.ids[k] for k in rows.tolist()) if ledger.ids else (),
    )


def stacked(ledgers: Sequence[Ledger], most: int) -> Ledger:
    """One ledger of several, in order of the requests: the slowest of them, at most so many."""
    first = ledgers[0]
    whole = Ledger(
        request=np.concatenate([ledger.request for ledger in ledgers]),
        latency_ns=np.concatenate([ledger.latency_ns for ledger in ledgers]),
        reference_ns=first.reference_ns,
        causes=first.causes,
        own_ns=np.concatenate([ledger.own_ns for ledger in ledgers], axis=1),
        propagated_ns=np.concatenate([ledger.propagated_ns for ledger in ledgers], axis=1),
        classes=first.classes,
        ids=tuple(name for ledger in ledgers for name in ledger.ids),
    )
    slowest = np.argsort(whole.latency_ns, kind="stable")[-most:]
    return rows_of(whole, slowest[np.argsort(whole.request[slowest], kind="stable")])


def _slot(at_ns: Ints, edges_ns: Floats) -> Ints:
    """Which of equally long slots each moment lies in; outside ones belong to the nearest."""
    slots = len(edges_ns) - 1
    width = (edges_ns[-1] - edges_ns[0]) / slots
    return np.asarray(np.clip(((at_ns - edges_ns[0]) / width).astype(np.int64), 0, slots - 1), dtype=np.int64)
