"""A service in a few figures: batch time by size, capacity, and the queue's relaxation time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats

#: Weights follow the fitted level, not the noise of each batch.
_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchService:
    """The time of a batch by its size: ``fixed + each * size`` seconds on average.

    :param scv: squared coefficient of variation around that.
    """

    fixed: float
    each: float
    scv: float

    def mean(self, size: npt.ArrayLike) -> Floats:
        """Mean time of batches of these sizes."""
        return np.asarray(self.fixed + self.each * np.asarray(size, dtype=np.float64), dtype=np.float64)


def mean_and_scv(samples: npt.ArrayLike) -> tuple[float, float]:
    """Mean and squared coefficient of variation; zeros without samples."""
    values = np.asarray(samples, dtype=np.float64)
    mean = float(values.mean()) if len(values) else 0.0
    return mean, float(values.var()) / mean**2 if mean > 0 else 0.0


def fit_batch_service(sizes: npt.ArrayLike, times: npt.ArrayLike) -> BatchService:
    """Fit ``fixed + each * size`` to measured batches, both not negative, by least relative squares.

    If all batches have one size, each request is assumed to need its share, so that batching is never credited with
    an unmeasured gain.

    :param times: seconds of each batch, in the order of ``sizes``; at least one.
    """
    from scipy.optimize import nnls

    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(times, dtype=np.float64)
    columns = np.column_stack([np.ones(len(size)) if np.ptp(size) > 0 else np.zeros(len(size)), size])
    level = np.full(len(size), max(float(np.median(time)), 1e-12))
    for _ in range(_PASSES):
        line, _ = nnls(columns / level[:, None], time / level)
        level = np.maximum(columns @ line, 1e-12)
    return BatchService(fixed=float(line[0]), each=float(line[1]), scv=mean_and_scv(time / level)[1])


def relaxation_time(rate: float, capacity: float) -> float:
    """The time in which an M/M/1 queue forgets its state (Cohen, 1969): infinite if it is overloaded.

    Mean service over ``(1 - sqrt(busy))**2``. Counts of arrivals over this time decide a wait, and a measurement must
    last many times as long for the queue to settle. Several servers are treated as one that is as fast as all.

    :param rate: arrivals per unit of time, and ``capacity`` the most that can be served in it.
    """
    busy = rate / capacity
    return 1 / capacity / (1 - math.sqrt(busy)) ** 2 if busy < 1 else math.inf
