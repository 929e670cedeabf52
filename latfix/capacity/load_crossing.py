"""The load at which a percentile crosses its limit, from a simulated curve and its errors at the replayed loads.

The simulation's error, as a pace (:mod:`latfix.capacity.latency_curve`), is modeled as a random walk over the
logarithm of load. It starts where the simulation was calibrated, and each replay observes it with noise: Kriging,
with the simulation as the trend. Step size and noise have prior values, and the observed errors scale both (an
inverse chi-squared scale, so that answers from few replays have Student's tails). Each draw of the error crosses the
limit's headroom at some load; these loads are the distribution of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats
from latfix.capacity.latency_curve import LatencyCurve

#: Prior standard deviations: of the error where the simulation was calibrated, and of its step when load grows by a
#: factor of e, both as a share of the service's time. The prior counts as much as ``_FREEDOM`` replays.
_OFFSET, _DRIFT, _FREEDOM = 0.03, 0.08, 4
#: Run-to-run noise of a replay's pace, and of its percentile beyond what its requests explain.
_PACE_NOISE, _TAIL_NOISE = 0.03, 0.05
#: The error assigned if no finite pace explains a replay (lost requests).
FARTHEST = math.log(3.0)
_DRAWS, _GRID = 1000, 121
#: Crossings are searched this far beyond the replayed loads.
_BELOW, _ABOVE = math.log(32.0), math.log(64.0)
_JITTER = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A replay compared with a simulation.

    :param load: logarithm of the multiple of the recorded rate.
    :param pace: logarithm of how much slower the service was than simulated.
    :param noise: standard deviation of ``pace``.
    """

    load: float
    pace: float
    noise: float


def pace_noise(curve: LatencyCurve, load: float, few: float) -> float:
    """Standard deviation of a replay's pace: its own noise, and that of its percentile.

    Where the percentile is steep over load, its noise hardly affects the pace.

    :param load: a logarithm.
    :param few: standard deviation of the percentile's logarithm, from the few requests beyond it.
    """
    simulated = float(np.interp(load, curve.load, curve.noise))
    tail = math.hypot(_TAIL_NOISE, max(simulated, few))
    return math.hypot(_PACE_NOISE, tail / (1.0 + max(curve.slope(load), 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadErrors:
    """How much slower the service is than one simulation, over load, given the replays.

    :param load: ``(g,)`` logarithms; ``draws`` ``(d, g)`` of the error there, ``covariance`` ``(g, g)``.
    :param typical_error: root mean square of the replays' paces.
    :param scale: ratio of the observed errors to the prior.
    """

    curve: LatencyCurve
    load: Floats
    covariance: Floats
    draws: Floats
    typical_error: float
    scale: float

    def wanted(self, limit: float | None) -> Floats:
        """``(d,)`` logarithms of loads at which the percentile reaches the limit (seconds), or of knees if ``None``.

        Infinite if that is beyond the grid of loads, minus infinity if below it.
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
        """``(d,)`` logarithms of the percentile at a load (a logarithm)."""
        at = np.array([np.interp(load, self.load, row) for row in self.draws])
        return self.curve.percentile(load, at)

    def knees(self) -> Floats:
        """``(d,)`` logarithms of loads at which load over the percentile is largest (Kleinrock's power)."""
        power = self.load - self.curve.percentile(self.load, self.draws)
        return np.asarray(self.load[np.argmax(power, axis=1)], dtype=np.float64)

    def gain(self, load: float, at: float) -> float:
        """The share of the error's variance at ``at`` that a replay at ``load`` would remove."""
        there, here = (int(np.argmin(np.abs(self.load - each))) for each in (at, load))
        noise = self.scale * pace_noise(self.curve, load, 0.0)
        among = self.covariance[here, here] + noise**2
        return float(self.covariance[here, there] ** 2 / among / max(self.covariance[there, there], _JITTER))


def load_errors(curve: LatencyCurve, base: float, noise: float, seen: Sequence[Seen], *, seed: int) -> LoadErrors:
    """Estimate a simulation's error from replays.

    :param base: logarithm of the load that it was calibrated on; replays at that load are among ``seen``.
    :param noise: standard deviation of the calibration's pace.
    """
    loads = np.array([one.load for one in seen])
    grid = np.linspace(loads.min() - _BELOW, loads.max() + _ABOVE, _GRID)
    # Most crossings lie near the replayed loads.
    near = np.linspace(loads.min() - 0.7, loads.max() + 0.7, _GRID)
    grid = np.unique(np.concatenate([grid, near]))
    error, each = np.array([one.pace for one in seen]), np.array([one.noise for one in seen])
    among = _covariance(loads, loads, base, noise) + np.diag(each**2)
    cross = _covariance(grid, loads, base, noise)
    solved = np.linalg.solve(among, np.column_stack([error, cross.T]))
    mean = cross @ solved[:, 0]
    covariance = _covariance(grid, grid, base, noise) - cross @ solved[:, 1:]
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
    """Covariance of a random walk over the logarithm of load, from ``base`` in both directions, plus offset."""
    here, there = one[:, None] - base, other[None, :] - base
    shared = np.where(here * there > 0, np.minimum(np.abs(here), np.abs(there)), 0.0)
    return np.asarray(_OFFSET**2 + noise**2 + _DRIFT**2 * shared, dtype=np.float64)


def quantiles(draws: Floats) -> tuple[float, float, float]:
    """Median, and the ends of the middle 95 %, which may be infinite."""
    lo, mid, hi = np.quantile(draws, [0.025, 0.5, 0.975], method="nearest")
    return float(mid), float(lo), float(hi)
