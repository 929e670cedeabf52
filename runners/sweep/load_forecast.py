"""Replays of one setting, each simulated at every load, and what the simulations' errors leave of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from latfix.capacity.latency_curve import LatencyCurve, latency_curve, mean_curve, pace_of
from latfix.capacity.load_crossing import FARTHEST, LoadErrors, Seen, load_errors, pace_noise, quantiles
from latfix.capacity.measured_load import LoadPoint, followed
from latfix.capacity.objective import Target, percentile_of
from latfix.capacity.sweep_traffic import Part
from latfix.profilers.forecast.settings_forecast import Forecast
from latfix.run_record.run_record import RunRecord

Floats = npt.NDArray[np.float64]

#: A simulation rests on at least so many requests.
_LEAST = 20
#: So many simulations are taken, from the replays nearest to the answer.
_NEAREST = 3
#: Runs that are simulated at each load, fewer where they hold many requests: so many in all.
_RUNS, _SIMULATED = (2, 4), 3_000
#: Paces at which a replay that was ended early is simulated: up to twice as fast and as slow.
PACES = np.linspace(-math.log(2.0), math.log(2.0), 15)


@dataclass(slots=True)
class Simulated:
    """One replay, and the service simulated from it at other loads.

    :param load: multiple of the recorded rate.
    :param forecast: ``None`` where too little of the replay is there to simulate from.
    """

    load: float
    point: LoadPoint
    forecast: Forecast | None
    _curve: LatencyCurve | None = field(default=None, repr=False)

    @classmethod
    def of(cls, record: RunRecord, load: float, point: LoadPoint) -> Simulated:
        """A replay's."""
        return cls(load=load, point=point, forecast=Forecast(record) if point.requests["ok"] >= _LEAST else None)

    @property
    def whole(self) -> bool:
        """True if an answer may rest on it: one that was ended early shows the service under a backlog alone."""
        return self.forecast is not None and not self.point.cut

    def curve(self, part: Part, target: Target) -> LatencyCurve:
        """The objective's percentile over load."""
        if self._curve is None:
            self._curve = latency_curve(lambda load: self._percentiles(load, part, target), self.load, target.limit)
        return self._curve

    def _percentiles(self, load: float, part: Part, target: Target) -> Floats:
        """Of runs that are as likely as the one that was replayed, and that one."""
        n = part.requests(load)
        runs = min(max(_SIMULATED // n, _RUNS[0]), _RUNS[1])
        return np.array(
            [np.percentile(self._served(load, part, k * n // runs)[1], target.percentile) for k in range(runs)]
        )

    def _served(self, load: float, part: Part, rotated: int = 0) -> tuple[Floats, Floats]:
        """Arrivals and latencies, in seconds, of the requests that a point at this load has."""
        assert self.forecast is not None
        arrival = part.arrivals(load)
        return arrival / 1e9, self.forecast.at_times(arrival, rotated)[1] / 1e9

    def followed(self, other: Simulated, part: Part, target: Target) -> Floats:
        """By pace, the logarithm of the percentile of latencies as far as a replay that was ended early saw them."""
        sent, until = len(other.point.latency), other.point.until if other.point.cut else math.inf
        values = []
        for slower in PACES.tolist():
            arrival, latency = self._served(other.load * math.exp(slower), part)
            clock = math.exp(slower)
            seen = np.minimum(latency[:sent] * clock, np.maximum(until - arrival[:sent] * clock, 0.0))
            values.append(math.log(max(float(np.percentile(seen, target.percentile)), 1e-9)))
        return np.array(values)


def tail_noise(point: LoadPoint, target: Target) -> float:
    """Standard deviation of the percentile's logarithm, by how few of the requests are beyond it.

    The tail's slope, between a half and twice as many requests beyond, over the root of their number.
    """
    values = followed(point)
    values = np.sort(values[np.isfinite(values)])
    beyond = max(len(values) * target.allowed, 0.5)
    if len(values) < 2 or values[0] <= 0:
        return 1.0
    shares = 1.0 - np.minimum(np.array([2.0, 0.5]) * beyond / len(values), 1.0)
    low, high = np.quantile(values, shares)
    return math.log(high / max(low, 1e-9)) / math.log(4.0) / math.sqrt(beyond)


def load_errors_of(replays: Sequence[Simulated], part: Part, target: Target, *, seed: int) -> LoadErrors | None:
    """What the replays of one setting say; ``None`` where there is none to simulate from.

    Replays that were ended early only say how far others are off, unless there are no others.
    """
    bases = [one for one in replays if one.whole] or [one for one in replays if one.forecast is not None]
    if not bases:
        return None
    found = _errors(bases, replays, part, target, seed)
    if len(bases) > _NEAREST:
        middle, _, _ = quantiles(found.wanted(target.limit))
        bases = sorted(bases, key=lambda one: abs(math.log(one.load) - middle))[:_NEAREST]
        found = _errors(bases, replays, part, target, seed)
    return found


def _errors(
    bases: Sequence[Simulated], replays: Sequence[Simulated], part: Part, target: Target, seed: int
) -> LoadErrors:
    """Of the mean simulation of some replays, beside all of them."""
    curve = mean_curve([base.curve(part, target) for base in bases])

    def noise(one: Simulated) -> float:
        return pace_noise(curve, math.log(one.load), tail_noise(one.point, target))

    seen = [
        Seen(load=math.log(one.load), pace=_pace(curve, bases, one, part, target), noise=noise(one))
        for one in replays
    ]
    begun = float(np.mean([math.log(base.load) for base in bases]))
    shared = math.sqrt(float(np.mean([noise(base) ** 2 for base in bases])) / len(bases) / 2)
    return load_errors(curve, begun, shared, seen, seed=seed)


def _pace(curve: LatencyCurve, bases: Sequence[Simulated], one: Simulated, part: Part, target: Target) -> float:
    """The logarithm of how much slower the service was in a replay than simulated."""
    load = math.log(one.load)
    measured = percentile_of([followed(one.point)], target.percentile).value
    if not 0 < measured < math.inf:
        return FARTHEST
    if one.point.cut or len(one.point.latency) < part.requests(one.load):
        levels = np.mean([base.followed(one, part, target) for base in bases], axis=0)
        found = pace_of(load, load + PACES, levels, math.log(measured))
    else:
        found = curve.pace(load, math.log(measured))
    return min(max(found, -FARTHEST), FARTHEST)
