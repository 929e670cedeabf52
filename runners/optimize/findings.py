"""What a search has found: replayed configurations, measured ways, and what became of each fix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfix.results.comparison import Comparison
from latfix.results.optimization import SURPASSED, Prediction
from latfix.results.optimization_step import Step
from latfix.runners.fixes import Fix
from latfix.runners.optimize.configuration import Alternative, Configuration
from latfix.settings import RunnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A configuration that was replayed on the windows in turns with the best one before it.

    :param score: its goal relative to the first settings, as a logarithm: the measured ratios of all kept replays.
    :param reason: what the replays showed, or why there are none.
    :param verified: by fix, the evidence that it took effect.
    """

    configuration: Configuration
    status: str
    reason: str
    score: float = math.inf
    comparison: Comparison | None = None
    prediction: Prediction | None = None
    scored: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, str] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def accuracy(self) -> float | None:
        """Score of its answers; ``None`` if they were not scored."""
        return float(self.scored["score"]) if self.scored else None

    @property
    def refused(self) -> bool:
        """True if its answers were not accurate enough, so that it was not replayed."""
        return self.status == "rejected" and self.comparison is None

    def prediction_error(self, key: str) -> float | None:
        """Error of the predicted ratio of a statistic, as a share of the measured one."""
        if self.prediction is None or self.comparison is None:
            return None
        measured = self.comparison.ratio[key]
        if measured.lost or not measured.value > 0:
            return None
        return abs(self.prediction.ratio[key] / measured.value - 1.0)


@dataclass(slots=True)
class Findings:
    """Results of a search so far.

    :param fixes: the fixes to choose from.
    :param first: the settings before the search.
    :ivar alternatives: measured ways to run the model, in order.
    :ivar trials: replayed configurations, in order.
    :ivar set_ups: results of set-ups, by fix.
    :ivar ineffective: by fix, the evidence that it took no effect.
    :ivar obstacles: by fix, why it does not apply; ``skipped`` why it was not tried.
    :ivar dropped: fixes that were left out of the plan, because they gain nothing next to the others.
    """

    fixes: Sequence[Fix]
    first: RunnerSettings
    alternatives: list[Alternative] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    set_ups: dict[str, Any] = field(default_factory=dict)
    ineffective: dict[str, str] = field(default_factory=dict)
    obstacles: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @property
    def ready(self) -> list[Alternative]:
        """Ways to run the model that may be chosen."""
        return [each for each in self.alternatives if each.status == "ready"]

    @property
    def improvements(self) -> list[Trial]:
        """Replayed configurations that were kept."""
        return [trial for trial in self.trials if trial.status == "kept" and trial.comparison is not None]

    @property
    def seen(self) -> set[tuple[str, ...]]:
        """Keys of the first settings and of all configurations that were tried."""
        return {(), *(trial.configuration.key for trial in self.trials)}

    @property
    def tried(self) -> set[str]:
        """Fixes of configurations that were tried."""
        return {fix for trial in self.trials for fix in trial.configuration.fixes}

    def effective(self, configuration: Configuration) -> Configuration:
        """The configuration without fixes that took no effect."""
        for fix in self.ineffective:
            configuration = configuration.without(fix)
        return configuration

    def steps(self, best: Configuration, *, ended: bool = True) -> list[Step]:
        """Every fix once, with its result; the kept ones first, in the order of the plan.

        :param best: the current best configuration, whose fixes are kept.
        :param ended: the search was not interrupted; otherwise fixes without a result are left out.
        """
        steps = {fix.id: step for fix in self.fixes if (step := self._step(fix, best, ended)) is not None}
        kept = [steps[fix] for fix in best.fixes if fix in steps]
        return [*kept, *(step for fix, step in steps.items() if fix not in best.fixes)]

    def _step(self, fix: Fix, best: Configuration, ended: bool) -> Step | None:
        if fix.id in best.fixes:
            trial = next(each for each in self.trials if each.status == "kept" and fix.id in each.configuration.fixes)
            group = tuple(each for each in trial.configuration.fixes if each in best.fixes)
            return _trial_step(fix, trial, "kept", trial.reason, best, group)
        if fix.id in self.ineffective:
            return fix.step("not_effective", f"it did not take effect: {self.ineffective[fix.id]}")
        if fix.id in self.dropped:
            return fix.step("no_gain", "next to the other fixes of the plan it is predicted to gain nothing")
        trials = [
            trial
            for trial in reversed(self.trials)
            if fix.id in trial.configuration.fixes and trial.configuration.fixes != best.fixes
        ]
        # Refused answers say nothing about a fix that keeps them.
        told = next((each for each in trials if fix.changes_outputs or not each.refused), None)
        if told is None:
            return self._measured_step(fix) or self._unmeasured_step(fix, trials, ended)
        status, reason, tried = told.status, told.reason, told.configuration
        if tried.words != fix.id:
            reason = f"tried as {tried.words}: {reason}"
        if status == "kept":
            status, reason = "no_gain", SURPASSED + reason
        return _trial_step(fix, told, status, reason, tried, tried.fixes)

    def _measured_step(self, fix: Fix) -> Step | None:
        ways = [each for each in self.alternatives if fix.id in {choice.fix.id for choice in each.choices}]
        if not ways:
            return None
        shown = min(ways, key=lambda each: (each.status == "ready", len(each.choices)))
        status, reason = shown.status, shown.reason
        if status == "ready":
            status, reason = "no_gain", f"{reason}; it is not in the best configuration"
        return fix.step(status, reason, settings=Configuration(self.first, shown.choices).change_of(fix.id))

    def _unmeasured_step(self, fix: Fix, refused: Sequence[Trial], ended: bool) -> Step | None:
        """A fix of which nothing was measured.

        :param refused: configurations with it whose answers were refused.
        """
        only = f"only tried as {refused[0].configuration.words}, whose answers were refused" if refused else ""
        if reason := self.obstacles.get(fix.id) or only or self.skipped.get(fix.id, ""):
            return fix.step("skipped", reason)
        if not ended:
            return None
        return fix.step("no_gain", "the forecast on the recorded requests finds no gain, so it was not replayed")


def _trial_step(
    fix: Fix, trial: Trial, status: str, reason: str, configuration: Configuration, together: tuple[str, ...]
) -> Step:
    """A fix with the figures of a trial.

    :param configuration: the settings that the step shows.
    :param together: the fixes that share the figures.
    """
    kept = status == "kept"
    return fix.step(
        status,
        reason,
        settings=configuration.change_of(fix.id),
        comparison=trial.comparison,
        predicted=trial.prediction,
        scored=trial.scored if fix.changes_outputs or not kept else {},
        accuracy=trial.accuracy,
        verified=trial.verified.get(fix.id, "") if kept else "",
        together=together if len(together) > 1 else (),
        pairs=trial.pairs,
    )
