"""Replays of one setting, each simulated at every load, and the uncertainty from the simulations' errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from latfix.arrays import Floats
from latfix.capacity.latency_curve import LatencyCurve, latency_curve, mean_curve, pace_of
from latfix.capacity.load_crossing import FARTHEST, LoadErrors, Seen, load_errors, pace_noise, quantiles
from latfix.capacity.measured_load import LoadPoint, followed
from latfix.capacity.objective import LatencyObjective, percentile_of
from latfix.capacity.sweep_traffic import Part
from latfix.profilers.forecast.settings_forecast import Forecast
from latfix.run_record.run_record import RunRecord

#: Minimum number of requests for a simulation.
_LEAST = 20
#: Number of simulations that are used, from the replays nearest to the answer.
_NEAREST = 3
#: Range of simulated runs for each load, and their total number of requests.
_RUNS, _SIMULATED = (2, 4), 3_000
#: Paces at which a replay that ended early is simulated, as logarithms: from half to twice the speed.
PACES = np.linspace(-math.log(2.0), math.log(2.0), 15)


@dataclass(slots=True)
class Simulated:
    """One replay, and the simulation of the service at other loads.

    :param load: multiple of the recorded rate.
    :param forecast: ``None`` if too few requests of the replay ended ok.
    """

    load: float
    point: LoadPoint
    forecast: Forecast | None
    _curve: LatencyCurve | None = field(default=None, repr=False)

    @classmethod
    def of(cls, record: RunRecord, load: float, point: LoadPoint) -> Simulated:
        """The simulation of a replay."""
        return cls(load=load, point=point, forecast=Forecast(record) if point.requests["ok"] >= _LEAST else None)

    @property
    def whole(self) -> bool:
        """True if an answer may be based on it: a replay that ended early shows the service only under a backlog."""
        return self.forecast is not None and not self.point.cut

    def curve(self, part: Part, target: LatencyObjective) -> LatencyCurve:
        """The objective's percentile over load."""
        if self._curve is None:
            self._curve = latency_curve(lambda load: self._percentiles(load, part, target), self.load, target.limit)
        return self._curve

    def _percentiles(self, load: float, part: Part, target: LatencyObjective) -> Floats:
        """The percentile of the replayed run, and of equally likely ones."""
        n, arrival = part.requests(load), part.arrivals(load)
        runs = min(max(_SIMULATED // n, _RUNS[0]), _RUNS[1])
        return np.array(
            [np.percentile(self.served(arrival, k * n // runs)[1], target.percentile) for k in range(runs)]
        )

    def served(self, arrival: Floats, rotated: int = 0) -> tuple[Floats, Floats]:
        """Waits and latencies, in seconds, of requests that arrive at these nanoseconds."""
        assert self.forecast is not None
        wait, latency = self.forecast.at_times(arrival, rotated)
        return wait / 1e9, latency / 1e9

    def followed(self, other: Simulated, part: Part, target: LatencyObjective) -> Floats:
        """By pace, the logarithm of the percentile of latencies as a replay that ended early could see them."""
        sent, until = len(other.point.latency), other.point.until if other.point.cut else math.inf
        values = []
        for slower in PACES.tolist():
            arrival, clock = part.arrivals(other.load * math.exp(slower)), math.exp(slower)
            latency = self.served(arrival)[1]
            seen = np.minimum(latency[:sent] * clock, np.maximum(until - arrival[:sent] / 1e9 * clock, 0.0))
            values.append(math.log(max(float(np.percentile(seen, target.percentile)), 1e-9)))
        return np.array(values)


def tail_noise(point: LoadPoint, target: LatencyObjective) -> float:
    """Standard deviation of the percentile's logarithm that is due to the number of requests beyond it.

    The tail's slope, between half and twice as many requests beyond, over the root of their number.
    """
    values = followed(point)
    values = np.sort(values[np.isfinite(values)])
    beyond = max(len(values) * target.allowed, 0.5)
    if len(values) < 2 or values[0] <= 0:
        return 1.0
    shares = 1.0 - np.minimum(np.array([2.0, 0.5]) * beyond / len(values), 1.0)
    low, high = np.quantile(values, shares)
    return math.log(high / max(low, 1e-9)) / math.log(4.0) / math.sqrt(beyond)


def load_errors_of(
    replays: Sequence[Simulated], part: Part, target: LatencyObjective, *, seed: int
) -> LoadErrors | None:
    """Errors of the simulations of one setting; ``None`` if no replay can be simulated.

    Replays that ended early are only used to measure the errors of others, unless there are no others.
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
    bases: Sequence[Simulated], replays: Sequence[Simulated], part: Part, target: LatencyObjective, seed: int
) -> LoadErrors:
    """Errors of the mean simulation of ``bases``, compared with all replays."""
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


def _pace(
    curve: LatencyCurve, bases: Sequence[Simulated], one: Simulated, part: Part, target: LatencyObjective
) -> float:
    """How much slower the service was in a replay than simulated, as a logarithm."""
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
