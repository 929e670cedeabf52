"""Percentiles of streamed values, in one or two passes.

A histogram with bins of equal ratio gives any percentile to a twentieth of a percent. A second pass counts the values
in the bins that hold the wanted ranks one by one, which makes percentiles exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.statistics.latency_summary import percentile_ns

Values = Ints | Floats

#: Bits of the mantissa that a bin keeps: 1024 bins per doubling, 0.1 % from one to the next.
_BITS = 10
_SHIFT = 52 - _BITS
_ZERO = 1023 << _BITS
_BINS = (44 << _BITS) + 1
#: Most steps in which a bin is counted: whole nanoseconds up to a value of 268 ms, 2^-28 of it beyond.
_STEPS = 1 << 18


class LogHistogram:
    """Counts of nonnegative values below 2^44 in bins of equal ratio; values below one count as zero."""

    __slots__ = ("counts",)

    def __init__(self, counts: Ints | None = None) -> None:
        self.counts: Ints = np.zeros(_BINS, np.int64) if counts is None else counts

    def add(self, values: Values) -> None:
        """Count values."""
        if len(values):
            self.counts += np.bincount(_bins(values), minlength=_BINS)

    def __iadd__(self, other: LogHistogram) -> LogHistogram:
        self.counts += other.counts
        return self

    def __len__(self) -> int:
        return int(self.counts.sum())

    def percentile(self, q: float) -> float:
        """The ``q``-th percentile (0..100), to a twentieth of a percent; 0 for none."""
        total = len(self)
        if not total:
            return 0.0
        return self.value_at((total - 1) * q / 100)

    def value_at(self, rank: float) -> float:
        """The value at a rank counted from 0, spread evenly within its bin."""
        bin_, within = self.bin_of(rank)
        low, high = _edges(bin_)
        share = (within + 0.5) / max(int(self.counts[bin_]), 1)
        return low + (high - low) * min(max(share, 0.0), 1.0)

    def bin_of(self, rank: float) -> tuple[int, float]:
        """The bin that holds a rank counted from 0, and the rank within the bin."""
        running = np.cumsum(self.counts)
        bin_ = min(int(np.searchsorted(running, rank, side="right")), _BINS - 1)
        return bin_, rank - (int(running[bin_]) - int(self.counts[bin_]))


class Distribution:
    """Total, maximum and percentiles of counted values: exact by keeping them all, or from a histogram."""

    __slots__ = ("_kept", "histogram", "largest", "total")

    def __init__(self, *, exact: bool) -> None:
        self._kept: list[Values] | None = [] if exact else None
        self.histogram = None if exact else LogHistogram()
        self.total = 0
        self.largest = 0

    def add(self, values: Ints) -> None:
        """Count values."""
        if not len(values):
            return
        self.total += int(values.sum())
        self.largest = max(self.largest, int(values.max()))
        if self.histogram is not None:
            self.histogram.add(values)
        elif self._kept is not None:
            self._kept.append(values)

    def __iadd__(self, other: Distribution) -> Distribution:
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        if self.histogram is not None and other.histogram is not None:
            self.histogram += other.histogram
        elif self._kept is not None and other._kept is not None:
            self._kept += other._kept
        return self

    def __len__(self) -> int:
        return len(self.histogram) if self.histogram is not None else sum(map(len, self._kept or ()))

    def percentile(self, q: float) -> float:
        """The ``q``-th percentile (0..100); 0 for none."""
        if self.histogram is not None:
            return self.histogram.percentile(q)
        return percentile_ns(np.concatenate(self._kept), q) if self._kept else 0.0


class ExactPercentiles:
    """Percentiles by a second pass over whole numbers, given their histogram.

    Interpolated linearly between order statistics, as :func:`latfix.statistics.latency_summary.percentile_ns` does.
    """

    def __init__(self, histogram: LogHistogram, wanted: Sequence[float]) -> None:
        total = len(histogram)
        self._places = {q: (total - 1) * q / 100 for q in wanted} if total else {}
        self._histogram = histogram
        ranks = {int(rank) + step for rank in self._places.values() for step in (0, 1) if rank + step < total}
        self._where = {rank: histogram.bin_of(rank) for rank in ranks}
        self._inside = {bin_: np.zeros(0, np.int64) for bin_, _ in self._where.values()}

    def add(self, values: Ints) -> None:
        """Count the values of the second pass; it must include all that the histogram counted."""
        bins = _bins(values)
        for bin_ in self._inside:
            first, step, steps = _ladder(bin_)
            known = self._inside[bin_] if len(self._inside[bin_]) else np.zeros(steps, np.int64)
            known += np.bincount((values[bins == bin_] - first) // step, minlength=steps)
            self._inside[bin_] = known

    def values(self) -> dict[float, float]:
        """By wanted percentile (0..100); empty if nothing was counted."""
        at = {rank: self._value(bin_, within) for rank, (bin_, within) in self._where.items()}
        result = {}
        for q, place in self._places.items():
            low = int(place)
            result[q] = at[low] + (at.get(low + 1, at[low]) - at[low]) * (place - low)
        return result

    def _value(self, bin_: int, within: float) -> float:
        first, step, _ = _ladder(bin_)
        at = int(np.searchsorted(np.cumsum(self._inside[bin_]), within, side="right"))
        return float(first + at * step)


def _bins(values: Values) -> Ints:
    at_least_one = np.maximum(values, 0).astype(np.float64)
    bins = (at_least_one.view(np.int64) >> _SHIFT) - _ZERO + 1
    return np.asarray(np.clip(bins, 0, _BINS - 1), dtype=np.int64)


def _edges(bin_: int) -> tuple[float, float]:
    """Lower and upper edge of a bin."""
    if bin_ == 0:
        return 0.0, 0.0
    ends = (np.array([bin_ - 1, bin_], np.int64) + _ZERO) << _SHIFT
    low, high = ends.view(np.float64)
    return float(low), float(high)


def _ladder(bin_: int) -> tuple[int, int, int]:
    """First whole number of a bin, the width of its counting steps and their number."""
    low, high = _edges(bin_)
    first = int(np.ceil(low))
    width = max(int(np.ceil(high)) - first, 1)
    step = -(-width // _STEPS)
    return first, step, -(-width // step)
