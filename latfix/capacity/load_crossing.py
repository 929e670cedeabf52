"""The load at which a percentile crosses its limit: a simulated curve, and how far it was off at loads replayed.

The simulation's error, as a pace (:mod:`latfix.capacity.latency_curve`), is taken for a random walk over the
logarithm of load that begins where the simulation was calibrated, seen at each replay with noise: Kriging, with the
simulation as the trend. How large steps and noise are is assumed before anything was seen, and the errors seen scale
both (an inverse chi-squared scale, so that answers from few replays have Student's tails). Each draw of the error
crosses the headroom that the limit leaves at some load: these loads are the answer's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats
from latfix.capacity.latency_curve import LatencyCurve

#: Standard deviations in advance: of the error where the simulation was calibrated, and of its step when load grows
#: by a factor of e; both a share of the service's time. They count as much as so many replays.
_OFFSET, _DRIFT, _FREEDOM = 0.03, 0.08, 4
#: Of a replay's pace, and of its percentile beyond what its requests explain, from one replay to the next.
_PACE_NOISE, _TAIL_NOISE = 0.03, 0.05
#: How far an error goes that no finite pace explains (lost requests).
FARTHEST = math.log(3.0)
_DRAWS, _GRID = 1000, 121
#: How far beyond the replayed loads a crossing is looked for.
_BELOW, _ABOVE = math.log(32.0), math.log(64.0)
_JITTER = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A replay beside a simulation.

    :param load: logarithm of the multiple of the recorded rate.
    :param pace: logarithm of how much slower the service was than simulated.
    :param noise: its standard deviation.
    """

    load: float
    pace: float
    noise: float


def pace_noise(curve: LatencyCurve, load: float, few: float) -> float:
    """Standard deviation of the pace that a replay shows: noise of its own, and that of its percentile.

    Where the percentile is steep over load, its noise is little noise of the pace.

    :param load: its logarithm.
    :param few: of the percentile's logarithm, by how few requests are beyond it.
    """
    simulated = float(np.interp(load, curve.load, curve.noise))
    tail = math.hypot(_TAIL_NOISE, max(simulated, few))
    return math.hypot(_PACE_NOISE, tail / (1.0 + max(curve.slope(load), 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadErrors:
    """How much slower the service is than one simulation, over load, after what was seen of it.

    :param load: ``(g,)`` logarithms; ``draws`` ``(d, g)`` of the error there, ``covariance`` ``(g, g)``.
    :param typical_error: of the paces seen, the root of their mean square.
    :param scale: by how much what was seen is off more than was assumed in advance.
    """

    curve: LatencyCurve
    load: Floats
    covariance: Floats
    draws: Floats
    typical_error: float
    scale: float

    def wanted(self, limit: float | None) -> Floats:
        """``(d,)`` logarithms of loads at which the percentile reaches the limit (seconds), or of knees without one.

        Infinite where it does so beyond the loads looked at; minus infinity where below them.
        """
        if limit is None:
            return self.knees()
        short = self.draws - np.interp(self.load, *self.curve.headroom(math.log(limit)))
        over = short > 0
        first = np.argmax(over, axis=1)
        row, before = np.arange(len(short)), np.maximum(first - 1, 0)
        low, high = short[row, before], short[row, first]
        share = np.where(high > low, -low / np.where(high > low, high - low, 1.0), 0.0)
        crossed = self.load[before] + share * (self.load[first] - self.load[before])
        return np.where(~over.any(axis=1), np.inf, np.where(over[:, 0], -np.inf, crossed))

    def percentiles(self, load: float) -> Floats:
        """``(d,)`` logarithms of the percentile at the logarithm of a load."""
        at = np.array([np.interp(load, self.load, row) for row in self.draws])
        return self.curve.percentile(load, at)

    def knees(self) -> Floats:
        """``(d,)`` logarithms of loads at which load over the percentile is largest (Kleinrock's power)."""
        power = self.load - self.curve.percentile(self.load, self.draws)
        return np.asarray(self.load[np.argmax(power, axis=1)], dtype=np.float64)

    def gain(self, load: float, at: float) -> float:
        """The share of the error's variance at ``at`` that a replay at ``load`` would take away."""
        there, here = (int(np.argmin(np.abs(self.load - each))) for each in (at, load))
        noise = self.scale * pace_noise(self.curve, load, 0.0)
        among = self.covariance[here, here] + noise**2
        return float(self.covariance[here, there] ** 2 / among / max(self.covariance[there, there], _JITTER))


def load_errors(curve: LatencyCurve, base: float, noise: float, seen: Sequence[Seen], *, seed: int) -> LoadErrors:
    """What replays show of a simulation's error.

    :param base: logarithm of the load that it was calibrated on; its own replays are among those ``seen``.
    :param noise: of theirs, that it goes on with: a standard deviation of the pace.
    """
    loads = np.array([one.load for one in seen])
    grid = np.linspace(loads.min() - _BELOW, loads.max() + _ABOVE, _GRID)
    # Most crossings lie near what was replayed.
    near = np.linspace(loads.min() - 0.7, loads.max() + 0.7, _GRID)
    grid = np.unique(np.concatenate([grid, near]))
    error, each = np.array([one.pace for one in seen]), np.array([one.noise for one in seen])
    among = _covariance(loads, loads, base, noise) + np.diag(each**2)
    beside = _covariance(grid, loads, base, noise)
    solved = np.linalg.solve(among, np.column_stack([error, beside.T]))
    mean = beside @ solved[:, 0]
    covariance = _covariance(grid, grid, base, noise) - beside @ solved[:, 1:]
    freedom = _FREEDOM + len(seen)
    rest = _FREEDOM + float(error @ solved[:, 0])
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(covariance + _JITTER * np.eye(len(grid)))
    scales = np.sqrt(rest / rng.chisquare(freedom, _DRAWS))
    draws = mean + scales[:, None] * (rng.standard_normal((_DRAWS, len(grid))) @ root.T)
    scale = math.sqrt(rest / freedom)
    return LoadErrors(
        curve=curve,
        load=grid,
        covariance=scale**2 * covariance,
        draws=draws,
        typical_error=float(np.sqrt(np.mean(error**2))),
        scale=scale,
    )


def _covariance(one: Floats, other: Floats, base: float, noise: float) -> Floats:
    """Of a random walk over the logarithm of load, from where it begins in both directions, and its offset."""
    here, there = one[:, None] - base, other[None, :] - base
    shared = np.where(here * there > 0, np.minimum(np.abs(here), np.abs(there)), 0.0)
    return np.asarray(_OFFSET**2 + noise**2 + _DRIFT**2 * shared, dtype=np.float64)


def quantiles(draws: Floats) -> tuple[float, float, float]:
    """Median, and the ends of the middle 95 %; ends may be infinite."""
    lo, mid, hi = np.quantile(draws, [0.025, 0.5, 0.975], method="nearest")
    return float(mid), float(lo), float(hi)
