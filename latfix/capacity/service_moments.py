"""A service in a few figures: what batches take by their size, what it can serve, how soon its queue settles."""

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
    """What a batch takes, by its size: ``fixed + each * size`` seconds on average.

    :param scv: variance around that, over its square (squared coefficient of variation).
    """

    fixed: float
    each: float
    scv: float

    def mean(self, size: npt.ArrayLike) -> Floats:
        """Mean service of batches of these sizes."""
        return np.asarray(self.fixed + self.each * np.asarray(size, dtype=np.float64), dtype=np.float64)


def mean_and_scv(samples: npt.ArrayLike) -> tuple[float, float]:
    """Mean and squared coefficient of variation; zeros where there is nothing."""
    values = np.asarray(samples, dtype=np.float64)
    mean = float(values.mean()) if len(values) else 0.0
    return mean, float(values.var()) / mean**2 if mean > 0 else 0.0


def fit_batch_service(sizes: npt.ArrayLike, times: npt.ArrayLike) -> BatchService:
    """The line ``fixed + each * size`` through measured batches, both not negative, by least relative squares.

    Where all batches have one size, nothing is known of others: then each request is taken to need its share, so
    that batching is never credited with a gain that was not seen.

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
    """How long M/M/1 takes to forget its state: mean service over ``(1 - sqrt(busy))**2``; infinite when full.

    Cohen (1969). It is the time over which counts of arrivals decide a wait, and a measurement that does not last
    many times as long has not seen the queue settle. Several servers are taken for one that is as fast as all.

    :param rate: arrivals in a unit of time, and ``capacity`` what can be served in it.
    """
    busy = rate / capacity
    return 1 / capacity / (1 - math.sqrt(busy)) ** 2 if busy < 1 else math.inf
