"""Earlier runs as a reference: their usual level, and how much such runs differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from latfix.files.json_documents import Document, json_key
from latfix.formatting import key_label
from latfix.gates.subject import GateSubject
from latfix.statistics.distributions import student_t

#: ``history`` in a gate is the median of at most this many of the latest comparable runs.
MOST_RUNS = 10
#: With fewer runs their spread is a guess, and the gate is undecided.
FEWEST_RUNS = 5
#: Figures that vary by a difference and may be zero; the others vary by a factor.
_BY_FACTOR_NOT = ("error_rate", "accuracy", "unexplained_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(Document):
    """The usual figure of several runs.

    :param value: their median.
    :param spread: standard deviation around it: of logarithms if ``by_factor``, else in the figure's unit.
    :param runs: how many there are.
    """

    value: float = field(metadata=json_key("median"))
    spread: float
    by_factor: bool
    runs: int

    @classmethod
    def of(cls, values: Sequence[float], metric: str) -> Level:
        """The level of at least two values of a metric."""
        middle = median(values)
        factor = metric not in _BY_FACTOR_NOT and not metric.startswith("cause:") and min(values) > 0
        away = [math.log(value / middle) if factor else value - middle for value in values]
        spread = math.sqrt(sum(each * each for each in away) / (len(values) - 1))
        return cls(value=middle, spread=spread, runs=len(values), by_factor=factor)

    def one_more(self, runs: int | None = None) -> float:
        """Half the 95 % interval of one more run of the same service, around its true level."""
        return student_t(0.95, (runs or self.runs) - 1) * self.spread

    def own_doubt(self, runs: int | None = None) -> float:
        """Half the interval of the median itself, whose variance is π/2 times that of a mean."""
        return self.one_more(runs) * math.sqrt(math.pi / 2 / (runs or self.runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The runs that ``history`` in a gate refers to, oldest first.

    :param missing: why there are none, if the history is off.
    """

    runs: tuple[GateSubject, ...] = ()
    missing: str = ""

    def figures(self, metric: str) -> list[float]:
        """The metric of the runs that have it."""
        found = (run.figure(metric) for run in self.runs)
        return [value for value in found if value is not None and math.isfinite(value)]

    def level(self, metric: str) -> Level | None:
        """The usual figure; ``None`` if too few runs have one."""
        values = self.figures(metric)
        return Level.of(values, metric) if len(values) >= FEWEST_RUNS else None

    def why_none(self, metric: str) -> tuple[str, int | None]:
        """Why there is no level, and how many more runs it needs."""
        if self.missing:
            return self.missing, None
        known = len(self.figures(metric))
        lacking = f"{len(self.runs)} comparable run{'' if len(self.runs) == 1 else 's'} in the history"
        if known < len(self.runs):
            lacking += f", {known} of them with {key_label(metric)}"
        return f"{lacking}: {FEWEST_RUNS - known} more needed before it can decide", FEWEST_RUNS - known

    def lost_share(self) -> float:
        """The usual share of requests that did not end ``ok``."""
        return median(run.lost_share for run in self.runs) if self.runs else 0.0
