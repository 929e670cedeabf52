"""The objective's percentile as a simulated function of load, for the service as calibrated and for slower ones.

The error of a simulation is measured in *pace*: the factor by which all work of the service would have to slow down
for the simulation to match the measurement. A service ``c`` times as slow under ``x`` times the load equals the
original service under ``c x`` times the load on a clock ``c`` times as slow, so one curve over load covers every
pace: ``p(x; c) = c p(c x; 1)``. The error of the percentile itself would be a poor measure: near saturation, a 3 %
slower service doubles it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats
from latfix.statistics.change_points import rising_level

#: Distance of simulated loads; closer where the percentile grows by more than the rise between two of them.
_STEP, _RISE = math.log(1.4), 0.25
_NEAREST = math.log(1.03)
#: A curve ends where the percentile is this many times the limit, or the percentile at the replayed load.
_FAR = 16.0
#: Most steps down and up, and most simulations in all.
_DOWN, _UP, _MOST = 7, 12, 26
#: Beyond its ends a curve is flat below, and rises this steeply above.
_BEYOND, _STEEP = 6.0, 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCurve:
    """The percentile over load.

    :param load: ``(g,)`` logarithms of multiples of the recorded rate, ascending.
    :param level: ``(g,)`` logarithms of the percentile in seconds, never falling.
    :param noise: ``(g,)`` standard deviation of the level of one replay.
    """

    load: Floats
    level: Floats
    noise: Floats

    def percentile(self, load: npt.ArrayLike, pace: npt.ArrayLike = 0.0) -> Floats:
        """Logarithm of the percentile at ``load``, for a service slower by ``pace`` (both logarithms)."""
        slower = np.asarray(pace, dtype=np.float64)
        at = np.asarray(load, dtype=np.float64) + slower
        return np.asarray(np.interp(at, self.load, self.level) + slower, dtype=np.float64)

    def pace(self, load: float, percentile: float) -> float:
        """The logarithm of how much slower a service with this percentile at this load is (both logarithms)."""
        return pace_of(load, self.load, self.level, percentile)

    def headroom(self, limit: float) -> tuple[Floats, Floats]:
        """Loads, ascending, and how much slower the service could be at each before the percentile hits the limit.

        :param limit: a logarithm; logarithms are returned.
        """
        slower = limit - self.level
        return self.load - slower, slower

    def slope(self, load: float) -> float:
        """Percent by which the percentile rises per percent of load."""
        ends = np.interp([load - _NEAREST, load + _NEAREST], self.load, self.level)
        return float(ends[1] - ends[0]) / (2 * _NEAREST)


def mean_curve(curves: Sequence[LatencyCurve]) -> LatencyCurve:
    """The mean of several curves, over logarithms."""
    load = np.unique(np.concatenate([curve.load for curve in curves]))
    level, noise = (
        np.mean([np.interp(load, curve.load, getattr(curve, name)) for curve in curves], axis=0)
        for name in ("level", "noise")
    )
    return LatencyCurve(load=load, level=level, noise=noise)


def pace_of(load: float, loads: Floats, levels: Floats, measured: float) -> float:
    """The pace at which a service has the measured value at ``load``, given its values at ``loads`` (logarithms).

    :param levels: logarithms of the value at each of ``loads``.
    """
    return (
        float(np.interp(measured, rising_level(levels + loads - load) + 1e-9 * np.arange(len(loads)), loads)) - load
    )


def latency_curve(simulated: Callable[[float], Floats], replayed: float, limit: float | None) -> LatencyCurve:
    """The curve of a simulation, with most points where it is steep.

    :param simulated: returns the percentile in seconds of a few likely runs at a multiple of the recorded rate.
    :param replayed: the load that the simulation was calibrated on.
    :param limit: seconds; loads far beyond it are not simulated.
    """
    known: dict[float, tuple[float, float]] = {}

    def level(load: float) -> float:
        if load not in known:
            logs = np.log(np.maximum(simulated(math.exp(load)), 1e-9))
            known[load] = float(logs.mean()), float(logs.var(ddof=1))
        return known[load][0]

    first = math.log(replayed)
    most = math.log(_FAR) + max(level(first), math.log(limit or 1e-9))
    for k in range(1, _UP + 1):
        if level(first + k * _STEP) > most:
            break
    for k in range(1, _DOWN + 1):
        level(first - k * _STEP)
    while len(known) < _MOST:
        gaps = [(level(b) - level(a), a, b) for a, b in itertools.pairwise(sorted(known)) if b - a > 2 * _NEAREST]
        rise, low, high = max(gaps, default=(0.0, 0.0, 0.0))
        if rise < _RISE:
            break
        level((low + high) / 2)
    load = np.array(sorted(known))
    mean, variance = np.array([known[each] for each in load.tolist()]).T
    padded = np.pad(variance, 2, mode="edge")
    smooth = np.sqrt(np.mean([padded[k : k + len(load)] for k in range(5)], axis=0))
    rising = rising_level(mean)
    return LatencyCurve(
        load=np.concatenate([[load[0] - _BEYOND], load, [load[-1] + 1.0]]),
        level=np.concatenate([[rising[0]], rising, [rising[-1] + _STEEP]]),
        noise=np.pad(smooth, 1, mode="edge"),
    )
