"""The change of a batch's time when the model runs another way, from a few batches computed both ways.

The ratio of the two times depends on the batch: bfloat16 helps long inputs and slows short ones, a compiled model
saves most where operators are small, another backend may batch worse. So both times are fitted over the same simple
columns, and the simulation evaluates their ratio for each batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats
from latfix.files.json_documents import Document

#: With fewer batches, all batches have one ratio.
_LEAST = 3
#: Factor by which a predicted ratio may exceed the observed range.
_BEYOND = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost(Document):
    """The ratio of a batch's compute to its compute before the change.

    :param before: nonnegative coefficients over :func:`columns`, nanoseconds, as ``after``. Empty: one ratio.
    :param least: smallest observed ratio; ``most`` the largest; ``typical`` the median.
    :param together: how much longer a batch takes while all other workers compute; 1 for not at all.
    :param new_shape_ns: how many nanoseconds longer the first batch of a new shape takes.
    """

    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    least: float = 1.0
    most: float = 1.0
    typical: float = 1.0
    together: float = 1.0
    new_shape_ns: float = 0.0

    def scaled(self, factor: float) -> BatchCost:
        """The ratio times a factor, without the limits of the observed range."""
        after = tuple(factor * each for each in self.after)
        return replace(self, after=after, least=0.0, most=math.inf, typical=factor * self.typical)

    def ratio(self, columns: Sequence[float]) -> float:
        """The ratio of a batch with these :func:`columns`."""
        if not self.before:
            return self.typical
        was = sum(map(float.__mul__, self.before, columns))
        now = sum(map(float.__mul__, self.after, columns))
        return min(max(now / was, self.least / _BEYOND), self.most * _BEYOND) if was > 0 else self.typical


def columns(size: int, elements: float, longest: float, others: Sequence[float]) -> list[float]:
    """The columns that a batch's time depends on.

    :param elements: of all inputs, padding included.
    :param longest: length of the longest input.
    :param others: maximum over the members, by numeric feature.
    """
    return [1.0, float(size), elements, size * longest * longest, *(size * each for each in others)]


def fit_cost(batches: Sequence[Sequence[float]], before: Sequence[float], after: Sequence[float]) -> BatchCost | None:
    """The cost fitted to batches that were computed both ways; ``None`` without any.

    :param batches: :func:`columns` of each batch.
    :param before: nanoseconds of each batch; ``after`` the other way. NaN if it failed.
    """
    was, now = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    known = np.isfinite(was) & np.isfinite(now) & (was > 0) & (now > 0)
    if not known.any():
        return None
    was, now, what = was[known], now[known], np.asarray(batches, dtype=np.float64)[known]
    ratios = now / was
    typical = float(np.median(ratios))
    if len(was) < _LEAST:
        return BatchCost(least=float(ratios.min()), most=float(ratios.max()), typical=typical)
    return BatchCost(
        before=_coefficients(what, was),
        after=_coefficients(what, now),
        least=float(ratios.min()),
        most=float(ratios.max()),
        typical=typical,
    )


def _coefficients(batches: Floats, took: Floats) -> tuple[float, ...]:
    """Nonnegative least squares on relative errors: a larger batch is never predicted to take less time."""
    from scipy.optimize import nnls

    scale = np.maximum(batches.max(axis=0), 1e-12)
    found, _ = nnls(batches / scale / took[:, None], np.ones(len(took)))
    return tuple((found / scale).tolist())
