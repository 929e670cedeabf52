"""The words and orders of a sweep that the terminal, the page and its pictures share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from latfix.capacity.max_load import LargestLoad, PredictedLoad
from latfix.formatting import NONE, interval, milliseconds, percentile_label, rate, significant
from latfix.reports.comparison_rows import GateRow, outcome_of
from latfix.reports.vocabulary import Severity
from latfix.results.sweep import BestSetting, Sweep, SweepPoint, SweptSetting

#: The label of settings that nothing was set for.
AS_IT_IS = "as it is"
#: Models as reports name them, in order.
MODEL_WORDS: dict[str, str] = {
    "mm1": "M/M/1",
    "mg1": "M/G/1",
    "kingman": "Kingman",
    "replay": "queue replay",
    "replay_own": "replay, own service",
}
MEETS_WORDS: dict[bool | None, tuple[str, Severity]] = {
    True: ("meets", "good"),
    False: ("misses", "bad"),
    None: ("undecided", "warn"),
}
_STATUS_SEVERITY: dict[str, Severity] = {"found": "good", "above": "good", "below": "bad", "undecided": "warn"}


def percentile_words(point: SweepPoint) -> str:
    """The objective's percentile in milliseconds: ``412``, ``>2,310`` for a lower bound."""
    text = significant(point.objective.percentile_ms)
    return f">{text}" if point.objective.at_least and text != NONE else text


def interval_words(point: SweepPoint) -> str:
    """``[380, 460]``, ``380 or more`` where nothing slower was seen."""
    low, high = point.objective.ci95_ms
    if low is None:
        return NONE
    return f"[{significant(low)}, {significant(high)}]" if high is not None else f"{significant(low)} or more"


def lost(point: SweepPoint) -> int:
    """Requests that did not end ok."""
    return sum(number for name, number in point.requests.items() if name != "ok")


def wait_ms(point: SweepPoint, model: str) -> float | None:
    """The mean wait that a model predicts; ``None`` where it says nothing."""
    answer = point.predictions.get(model)
    return None if answer is None else answer.mean_wait_ms


def predicted_ms(point: SweepPoint, model: str) -> float | None:
    """The objective's percentile that a model predicts; ``None`` where it says nothing."""
    answer = point.predictions.get(model)
    return None if answer is None else answer.percentile_ms


def departure(point: SweepPoint) -> float | None:
    """By what factor the mean wait is off Kingman's.

    Infinite where the formula has no answer, ``None`` where nothing was waited for.
    """
    measured, predicted = point.wait_ms.get("mean"), wait_ms(point, "kingman")
    if not measured:
        return None
    return max(measured / predicted, predicted / measured) if predicted else math.inf


def point_state(point: SweepPoint, *, judged: bool) -> tuple[str, Severity]:
    """Whether the objective is met, or that the load is past saturation."""
    if point.saturated:
        return "saturated", "bad"
    return meets_words(point.objective.meets, judged=judged)


def meets_words(meets: bool | None, *, judged: bool) -> tuple[str, Severity]:
    """Whether a load meets the objective; nothing without one."""
    return MEETS_WORDS[meets] if judged else ("", "calm")


def largest_words(largest: LargestLoad | BestSetting | None) -> str:
    """``41.2/s [38.0, 44.1]``, ``above 44.1/s``, ``below 11.0/s``, or what of it is known."""
    low, high = (None, None) if largest is None else largest.ci95_rps
    if largest is None or (low is None and high is None):
        return NONE
    if largest.status == "above":
        return f"above {rate(low)}"
    if largest.status == "below":
        return f"below {rate(high)}"
    ends = f"[{'0' if low is None else significant(low)}, {'open' if high is None else significant(high)}]"
    return f"{rate(largest.rps)} {ends}" if largest.rps is not None else ends


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One combination of settings with its points, by rising load."""

    found: SweptSetting
    points: tuple[SweepPoint, ...]

    @property
    def status(self) -> str:
        """Which side of the loads its largest load lies on; empty without an objective."""
        return "" if self.found.largest is None else self.found.largest.status

    @property
    def severity(self) -> Severity:
        """How alarming its answer is."""
        return _STATUS_SEVERITY.get(self.status, "warn")

    def unreplayed(self) -> list[PredictedLoad]:
        """Loads that were predicted only."""
        replayed = {point.load for point in self.points}
        return [each for each in self.found.predicted if each.load not in replayed]

    @property
    def has_reasons(self) -> bool:
        """True if some load departs from the models for a known reason."""
        return any(point.reasons for point in self.points)

    @property
    def has_theory(self) -> bool:
        """True if some model says anything about some load."""
        return any(wait_ms(point, model) is not None for point in self.points for model in MODEL_WORDS)

    def knee_words(self) -> str:
        """``31.0/s [27.2, 34.9]``; ``or beyond``, ``or below`` where no load past it was replayed."""
        knee = self.found.knee
        if knee is None:
            return NONE
        beyond = ""
        if not knee.bracketed:
            below = self.points and knee.rps <= self.points[0].offered_rps
            beyond = ", or below" if below else ", or beyond"
        return f"{rate(knee.rps)} {interval(knee.ci95_rps)}{beyond}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRows:
    """A sweep, its points by setting."""

    found: Sweep
    settings: tuple[SettingRow, ...]

    @property
    def percentile(self) -> str:
        """The objective's: ``p99``."""
        return percentile_label(self.found.objective.percentile)

    @property
    def judged(self) -> bool:
        """Whether there is an objective."""
        return self.found.objective.slo_ms is not None

    @property
    def gate(self) -> GateRow | None:
        """The load that was asked for."""
        gate = self.found.gate
        if gate is None:
            return None
        return GateRow(
            gate=f"at least {rate(gate.at_least_rps)}", outcome=outcome_of(gate.passed), reason=gate.reason
        )

    def label(self, setting: int) -> str:
        """The label of a setting by its number."""
        return next((row.found.label for row in self.settings if row.found.id == setting), "")

    def sentence(self) -> str:
        """The answer in one sentence."""
        if not any(setting.points for setting in self.settings):
            return "Nothing was replayed to its end."
        if not self.judged:
            top = self.top_knee()
            if top is None:
                return "There is no objective, and the loads do not show a knee."
            where = "" if len(self.settings) == 1 else f" with {top.found.label}"
            return f"Knee at {top.knee_words()}{where}; there is no objective to hold loads against."
        goal = f"{self.percentile} under {milliseconds(self.found.objective.slo_ms)}"
        best = self.found.best
        if best is None:
            if self.undecided():
                return f"Undecided: no load that was replayed surely meets {goal}."
            return f"Every load that was replayed misses {goal}."
        others = len(best.maybe_as_good)
        more = f"; {others} other setting{'s' if others > 1 else ''} may bear as much" if others else ""
        subject = "The service as it is" if best.label == AS_IT_IS else best.label
        return f"{subject} bears {self._borne(best, goal)}{more}."

    def _borne(self, best: BestSetting, goal: str) -> str:
        (low, high), recorded = best.ci95_rps, self.found.traffic.recorded_rps
        if best.status == "found":
            times = f", {significant(best.rps / recorded)} times the recorded rate" if best.rps and recorded else ""
            return f"{largest_words(best)} with {goal}{times}"
        if best.status == "above":
            return f"at least {rate(low)} with {goal}, the highest load that was replayed"
        if high is None:
            return f"at least {rate(low)} with {goal}; how much more, the data cannot tell"
        return f"at least {rate(low)} and less than {rate(high)} with {goal}; the data cannot tell closer"

    def undecided(self) -> bool:
        """Some setting may meet the objective and none surely does."""
        return any(setting.status == "undecided" for setting in self.settings)

    def best_setting(self) -> SettingRow | None:
        """The setting that surely bears most."""
        best = self.found.best
        return next((row for row in self.settings if best is not None and row.found.id == best.setting), None)

    def top_knee(self) -> SettingRow | None:
        """The setting whose knee is at the highest load."""
        knees = [row for row in self.settings if row.found.knee is not None]
        return max(knees, key=lambda row: 0.0 if row.found.knee is None else row.found.knee.rps, default=None)

    def severity(self) -> Severity:
        """How alarming the answer is."""
        if not self.judged:
            return "calm"
        if self.found.best is None:
            return "warn" if self.undecided() else "bad"
        return _STATUS_SEVERITY.get(self.found.best.status, "warn")


def sweep_rows(found: Sweep) -> SweepRows:
    """A sweep for reporters."""
    points = sorted(found.points, key=lambda point: point.load)
    return SweepRows(
        found=found,
        settings=tuple(
            SettingRow(found=setting, points=tuple(point for point in points if point.setting == setting.id))
            for setting in found.settings
        ),
    )
