"""Norms of a run: figures that are learned once and hold for all of it.

A large record is attributed piece by piece. Medians, models and prices must be the run's, not each piece's, or the
pieces' ledgers would have different references.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.work_model import STANDARD

T = TypeVar("T")
#: The mean scatter of work around its reference is the median over this many stretches of the run.
_STRETCHES = 20
#: A mean scatter below this share of the reference counts as zero; from the upper bound on it is not scatter.
_LEAST, _MOST = 0.01, 0.5
#: Quantile of scatter that is ordinary, however far it is from the median.
_ORDINARY = 0.98
#: Three standard deviations of normal scatter, in median absolute deviations.
_FAR = 3 * STANDARD


class Norms:
    """Figures by name, each computed at its first use and cached."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, name: str, learn: Callable[[], T]) -> T:
        """The cached figure, or the result of ``learn``."""
        if name not in self._known:
            self._known[name] = learn()
        return cast(T, self._known[name])

    def copied(self) -> Norms:
        """A copy of the cached figures, independent of this one."""
        copy = Norms()
        copy._known.update(self._known)
        return copy

    def __contains__(self, name: str) -> bool:
        return name in self._known


def whole_median(values: Ints) -> int:
    """Median in whole nanoseconds; zero without values."""
    return int(np.median(values)) if len(values) else 0


def quiet_median(values: Ints, quiet: Bools) -> int:
    """Median over quiet requests in whole nanoseconds; zero without any."""
    return whole_median(values[quiet])


def ordinary_mean(shares: Floats, scatter: Floats) -> float:
    """The mean of ordinary scatter around the median, as a share of the reference.

    Queue length depends on the mean service time, and scatter is skewed. With the median as reference, waits in a
    nearly saturated service would be attributed to a slow machine. Outliers count only up to the scatter's limit,
    and the median over stretches ignores a slow stretch.

    :param shares: ``(n,)`` time beyond the reference in order of time, as shares of it; ``scatter``: of all causes.
    """
    limit = _FAR * float(np.median(np.abs(scatter - np.median(scatter))))
    own = np.clip(shares, -limit, limit)
    share = float(np.median([part.mean() for part in np.array_split(own, _STRETCHES) if len(part)]))
    return share if _LEAST <= abs(share) < _MOST else 0.0


def ordinary_mean_of_wide(shares: Floats) -> float:
    """:func:`ordinary_mean` of scatter that may be far wider than the reference, or of a mixture.

    The limit is one of logarithms. What more than 2 % of the work exceeds is ordinary in any case, as the misses of a
    cache are.
    """
    logs = np.log(np.maximum(1.0 + shares, 1e-3))
    middle = float(np.median(logs))
    limit = _FAR * float(np.median(np.abs(logs - middle)))
    low, high = np.quantile(logs, (1 - _ORDINARY, _ORDINARY))
    own = np.expm1(np.clip(logs, min(middle - limit, low), max(middle + limit, high)))
    return float(np.median([part.mean() for part in np.array_split(own, _STRETCHES) if len(part)]))
