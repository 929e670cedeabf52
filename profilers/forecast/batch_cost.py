"""How the time of a batch changes when the model runs another way, from the same few batches computed both ways.

The ratio of the two times depends on what is in a batch: bfloat16 pays for long inputs and costs for short ones, a
compiled model saves most where operators are small, another backend may batch worse than the one before. So both are
fitted over the same simple columns, and their ratio is asked for each batch that a simulation forms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats
from latfix.files.json_documents import Document

#: Fewer batches give one ratio for all.
_LEAST = 3
#: How far beyond the ratios that were seen one may be foretold.
_BEYOND = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost(Document):
    """A batch's compute over what it was.

    :param before: nonnegative coefficients over :func:`columns`, nanoseconds; ``after`` likewise. Empty: one ratio.
    :param least: the smallest ratio that was seen, ``most`` the largest, ``typical`` the median.
    """

    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    least: float = 1.0
    most: float = 1.0
    typical: float = 1.0

    def scaled(self, factor: float) -> BatchCost:
        """So many times as dear, for whatever batch; not held to what was seen."""
        after = tuple(factor * each for each in self.after)
        return replace(self, after=after, least=0.0, most=math.inf, typical=factor * self.typical)

    def ratio(self, columns: Sequence[float]) -> float:
        """Of a batch with these :func:`columns`."""
        if not self.before:
            return self.typical
        was = sum(map(float.__mul__, self.before, columns))
        now = sum(map(float.__mul__, self.after, columns))
        return min(max(now / was, self.least / _BEYOND), self.most * _BEYOND) if was > 0 else self.typical


def columns(size: int, elements: float, longest: float, others: Sequence[float]) -> list[float]:
    """What the time of a batch is made of.

    :param elements: of all its inputs, those of padding included.
    :param longest: length of its longest input.
    :param others: by numeric feature, the largest of its members.
    """
    return [1.0, float(size), elements, size * longest * longest, *(size * each for each in others)]


def fit_cost(batches: Sequence[Sequence[float]], before: Sequence[float], after: Sequence[float]) -> BatchCost | None:
    """The cost of batches that were computed both ways; ``None`` where none was.

    :param batches: :func:`columns` of each.
    :param before: nanoseconds of each as it was, ``after`` the other way; NaN where it failed.
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
    """Nonnegative least squares on relative errors: no batch is foretold to take less for holding more."""
    from scipy.optimize import nnls

    scale = np.maximum(batches.max(axis=0), 1e-12)
    found, _ = nnls(batches / scale / took[:, None], np.ones(len(took)))
    return tuple((found / scale).tolist())
