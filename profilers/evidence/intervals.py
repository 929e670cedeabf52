"""Sets of time intervals and their overlap with spans; quantities that grow evenly within intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Disjoint intervals in order of time.

    :param start: ``(k,)`` nanoseconds.
    :param end: ``(k,)`` nanoseconds, at or after ``start``.
    """

    start: Ints
    end: Ints

    @classmethod
    def merged(cls, start: Ints, duration: Ints) -> Intervals:
        """The union of intervals that may overlap."""
        keep = duration > 0
        begin, end = start[keep], (start + duration)[keep]
        if not len(begin):
            return cls(start=np.empty(0, np.int64), end=np.empty(0, np.int64))
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
        reach = np.maximum.accumulate(end)
        first = np.concatenate([[True], begin[1:] > reach[:-1]])
        last = np.concatenate([first[1:], [True]])
        return cls(start=begin[first], end=reach[last])

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: Bools) -> Intervals:
        """Some of them."""
        return Intervals(start=self.start[chosen], end=self.end[chosen])

    @property
    def longest_ns(self) -> int:
        """The longest interval; zero without any."""
        return int((self.end - self.start).max(initial=0))

    def covered(self, start: Ints, end: Ints) -> Ints:
        """Nanoseconds of each span ``[start, end)`` that lie in the set."""
        if not len(self.start):
            return np.zeros(len(start), np.int64)
        return np.asarray(np.maximum(self._until(end) - self._until(start), 0), dtype=np.int64)

    def _until(self, t: Ints) -> Ints:
        before = np.concatenate([[0], np.cumsum(self.end - self.start)])
        k = np.searchsorted(self.start, t, side="right")
        inside = np.where(k > 0, np.minimum(t, self.end[np.maximum(k - 1, 0)]) - self.start[np.maximum(k - 1, 0)], 0)
        return np.asarray(before[np.maximum(k - 1, 0)] + inside, dtype=np.int64)


NO_INTERVALS = Intervals(start=np.empty(0, np.int64), end=np.empty(0, np.int64))


class Overlaps:
    """Finds the spans that may overlap an interval, without looking at all of them.

    :param start: ``(n,)``, as ``end``, in any order.
    """

    def __init__(self, start: Ints, end: Ints) -> None:
        self._order = np.argsort(start, kind="stable")
        self._start = start[self._order]
        self._longest = int((end - start).max(initial=0))

    def near(self, begin: int, end: int) -> Ints:
        """Rows, ascending: all spans that touch ``[begin, end]``, and others not much before it."""
        low, high = np.searchsorted(self._start, [begin - self._longest, end + 1])
        return np.sort(self._order[low:high])


@dataclass(frozen=True, slots=True)
class Timeline:
    """Quantities that grow evenly within each of a thread's consecutive units.

    :param start: ``(u,)``, as ``end``; ``so_far`` ``(q, u + 1)`` sums of each quantity before each unit.
    """

    start: Ints
    end: Ints
    so_far: Floats

    @classmethod
    def of(cls, start: Ints, end: Ints, values: Floats) -> Timeline:
        order = np.argsort(start, kind="stable")
        so_far = np.zeros((len(values), len(start) + 1))
        np.cumsum(values[:, order], axis=1, out=so_far[:, 1:])
        return cls(start[order], end[order], so_far)

    def between(self, start: Ints, end: Ints) -> Floats:
        """``(q, n)``: growth of each quantity between two times."""
        return self._until(end) - self._until(start)

    def _until(self, t: Ints) -> Floats:
        if not len(self.start):
            return np.zeros((len(self.so_far), len(t)))
        k = np.maximum(np.searchsorted(self.start, t, side="right") - 1, 0)
        length = np.maximum(self.end[k] - self.start[k], 1)
        part = np.clip((t - self.start[k]) / length, 0.0, 1.0)
        before = self.so_far[:, k]
        return np.asarray(before + part * (self.so_far[:, k + 1] - before), dtype=np.float64)
