"""Tests if gaps between arrivals have a heavy tail, by fitting families of distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats

#: A larger sample takes time without affecting the decision.
_MOST_GAPS = 20_000
#: With fewer gaps no tail is estimated.
MIN_GAPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The tail of the gaps between arrivals.

    :param hill: Hill's estimate of the tail index over the longest twentieth of the gaps: the variance is
        infinite below 2, the mean below 1. It is large for light tails.
    :param best_light: the light-tailed family that fits best, of exponential, gamma and two exponentials.
    :param best_heavy: the heavy-tailed one, of Lomax, Pareto and lognormal.
    :param heavy_advantage: log likelihood of the heavy family less that of the light one, each less half a log of the
        count per parameter (half the Bayesian information criterion).
    """

    hill: float
    best_light: str
    best_heavy: str
    heavy_advantage: float


def describe_tail(gaps_s: Floats) -> Tail | None:
    """The tail of ``gaps_s``; ``None`` if fewer than :data:`MIN_GAPS` are above zero."""
    gaps = gaps_s[gaps_s > 0]
    if len(gaps) < MIN_GAPS or float(gaps.max()) == float(gaps.min()):
        return None
    hill = hill_index(gaps)
    if len(gaps) > _MOST_GAPS:
        gaps = gaps[np.linspace(0, len(gaps) - 1, _MOST_GAPS).astype(np.int64)]
    scaled = gaps / gaps.mean()
    penalty = 0.5 * math.log(len(scaled))
    light = {
        "exponential": -len(scaled) * (1 + math.log(float(scaled.mean()))) - penalty,
        "gamma": _gamma(scaled) - 2 * penalty,
        "two exponentials": _two_exponentials(scaled) - 3 * penalty,
    }
    heavy = {
        "Lomax": _lomax(scaled) - 2 * penalty,
        "Pareto": _pareto(scaled) - 2 * penalty,
        "lognormal": _lognormal(scaled) - 2 * penalty,
    }
    best_light = max(light, key=lambda name: light[name])
    best_heavy = max(heavy, key=lambda name: heavy[name])
    return Tail(
        hill=hill,
        best_light=best_light,
        best_heavy=best_heavy,
        heavy_advantage=heavy[best_heavy] - light[best_light],
    )


def hill_index(values: Floats) -> float:
    """Hill's tail index (1975) over the longest twentieth, at least 10 values; infinite for a flat top."""
    ordered = np.sort(values)[::-1]
    top = min(len(ordered) - 1, max(10, len(ordered) // 20))
    mean_log = float(np.mean(np.log(ordered[:top] / ordered[top])))
    return 1 / mean_log if mean_log > 0 else math.inf


def _gamma(gaps: Floats) -> float:
    mean = float(gaps.mean())
    mean_log = float(np.log(gaps).mean())
    s = max(math.log(mean) - mean_log, 1e-12)
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)  # Minka (2002), within 1.5 % of the maximum
    rate = shape / mean
    each = shape * math.log(rate) - math.lgamma(shape) + (shape - 1) * mean_log - rate * mean
    return len(gaps) * each


def _two_exponentials(gaps: Floats) -> float:
    """A mixture of two exponentials, as for gaps of random on/off bursts, by expectation maximization."""
    best = -math.inf
    for quantile in (0.5, 0.9, 0.98):
        cut = float(np.quantile(gaps, quantile))
        short, long = gaps[gaps <= cut], gaps[gaps > cut]
        if not len(long):
            continue
        share, fast, slow = quantile, 1 / float(short.mean()), 1 / float(long.mean())
        likelihood = -math.inf
        for _ in range(200):
            first = share * fast * np.exp(-fast * gaps)
            both = first + (1 - share) * slow * np.exp(-slow * gaps) + 1e-300
            before, likelihood = likelihood, float(np.log(both).sum())
            weight = first / both
            total = float(weight.sum())
            if likelihood - before < 1e-3 or not 1e-9 < total < len(gaps) - 1e-9:
                break
            share = total / len(gaps)
            fast = total / float((weight * gaps).sum())
            slow = (len(gaps) - total) / float(((1 - weight) * gaps).sum())
        best = max(best, likelihood)
    return best


def _lomax(gaps: Floats) -> float:
    best = -math.inf
    for scale in np.geomspace(1e-4, 1e3, 80):
        logs = float(np.log1p(gaps / scale).sum())
        alpha = len(gaps) / logs
        best = max(best, len(gaps) * math.log(alpha / scale) - (alpha + 1) * logs)
    return best


def _pareto(gaps: Floats) -> float:
    least = float(gaps.min())
    logs = float(np.log(gaps / least).sum())
    alpha = len(gaps) / max(logs, 1e-12)
    return len(gaps) * math.log(alpha / least) - (alpha + 1) * logs


def _lognormal(gaps: Floats) -> float:
    logs = np.log(gaps)
    sigma = max(float(logs.std()), 1e-12)
    return -float(logs.sum()) - len(gaps) * (math.log(sigma * math.sqrt(2 * math.pi)) + 0.5)
