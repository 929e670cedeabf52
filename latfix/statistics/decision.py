"""Verdicts on the ratio of two arms: one rule for `optimize`, `compare` and gates against a baseline.

An estimate carries two intervals. The displayed one, ``ci95``, holds the true ratio in 95 of 100 comparisons; by it,
five of a hundred comparisons of a service with itself would differ. Verdicts and gates use a second, wider one, the
*decision bounds*, by which at most one in a hundred does (docs/statistics.md has the method and measurements).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Verdict = Literal["better", "worse", "no_difference", "undecided"]

#: Nominal error rate of a decision about a service and itself: half of the promised 1 in 100, so that simulated
#: rates stay below the promise with a margin, also for short traffic or rare pauses.
LEVEL = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The confidence that a comparison needs to decide.

    :param level: error rate of the decision bounds, both sides together.
    :param restart_sd: assumed standard deviation of the logarithm of a round's ratio due to restarts, in addition to
        what the rounds show, as long as there are too few restarts to show it.
        0.07 is seven per cent: the measured variation of the p99 ratios of single rounds.
    """

    level: float = LEVEL
    restart_sd: float = 0.07


#: For claims that outlive the measured processes: `compare`, gates, the final replay of `optimize`.
FINAL = Rule()
#: For claims about two live processes, which a final replay on fresh ones will check.
SCREENING = Rule(level=0.01, restart_sd=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval, in the value's own unit."""

    value: float
    lo: float
    hi: float

    def to_json(self) -> dict[str, Any]:
        """``{"value": …, "ci95": [lo, hi]}``; ``null`` for numbers that are not finite."""
        known = math.isfinite(self.lo) and math.isfinite(self.hi)
        value = self.value if math.isfinite(self.value) else None
        return {"value": value, "ci95": [self.lo, self.hi] if known else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEstimate(Interval):
    """New over base, without unit: 0.25 is four times faster.

    :param decision: the bounds for verdicts and gates, never inside ``lo`` and ``hi``; an unbounded end is 0 or
        infinite. ``None`` if an older document had none.
    :param level: error rate of ``decision``.
    :param rounds: the number of pairs of replays.
    :param spread: about the standard deviation of the logarithm of one round's ratio; NaN if unknown.
    :param lost: an arm's figure is among its lost requests: the bounds show which arm is slower, but not by how
        much.
    :param corrected: the machine's drift was removed (:mod:`latfix.statistics.control_variate`).
    """

    JSON_SCHEMA: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "description": "A ratio with its 95 % interval, and the bounds that decide; null where an end is open.",
        "properties": {
            "value": {"type": ["number", "null"]},
            "ci95": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]},
            "decision": {"type": "array", "items": {"type": ["number", "null"]}},
            "level": {"type": "number"},
            "rounds": {"type": "integer"},
            "spread": {"type": ["number", "null"]},
            "lost": {"type": "boolean", "description": "The figure is among the requests that an arm lost."},
            "corrected": {"type": "boolean", "description": "The machine's drift between replays was removed."},
        },
        "required": ["value", "ci95"],
    }

    decision: tuple[float, float] | None = None
    level: float = LEVEL
    rounds: int = 1
    spread: float = math.nan
    lost: bool = False
    corrected: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The decision bounds, or the 95 % interval if there are none."""
        return (self.lo, self.hi) if self.decision is None else self.decision

    def to_json(self) -> dict[str, Any]:
        """As :meth:`Interval.to_json`, with the decision bounds; an open end is ``null``."""
        if self.lost:
            return {"value": None, "ci95": None, "rounds": self.rounds, "lost": True}
        entry = Interval.to_json(self)
        if self.decision is not None:
            lo, hi = self.decision
            ends = [lo if math.isfinite(lo) and lo > 0 else None, hi if math.isfinite(hi) else None]
            spread = self.spread if math.isfinite(self.spread) else None
            entry |= {"decision": ends, "level": self.level, "rounds": self.rounds, "spread": spread}
        return entry | {"corrected": True} if self.corrected else entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> RatioEstimate:
        """Read an entry that :meth:`to_json` wrote; those of older documents have only ``value`` and ``ci95``."""
        value, ends, decision = entry.get("value"), entry.get("ci95"), entry.get("decision")
        lo, hi = (float(end) for end in ends) if ends else (math.nan, math.nan)
        number = math.nan if value is None else float(value)
        if decision is None:
            return cls(value=number, lo=lo, hi=hi, lost=bool(entry.get("lost", False)))
        least, most = decision
        spread = entry.get("spread")
        return cls(
            value=number,
            lo=lo,
            hi=hi,
            decision=(0.0 if least is None else float(least), math.inf if most is None else float(most)),
            level=float(entry.get("level", LEVEL)),
            rounds=int(entry.get("rounds", 1)),
            spread=math.nan if spread is None else float(spread),
            corrected=bool(entry.get("corrected", False)),
        )


def judge(estimate: RatioEstimate, *, smallest: float = 0.05) -> Verdict:
    """The verdict on a ratio of latencies; lower is better.

    :param smallest: the smallest relevant difference: bounds inside ``1 ± smallest`` that hold 1 are
        ``no_difference``.
    """
    lo, hi = estimate.bounds
    if not math.isfinite(estimate.value) or math.isnan(lo) or math.isnan(hi):
        return "undecided"
    if hi < 1.0:
        return "better"
    if lo > 1.0:
        return "worse"
    if lo >= 1.0 - smallest and hi <= 1.0 + smallest:
        return "no_difference"
    return "undecided"
