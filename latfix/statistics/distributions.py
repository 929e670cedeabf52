"""Quantiles of Student's t and the normal distribution, and intervals of rates."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(hits: int, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (1927) of a rate; ``(0, 1)`` where nothing was counted."""
    if total <= 0:
        return (0.0, 1.0)
    lo, hi = score_interval(hits / total, total, normal_quantile(confidence))
    return (0.0 if hits == 0 else lo, 1.0 if hits == total else hi)


def score_interval(rate: float, total: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a rate for an (effective) number of draws and a quantile of z or t."""
    squared = quantile * quantile
    scale = 1.0 + squared / total
    center = (rate + squared / (2 * total)) / scale
    half = quantile / scale * math.sqrt(rate * (1 - rate) / total + squared / (4 * total * total))
    return (max(0.0, center - half), min(1.0, center + half))


def student_t(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's t; ``freedom`` may be fractional and is at least 1.

    Whole degrees up to 200 by bisection of the finite series of its distribution (Abramowitz and Stegun
    26.7.3, 26.7.4), larger ones by its expansion at the normal (26.7.5).
    """
    freedom = max(1.0, freedom)
    if freedom > 200:
        z = normal_quantile(confidence)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = math.floor(freedom), math.ceil(freedom)
    if low == high:
        return _whole_t(confidence, low)
    # Interpolated in 1/freedom, in which the quantile is nearly straight.
    share = (1 / low - 1 / freedom) / (1 / low - 1 / high)
    return (1 - share) * _whole_t(confidence, low) + share * _whole_t(confidence, high)


def _whole_t(confidence: float, freedom: int) -> float:
    lo, hi = 0.0, 2.0
    while _central_mass(hi, freedom) < confidence:
        hi *= 2
    for _ in range(60):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if _central_mass(middle, freedom) < confidence else (lo, middle)
    return (lo + hi) / 2


def _central_mass(t: float, freedom: int) -> float:
    """Probability that Student's t lies within ``±t``."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine2 = math.sin(angle), math.cos(angle) ** 2
    term = 1.0
    total = 1.0
    if freedom % 2 == 0:
        for k in range(1, freedom // 2):
            term *= cosine2 * (2 * k - 1) / (2 * k)
            total += term
        return sine * total
    if freedom == 1:
        return 2 * angle / math.pi
    for k in range(1, (freedom - 1) // 2):
        term *= cosine2 * 2 * k / (2 * k + 1)
        total += term
    return 2 / math.pi * (angle + sine * math.cos(angle) * total)


def normal_quantile(confidence: float) -> float:
    """The two-sided quantile of the normal distribution: 1.96 for 0.95."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)
