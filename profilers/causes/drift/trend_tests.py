"""Trends of a few dozen window medians: slope, significance, the best-fitting step, and which units are comparable.

Quadratic cost is fine: window medians are at most a few hundred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.statistics.change_points import rising_level
from latfix.statistics.distributions import normal_quantile

#: Neighboring windows form this many blocks, whose order the test permutes.
BLOCKS = 8
#: Least number in the last quarter that met few others.
_LEAST_LATE = 12
#: Of a rise: the p-value, the share of the squares that the level explains, and the share that remains at the end.
_SIGNIFICANT, _EXPLAINED, _LASTING = 0.05, 0.6, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A slope in the values' unit per unit of time, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Rise:
    """A level that only rises.

    :param times: ``(w,)`` middle of each window; ``level`` ``(w,)`` above the start, never falling.
    :param step: when it rose, if it rose in one step; otherwise ``None``.
    """

    times: Floats
    level: Floats
    step: float | None

    def at(self, times: Floats | Ints) -> Floats:
        """The level above the start at any time."""
        if self.step is not None:
            return np.where(times >= self.step, self.level[-1], 0.0)
        return np.asarray(np.interp(times, self.times, self.level), dtype=np.float64)


def theil_sen(times: Floats, values: Floats) -> Slope:
    """The median of all pairwise slopes, with Sen's interval (JASA 63, 1968).

    The variance behind the interval is widened for autocorrelation of the ranks about the trend (Hamed and Rao,
    Journal of Hydrology 204, 1998), so that a slow wave does not count as many independent readings.

    :param times: ``(w,)``, strictly rising; with fewer than three the slope is zero and its interval infinite.
    """
    w = len(values)
    if w < 3:
        return Slope(value=0.0, low=-math.inf, high=math.inf)
    first, second = np.triu_indices(w, 1)
    slopes = np.sort((values[second] - values[first]) / (times[second] - times[first]))
    center = float(np.median(slopes))
    variance = w * (w - 1) * (2 * w + 5) / 18 * _dependence(values - center * times)
    reach = normal_quantile(0.95) * math.sqrt(variance)
    low = max(int((len(slopes) - reach) / 2), 0)
    high = min(math.ceil((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(value=center, low=float(slopes[low]), high=float(slopes[high]))


def _dependence(residual: Floats) -> float:
    """The factor by which autocorrelation of ranks widens the variance of Kendall's sum; at least one."""
    w = len(residual)
    ranks = np.argsort(np.argsort(residual, kind="stable"), kind="stable") - (w - 1) / 2
    power = float(ranks @ ranks)
    total = 0.0
    for lag in range(1, w - 2):
        correlation = float(ranks[lag:] @ ranks[:-lag]) / power
        if abs(correlation) > 1.96 / math.sqrt(w):
            total += (w - lag) * (w - lag - 1) * (w - lag - 2) * correlation
    return max(1.0 + 2.0 * total / (w * (w - 1) * (w - 2)), 1.0)


def rise_probability(values: Floats) -> float:
    """The probability that chance orders the windows into as clear a rise.

    A permutation test over the means of :data:`BLOCKS` runs of neighboring windows. Clarity is the sum of squares
    that a straight line or one upward step explains, whichever is more. Windows within an eighth of the run are one
    draw, so that one slow wave is not significant.

    :param values: ``(w,)``; with fewer than :data:`BLOCKS` the result is 1.
    """
    if len(values) < BLOCKS:
        return 1.0
    means = np.array([float(part.mean()) for part in np.array_split(values, BLOCKS)])
    clarity = _clarity(means[_orders()] - means.mean())
    return float(np.mean(clarity >= clarity[0] * (1 - 1e-9)))


@cache
def _orders() -> Ints:
    """Every order of the blocks, the given one first."""
    return np.array(list(permutations(range(BLOCKS))), dtype=np.int64)


def _clarity(centered: Floats) -> Floats:
    """Per row, the sum of squares that a rising line or one upward step explains."""
    ramp = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    line = np.maximum(centered @ ramp, 0.0) ** 2 / float(ramp @ ramp)
    before = np.arange(1, BLOCKS)
    share = before * (BLOCKS - before) / BLOCKS
    step = np.minimum(np.cumsum(centered, axis=1)[:, :-1], 0.0) ** 2 / (share * BLOCKS)
    return np.asarray(np.maximum(line, step.max(axis=1)), dtype=np.float64)


def best_step(values: Floats) -> tuple[int, float]:
    """The step that explains most: the first window after it, and the residual squares."""
    w = len(values)
    total = float(((values - values.mean()) ** 2).sum()) if w else 0.0
    if w < 2:
        return w, total
    running = np.cumsum(values)
    before = np.arange(1, w)
    left, right = running[:-1] / before, (running[-1] - running[:-1]) / (w - before)
    gain = before * (w - before) / w * (right - left) ** 2
    at = int(np.argmax(gain))
    return at + 1, max(total - float(gain[at]), 0.0)


def squares_left(values: Floats, by: Floats) -> float:
    """Residual squares of the values after a straight line on ``by``."""
    centered, other = values - values.mean(), by - by.mean()
    power = float(other @ other)
    along = float(other @ centered)
    total = float(centered @ centered)
    return max(total - along * along / power, 0.0) if power > 0 else total


def quarters(values: Floats) -> tuple[float, float]:
    """The means of the first and of the last quarter."""
    quarter = max(len(values) // 4, 1)
    return float(np.mean(values[:quarter])), float(np.mean(values[-quarter:]))


def rises(values: Floats, least: float) -> bool:
    """True if windows rise by more than ``least`` and significantly, and stay up to the end."""
    before, after = quarters(values)
    if after - before <= least:
        return False
    spread = float(((values - values.mean()) ** 2).sum())
    rest = float(((values - rising_level(values)) ** 2).sum())
    end = float(np.median(values[-max(len(values) // 8, 2) :]))
    if rest > (1 - _EXPLAINED) * spread or end < before + _LASTING * (after - before):
        return False
    return rise_probability(values) <= _SIGNIFICANT


def met_few(at: Ints, met: Ints, chosen: Bools) -> Bools:
    """Those that met no more others than half of those in the first quarter.

    Where waits are not separated from work, time that grows with the backlog is no drift, and only these are
    comparable. There are none if hardly any came in the last quarter: then the growth may be a queue's.

    :param at: ``(n,)`` when each came; ``met``: others that were there.
    """
    first, last = (np.quantile(at[chosen], q) if chosen.any() else 0.0 for q in (0.25, 0.75))
    early = met[chosen & (at <= first)]
    few = chosen & (met <= (np.median(early) if len(early) else 0.0))
    return np.asarray(few if np.count_nonzero(few & (at >= last)) >= _LEAST_LATE else few & False)
