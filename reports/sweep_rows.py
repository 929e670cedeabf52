"""Rows and phrases of a sweep for the terminal, the page and its charts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from latfix.capacity.max_load import LargestLoad, PredictedLoad
from latfix.formatting import NONE, counted, interval, milliseconds, percentile_label, rate, significant
from latfix.reports.comparison_rows import GateRow, outcome_of
from latfix.reports.vocabulary import Severity
from latfix.results.sweep import BestSetting, Sweep, SweepPoint, SweptSetting

#: The label of unmodified settings in documents, and on screens.
_UNMODIFIED, _UNMODIFIED_SHOWN = "as it is", "unmodified settings"
#: Names of the models in reports, in order.
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


def setting_label(label: str) -> str:
    """The label of a combination of settings on screens."""
    return _UNMODIFIED_SHOWN if label == _UNMODIFIED else label


def percentile_words(point: SweepPoint) -> str:
    """The objective's percentile in milliseconds: ``412``, ``>2,310`` for a lower bound."""
    text = significant(point.objective.percentile_ms)
    return f">{text}" if point.objective.at_least and text != NONE else text


def interval_words(point: SweepPoint) -> str:
    """``[380, 460]``; ``380 or more`` with an open upper end."""
    low, high = point.objective.ci95_ms
    if low is None:
        return NONE
    return f"[{significant(low)}, {significant(high)}]" if high is not None else f"{significant(low)} or more"


def lost(point: SweepPoint) -> int:
    """Requests that did not end ok."""
    return sum(number for name, number in point.requests.items() if name != "ok")


def wait_ms(point: SweepPoint, model: str) -> float | None:
    """The mean wait that a model predicts; ``None`` if it has no answer."""
    answer = point.predictions.get(model)
    return None if answer is None else answer.mean_wait_ms


def predicted_ms(point: SweepPoint, model: str) -> float | None:
    """The objective's percentile that a model predicts; ``None`` if it has no answer."""
    answer = point.predictions.get(model)
    return None if answer is None else answer.percentile_ms


def departure(point: SweepPoint) -> float | None:
    """The factor between the measured mean wait and Kingman's.

    Infinite if the formula has no answer, ``None`` if there was no wait.
    """
    measured, predicted = point.wait_ms.get("mean"), wait_ms(point, "kingman")
    if not measured:
        return None
    return max(measured / predicted, predicted / measured) if predicted else math.inf


def point_state(point: SweepPoint, *, judged: bool) -> tuple[str, Severity]:
    """``saturated``, or as :func:`meets_words`."""
    if point.saturated:
        return "saturated", "bad"
    return meets_words(point.objective.meets, judged=judged)


def meets_words(meets: bool | None, *, judged: bool) -> tuple[str, Severity]:
    """``meets``, ``misses`` or ``undecided``, with its color; empty without an objective."""
    return MEETS_WORDS[meets] if judged else ("", "calm")


def largest_words(largest: LargestLoad | BestSetting | None) -> str:
    """``41.2/s [38.0, 44.1]``, ``above 44.1/s``, ``below 11.0/s``, or the interval alone."""
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
    def label(self) -> str:
        """``max_batch_size=8``."""
        return setting_label(self.found.label)

    @property
    def status(self) -> str:
        """Status of its largest load: found, above, below or undecided; empty without an objective."""
        return "" if self.found.largest is None else self.found.largest.status

    @property
    def severity(self) -> Severity:
        """The color of :attr:`status`."""
        return _STATUS_SEVERITY.get(self.status, "warn")

    def loads(self) -> list[SweepPoint | PredictedLoad]:
        """Its points, and loads that were predicted and not replayed, by rising load."""
        replayed = {point.load for point in self.points}
        unreplayed = [each for each in self.found.predicted if each.load not in replayed]
        return sorted([*self.points, *unreplayed], key=lambda each: each.load)

    @property
    def has_reasons(self) -> bool:
        """True if a load departs from the models for a known reason."""
        return any(point.reasons for point in self.points)

    @property
    def has_theory(self) -> bool:
        """True if a model has an answer for a load."""
        return any(wait_ms(point, model) is not None for point in self.points for model in MODEL_WORDS)

    def knee_words(self) -> str:
        """``31.0/s [27.2, 34.9]``; ``above 47.8/s`` or ``below 11.0/s`` if no load on that side was replayed."""
        knee = self.found.knee
        if knee is None:
            return NONE
        if knee.bracketed or not self.points:
            return f"{rate(knee.rps)} {interval(knee.ci95_rps)}"
        lowest, highest = self.points[0].offered_rps, self.points[-1].offered_rps
        return f"below {rate(lowest)}" if knee.rps <= lowest else f"above {rate(highest)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRows:
    """A sweep, its points by setting."""

    found: Sweep
    settings: tuple[SettingRow, ...]

    @property
    def percentile(self) -> str:
        """The objective's percentile: ``p99``."""
        return percentile_label(self.found.objective.percentile)

    @property
    def judged(self) -> bool:
        """True if there is an objective."""
        return self.found.objective.slo_ms is not None

    @property
    def gate(self) -> GateRow | None:
        """The gate on the largest load (``--at-least``)."""
        gate = self.found.gate
        if gate is None:
            return None
        return GateRow(
            gate=f"at least {rate(gate.at_least_rps)}", outcome=outcome_of(gate.passed), reason=gate.reason
        )

    def label(self, setting: int) -> str:
        """The label of a setting by its number."""
        return next((row.label for row in self.settings if row.found.id == setting), "")

    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.found.state == "running":  # its document has points and no settings
            return f"No answer: the sweep has not reached its end ({counted(len(self.found.points), 'point')})."
        if not any(setting.points for setting in self.settings):
            return "No replay reached its end."
        if not self.judged:
            top = self.top_knee()
            if top is None:
                return "No knee was found, and no objective is set (slo_ms or --slo)."
            where = "" if len(self.settings) == 1 else f" with {top.label}"
            words = top.knee_words()
            at = "at " if words[0].isdigit() else ""
            return f"Knee {at}{words}{where}; no objective is set (slo_ms or --slo)."
        goal = f"{self.percentile} under {milliseconds(self.found.objective.slo_ms)}"
        best = self.found.best
        if best is None:
            if self.undecided():
                return f"Undecided: no replayed load is certain to meet {goal}."
            return f"Every replayed load misses {goal}."
        others = len(best.maybe_as_good)
        more = f"; {others} other setting{'s' if others > 1 else ''} may do as well" if others else ""
        subject = "The unmodified service" if best.label == _UNMODIFIED else best.label
        return f"{subject} sustains {self._sustained(best, goal)}{more}."

    def _sustained(self, best: BestSetting, goal: str) -> str:
        (low, high), recorded = best.ci95_rps, self.found.traffic.recorded_rps
        if best.status == "found":
            times = f", {significant(best.rps / recorded)} times the recorded rate" if best.rps and recorded else ""
            return f"{largest_words(best)} with {goal}{times}"
        if best.status == "above":
            return f"at least {rate(low)} with {goal}, the highest replayed load"
        if high is None:
            return f"at least {rate(low)} with {goal}; the data give no upper bound"
        return f"between {rate(low)} and {rate(high)} with {goal}; the data do not narrow it further"

    def undecided(self) -> bool:
        """True if a setting may meet the objective and none is certain to."""
        return any(setting.status == "undecided" for setting in self.settings)

    def best_setting(self) -> SettingRow | None:
        """The setting with the largest certain load."""
        best = self.found.best
        return next((row for row in self.settings if best is not None and row.found.id == best.setting), None)

    def shown_knee(self) -> SettingRow | None:
        """The setting with the largest certain load; if it has no knee, the one whose knee is at the highest load."""
        best = self.best_setting()
        return best if best is not None and best.found.knee is not None else self.top_knee()

    def top_knee(self) -> SettingRow | None:
        """The setting whose knee is at the highest load."""
        knees = [row for row in self.settings if row.found.knee is not None]
        return max(knees, key=lambda row: 0.0 if row.found.knee is None else row.found.knee.rps, default=None)

    def severity(self) -> Severity:
        """The color of the answer."""
        if not self.judged:
            return "calm"
        if self.found.best is None:
            return "warn" if self.undecided() or self.found.state == "running" else "bad"
        return _STATUS_SEVERITY.get(self.found.best.status, "warn")


def sweep_rows(found: Sweep) -> SweepRows:
    """The rows of a sweep."""
    points = sorted(found.points, key=lambda point: point.load)
    return SweepRows(
        found=found,
        settings=tuple(
            SettingRow(found=setting, points=tuple(point for point in points if point.setting == setting.id))
            for setting in found.settings
        ),
    )
