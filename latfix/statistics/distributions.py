"""Quantiles and tails of distributions, and Wilson's interval of a rate."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(hits: float, total: float) -> tuple[float, float]:
    """Wilson's 95 % score interval (1927) of a rate; ``(0, 1)`` if nothing was counted."""
    if total <= 0:
        return (0.0, 1.0)
    lo, hi = score_interval(hits / total, total, normal_quantile(0.95))
    return (0.0 if hits == 0 else lo, 1.0 if hits == total else hi)


def score_interval(rate: float, total: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a rate for an (effective) number of draws and a quantile of z or t."""
    squared = quantile * quantile
    scale = 1.0 + squared / total
    center = (rate + squared / (2 * total)) / scale
    half = quantile / scale * math.sqrt(rate * (1 - rate) / total + squared / (4 * total * total))
    return (max(0.0, center - half), min(1.0, center + half))


def student_t(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's t; ``freedom`` may be fractional and counts as 1 below that."""
    from scipy.special import stdtrit  # imported late because it takes as long as the start of a command

    return float(stdtrit(max(1.0, freedom), 0.5 + confidence / 2))


def normal_quantile(confidence: float) -> float:
    """The two-sided quantile of the normal distribution: 1.96 for 0.95."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def poisson_at_least(count: int, mean: float) -> float:
    """Probability that a Poisson variable is ``count`` (at least 1) or more."""
    from scipy.special import pdtrc

    return float(pdtrc(count - 1, mean))


def binomial_at_least(hits: int, draws: int, rate: float) -> float:
    """Probability of ``hits`` (at least 1) or more in independent draws, each a hit with probability ``rate``."""
    from scipy.special import bdtrc

    return float(bdtrc(hits - 1, draws, rate))
