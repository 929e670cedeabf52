"""Predicts the cost of a request from the batches that a service runs: compute time and memory by length.

Only decayed sums are kept, so learning from a batch takes microseconds. Until enough is known, and if length does not
predict the cost, all requests have the same expected cost: an order by expected work is then the order of arrival.
"""

from __future__ import annotations

import math
import statistics
import threading
from dataclasses import dataclass

#: A batch's weight halves over 64 more batches.
_DECAY = 0.5 ** (1 / 64)
#: Batches before anything is predicted from length.
_ENOUGH = 12
#: Minimum ratio of a slope to its standard error.
_TELLS = 3.0
#: A time counts up to this many mean deviations above the expected one: the rest is a pause, not the input's cost.
_CLIP = 5.0
#: It counts up to this share above the expected one in any case, so that a constant service can become slower.
_AT_LEAST = 0.25
#: The first times count up to this multiple of their median.
_COLD = 3.0


class _Mean:
    """A mean with decaying weights."""

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self._count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        self.value += max(1.0 - _DECAY, 1.0 / self._count) * (value - self.value)


class _Fit:
    """Time as a linear function of the batch size and one more quantity, from decayed sums."""

    __slots__ = ("n", "x", "xx", "xy", "y", "yy", "z", "zx", "zy", "zz")

    def __init__(self) -> None:
        self.n = self.x = self.y = self.z = 0.0
        self.xx = self.xy = self.yy = self.zx = self.zy = self.zz = 0.0

    def add(self, size: float, x: float, y: float) -> None:
        keep = _DECAY
        self.n = keep * self.n + 1.0
        self.x, self.y, self.z = keep * self.x + x, keep * self.y + y, keep * self.z + size
        self.xx, self.xy, self.yy = keep * self.xx + x * x, keep * self.xy + x * y, keep * self.yy + y * y
        self.zx, self.zy = keep * self.zx + size * x, keep * self.zy + size * y
        self.zz = keep * self.zz + size * size

    def line(self) -> Line:
        """The line; its slope is 0 if ``x`` explains nothing that the size does not."""
        n = max(self.n, 1e-9)
        sxx, syy, szz = self.xx - self.x**2 / n, self.yy - self.y**2 / n, self.zz - self.z**2 / n
        sxy, szx, szy = self.xy - self.x * self.y / n, self.zx - self.z * self.x / n, self.zy - self.z * self.y / n
        by_size = szz > 1e-9 * self.zz
        alone = szy / szz if by_size else 0.0
        flat = Line((self.y - alone * self.z) / n, alone, 0.0, 0.0)
        # The parts of x and y that the size does not explain (Frisch and Waugh 1933).
        rxx, rxy, ryy = sxx, sxy, syy
        if by_size:
            rxx, rxy, ryy = sxx - szx**2 / szz, sxy - szx * szy / szz, syy - szy**2 / szz
        if self.n < _ENOUGH or rxx <= 1e-9 * self.xx or ryy <= 1e-12 * self.yy:
            return flat
        r2, slope = min(rxy * rxy / (rxx * ryy), 1.0), rxy / rxx
        # Student's t of a correlation: r * sqrt(degrees of freedom / (1 - r2)).
        telling = math.sqrt(r2 * max(self.n - 3.0, 0.0) / max(1.0 - r2, 1e-9)) >= _TELLS
        if slope <= 0.0 or not telling:
            return flat
        each = (szy - slope * szx) / szz if by_size else 0.0
        return Line((self.y - each * self.z - slope * self.x) / n, each, slope, r2)


@dataclass(frozen=True, slots=True)
class Line:
    """``height + each * size + slope * x``; ``explained`` is the share of the rest after size that ``x`` explains."""

    height: float
    each: float
    slope: float
    explained: float

    def at(self, size: float, x: float) -> float:
        """The time, at least 0."""
        return max(self.height + self.each * size + self.slope * x, 0.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """What the estimate learns from a batch.

    :param longest: its largest bucket length; ``total`` is the sum of all.
    :param elements: total elements of its members' inputs, without padding.
    :param compute_ns: duration of the compute.
    :param busy_ns: how long it held its worker, including batching and finishing.
    :param backlog: requests were left waiting when it was formed.
    """

    size: int
    longest: int
    total: int
    elements: int
    compute_ns: int
    busy_ns: int
    backlog: bool = False


class WorkEstimate:
    """Predicts compute time and memory of requests by bucket length.

    A batch's time depends on its longest member (token by token), or on all members padded to that one (matrix
    products); the better predictor of the two is used. All methods may be called by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[Batch] = []
        self._longest, self._padded = _Fit(), _Fit()
        self._length, self._brought = _Mean(), _Mean()
        self._busy, self._each, self._pressed, self._deviation = _Mean(), _Mean(), _Mean(), _Mean()
        #: The mean deviation of ``batch_ns``, and the part of it that is not compute: batching and finishing.
        self.spread, self.beside = _Mean(), _Mean()
        self._memory = self._elements = 0.0
        self.batches = 0
        #: Compute time of a batch by its size and its longest member, or its padded length if that explains more.
        self.line = Line(0.0, 0.0, 0.0, 0.0)
        self._by_padded = False

    def learn(self, batch: Batch) -> None:
        with self._lock:
            self.batches += 1
            if self.batches > _ENOUGH:
                expected = self.batch_compute_ns(batch.size, batch.longest)
                reach = max(_CLIP * self._deviation.value, _AT_LEAST * expected)
                self._take(batch, min(float(batch.compute_ns), expected + reach))
                return
            self._early.append(batch)
            if self.batches == _ENOUGH:
                # The first batches of a service may have compiled, or faulted its memory in: none counts for more
                # than a few of the others.
                usual = _COLD * statistics.median(early.compute_ns for early in self._early)
                for early in self._early:
                    self._take(early, min(float(early.compute_ns), usual))
                self._early.clear()

    def _take(self, batch: Batch, compute_ns: float) -> None:
        size, longest = batch.size, float(batch.longest)
        self._longest.add(size, longest, compute_ns)
        self._padded.add(size, size * longest, compute_ns)
        self._length.add(batch.total / size)
        self._brought.add(batch.elements / size)
        by_longest, by_padded = self._longest.line(), self._padded.line()
        self._by_padded = by_padded.explained > by_longest.explained
        self.line = by_padded if self._by_padded else by_longest
        busy = batch.busy_ns - batch.compute_ns + compute_ns
        self._busy.add(busy)
        self.beside.add(max(batch.busy_ns - batch.compute_ns, 0))
        self._each.add(busy / size)
        if batch.backlog:
            self._pressed.add(busy / size)
        self.spread.add(abs(busy - self._busy.value))
        expected = self.batch_compute_ns(size, batch.longest)
        self._deviation.add(abs(compute_ns - expected))

    def batch_compute_ns(self, size: int, longest: int) -> float:
        """Expected compute time of a batch; 0 before the first dozen batches."""
        return self.line.at(size, size * longest if self._by_padded else longest)

    def learn_memory(self, elements: int, need_bytes: int) -> None:
        """Add the peak memory of a batch; ``elements`` includes padding."""
        with self._lock:
            self._memory = _DECAY * self._memory + max(need_bytes, 0)
            self._elements = _DECAY * self._elements + elements

    def compute_ns(self, length: float) -> float:
        """Expected compute time of a request alone; 0 before the first dozen batches."""
        return self.line.at(1, length)

    def share(self, length: int) -> float:
        """Expected compute time relative to a request of typical length; 1 if length does not predict it."""
        typical = self.compute_ns(self._length.value)
        return self.compute_ns(length) / typical if self.line.slope > 0.0 and typical > 0.0 else 1.0

    def memory_bytes(self, elements: int) -> int:
        """Predicted bytes of a request with so many elements; 0 before the first batch."""
        return int(self._memory / self._elements * elements) if self._elements > 0 else 0

    def sparseness(self, length: int, elements: int) -> float:
        """How many times less a request computes per byte of its memory than a typical one."""
        work, typical = self.share(length), self._brought.value
        return elements / typical / work if work > 0.0 and typical > 0.0 else 1.0

    @property
    def each_ns(self) -> float:
        """Mean time that a request holds a worker while others wait; 0 before the first dozen batches."""
        return self._pressed.value or self._each.value

    @property
    def batch_ns(self) -> float:
        """Mean time that a batch holds its worker; 0 before the first dozen batches."""
        return self._busy.value
