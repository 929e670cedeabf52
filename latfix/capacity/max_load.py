"""How much load a service can carry: the largest load that meets an objective, the knee, and the Pareto front.

Computed from *cells* (:mod:`latfix.capacity.measured_load`), and elsewhere from a simulation corrected by its
observed errors (:mod:`latfix.capacity.load_crossing`). Nothing here depends on clocks or processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from latfix.arrays import Floats
from latfix.capacity.load_crossing import LoadErrors, quantiles
from latfix.capacity.measured_load import Cell
from latfix.capacity.objective import LatencyObjective
from latfix.files.json_documents import Document
from latfix.formatting import listed, percent, rate, significant

Status = Literal["found", "above", "below", "undecided"]
#: An interval; an end that was not measured is ``None``.
OpenInterval = tuple[float | None, float | None]

#: The largest load counts as found if the ends of its interval are within this share of it.
WITHIN = 0.15
#: The knee counts as found if the ends of its interval are within this factor.
_KNEE_RATIO = 1.5
#: Predictions are shown at these shares of the largest load, in addition to the replayed loads,
_SHOWN = (0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5)
#: unless a replayed load is within this share.
_APART = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestLoad(Document):
    """The largest load that meets the objective, in requests per second.

    :param status: which side of the replayed loads it lies on.
    :param rps: where the percentile crosses the limit; ``None`` if it does not.
    :param ci95_rps: 95 % interval; ``None`` for an end beyond the searched loads.
    :param reason: what it is based on, and if undecided, why its interval is not narrower.
    """

    status: Status
    rps: float | None
    ci95_rps: OpenInterval
    reason: str = ""

    @property
    def lo(self) -> float | None:
        """Loads up to here meet the objective."""
        return self.ci95_rps[0]

    @property
    def hi(self) -> float | None:
        """Loads from here on miss it."""
        return self.ci95_rps[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee(Document):
    """The load beyond which the percentile grows faster than the load, in requests per second.

    :param bracketed: True if lower and higher loads were replayed.
    """

    rps: float
    ci95_rps: tuple[float, float]
    bracketed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLoad(Document):
    """Prediction for one load by simulations, corrected by their observed errors.

    :param load: multiple of the recorded rate.
    :param meets: ``None`` if it lies within the largest load's interval, or there is no objective.
    """

    load: float
    offered_rps: float
    percentile_ms: float
    ci95_ms: tuple[float, float]
    meets: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """Conclusions about all loads from the replays of one setting.

    :param largest: ``None`` without an objective.
    :param predicted: by rising load.
    """

    largest: LargestLoad | None
    knee: Knee | None
    predicted: tuple[PredictedLoad, ...] = ()

    def meets(self, rps: float) -> bool | None:
        """True if a load meets the objective; ``None`` within the interval."""
        return None if self.largest is None else at_least([self.largest], rps)

    def below(self, rps: float) -> bool:
        """True if the largest load is certainly less."""
        return self.largest is not None and self.largest.hi is not None and self.largest.hi < rps

    def decided(self, gate_rps: float | None) -> bool:
        """True if no further replay is needed, for a gate's load either."""
        if self.largest is None:
            return self.knee is not None and self.knee.ci95_rps[1] <= _KNEE_RATIO * self.knee.ci95_rps[0]
        if self.largest.status == "below" and self.largest.lo is None and self.largest.rps is None:
            return len(self.predicted) > 0
        return self.largest.status == "found" and (gate_rps is None or self.meets(gate_rps) is not None)


def load_answer(
    errors: LoadErrors | None,
    cells: Sequence[Cell],
    target: LatencyObjective,
    recorded: float,
    *,
    whole: int,
    why_wide: str,
    why_none: str,
) -> LoadAnswer:
    """The answer from replays and a corrected simulation.

    :param errors: the simulation's errors; ``None`` if there is nothing to simulate from.
    :param cells: the replayed loads, at least one.
    :param recorded: requests per second.
    :param whole: number of replays that were not ended early.
    :param why_wide: what keeps the interval wide, to follow "because".
    :param why_none: what is known if no load meets the objective; may be empty.
    """
    loads = sorted(cell.load for cell in cells)
    # No pace explains lost requests.
    if errors is None or not any(math.isfinite(cell.percentile.value) for cell in cells):
        return LoadAnswer(largest=_unsimulated(cells, target, recorded, why_none), knee=None)
    largest = None
    if target.limit is not None:
        seen = f"with an error of {percent(errors.typical_error)} of the pace"
        largest = _largest(errors.wanted(target.limit), loads, recorded, whole, seen, why_wide, why_none)
    knee = _knee(errors.knees(), loads, recorded)
    middle = knee.rps if largest is None or largest.rps is None else largest.rps
    answer = LoadAnswer(largest=largest, knee=knee)
    between = [middle / recorded * factor for factor in _SHOWN]
    apart = [load for load in between if all(abs(load / other - 1) > _APART for other in loads)]
    wanted = sorted({*loads, *apart})
    return replace(answer, predicted=tuple(_predicted(errors, load, recorded, answer) for load in wanted))


def _largest(
    draws: Floats,
    loads: Sequence[float],
    recorded: float,
    whole: int,
    seen: str,
    why_wide: str,
    why_none: str,
) -> LargestLoad:
    crossings = quantiles(draws)
    middle, lo, hi = (recorded * math.exp(each) if math.isfinite(each) else None for each in crossings)
    status: Status = "undecided"
    none = max(crossings) == -math.inf
    if none:
        # A single replay, perhaps disturbed by the machine, is no proof about lower loads.
        status, hi = "below" if whole > 1 else "undecided", loads[0] * recorded
    elif min(crossings) == math.inf:
        status, lo = "above", loads[-1] * recorded
    elif lo is not None and middle is not None and hi is not None:
        within = hi <= middle * (1 + WITHIN) and lo >= middle * (1 - WITHIN)
        status = "found" if within and len(loads) > 1 else status
    elif hi is None and lo is not None and lo >= loads[-1] * recorded * (1 - 1e-3):
        status = "above"
    elif lo is None and hi is not None and hi <= loads[0] * recorded * (1 + 1e-3):
        status = "below"
    shown = listed([significant(load * recorded) for load in loads])
    reason = f"replayed at {shown}/s; other loads are simulated, {seen}"
    if none:
        reason += f"; {why_none}"
    elif status == "undecided":
        reason += f"; not known to within +-{percent(WITHIN)} because {why_wide}"
    return LargestLoad(status=status, rps=middle, ci95_rps=(lo, hi), reason=reason)


def _unsimulated(
    cells: Sequence[Cell], target: LatencyObjective, recorded: float, why_none: str
) -> LargestLoad | None:
    """The answer if every replay was ended early or failed."""
    if target.limit is None:
        return None
    lowest = min(cells, key=lambda cell: cell.load)
    offered = lowest.load * recorded
    missed = lowest.saturated or not lowest.percentile.value <= target.limit
    reason = "; ".join(filter(None, (f"the lowest load that was replayed, {rate(offered)}, misses it", why_none)))
    if missed:
        return LargestLoad(status="below", rps=None, ci95_rps=(None, offered), reason=reason)
    return LargestLoad(
        status="undecided",
        rps=None,
        ci95_rps=(None, None),
        reason="too few requests ended ok to simulate other loads",
    )


def _knee(draws: Floats, loads: Sequence[float], recorded: float) -> Knee:
    """The load that maximizes Kleinrock's power (1979), with the objective's percentile as the latency.

    Up to there, one percent more load costs less than one percent of latency.
    """
    middle, lo, hi = (recorded * math.exp(each) for each in quantiles(draws))
    bracketed = loads[0] * recorded <= middle <= loads[-1] * recorded
    return Knee(rps=middle, ci95_rps=(lo, hi), bracketed=bracketed)


def _predicted(errors: LoadErrors, load: float, recorded: float, answer: LoadAnswer) -> PredictedLoad:
    value, lo, hi = (1e3 * math.exp(each) for each in quantiles(errors.percentiles(math.log(load))))
    return PredictedLoad(
        load=load,
        offered_rps=load * recorded,
        percentile_ms=value,
        ci95_ms=(lo, hi),
        meets=answer.meets(load * recorded),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint(Document):
    """A point that no other beats in both throughput and percentile.

    :param certain: no other is as good in both, given the intervals.
    """

    setting: int
    load: float
    achieved_rps: float
    percentile_ms: float | None
    certain: bool


def pareto(cells: Sequence[tuple[int, Cell]]) -> list[ParetoPoint]:
    """Cells that no other beats in both throughput and percentile, by rising throughput.

    Saturated cells are left out: their latency depends on how long the replay lasted.

    :param cells: each with the number of its setting.
    """
    finite = [
        (setting, cell) for setting, cell in cells if not cell.saturated and math.isfinite(cell.percentile.value)
    ]
    front = []
    for setting, cell in finite:
        others = [other for _, other in finite if other is not cell]
        if any(_beats(other, cell) for other in others):
            continue
        rivals = (o for o in others if o.achieved >= cell.achieved * 0.98)
        certain = all(rival.percentile.lo > cell.percentile.hi for rival in rivals)
        front.append(
            ParetoPoint(
                setting=setting,
                load=cell.load,
                achieved_rps=cell.achieved,
                percentile_ms=cell.percentile.value * 1e3,
                certain=certain,
            )
        )
    return sorted(front, key=lambda point: point.achieved_rps)


def _beats(one: Cell, other: Cell) -> bool:
    no_worse = one.achieved >= other.achieved and one.percentile.value <= other.percentile.value
    return no_worse and (one.achieved > other.achieved or one.percentile.value < other.percentile.value)


def at_least(largest: Sequence[LargestLoad], rps: float) -> bool | None:
    """True if some setting carries ``rps`` requests per second; ``None`` if undecided."""
    if any(one.lo is not None and one.lo >= rps * (1 - 1e-3) for one in largest):
        return True
    below = [one.hi is not None and one.hi <= rps * (1 + 1e-3) for one in largest]
    return False if below and all(below) else None
