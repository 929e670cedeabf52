"""A sweep in one shape, from ``sweep.json``, for every reporter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfix.formatting import (
    NONE,
    finite,
    interval,
    interval_bounds,
    milliseconds,
    percentile_label,
    rate,
    significant,
)
from latfix.reports.comparison_rows import GateRow, outcome_of
from latfix.reports.vocabulary import Severity

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One setting at one load. Absent figures are ``None``.

    :param percentile_ms: the objective's; ``at_least``: the replay was ended early, and it is a lower bound.
    :param predicted_ms: the same percentile by model; ``waits_ms`` mean waits by model.
    :param fitted: models that were given what was measured at this very load.
    :param reasons: why it departs from the models, each with its id and a sentence.
    """

    setting: int
    load: float
    offered: float
    achieved: float | None
    p50_ms: float | None
    percentile_ms: float | None
    ci95_ms: tuple[float | None, float | None]
    at_least: bool
    meets: bool | None
    saturated: bool
    enough: bool
    wait_ms: float | None
    workers: float | None
    batch_size: float | None
    repeats: int
    lost: int
    dispersion: float | None
    predicted_ms: Mapping[str, float | None]
    waits_ms: Mapping[str, float | None]
    fitted: frozenset[str]
    reasons: tuple[tuple[str, str], ...]

    def percentile_words(self) -> str:
        """``412``, ``>2,310`` for a lower bound."""
        text = significant(self.percentile_ms)
        return f">{text}" if self.at_least and self.percentile_ms is not None else text

    def interval_words(self) -> str:
        """``[380, 460]``, ``380 or more`` where nothing slower was seen."""
        low, high = self.ci95_ms
        if low is None:
            return NONE
        return f"[{significant(low)}, {significant(high)}]" if high is not None else f"{significant(low)} or more"

    def departure(self) -> float | None:
        """By what factor the mean wait is off Kingman's.

        Infinite where the formula has no answer, ``None`` where nothing was waited for.
        """
        predicted = self.waits_ms.get("kingman")
        if not self.wait_ms:
            return None
        if predicted is None:
            return math.inf
        return max(self.wait_ms / predicted, predicted / self.wait_ms) if predicted > 0 else math.inf

    def state(self, judged: bool) -> tuple[str, Severity]:
        """Whether the objective is met, or that the load is past saturation."""
        if self.saturated:
            return "saturated", "bad"
        return MEETS_WORDS[self.meets] if judged else ("", "calm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One combination of settings and its answers."""

    number: int
    label: str
    failure: str
    status: str
    largest: float | None
    largest_ci95: tuple[float | None, float | None]
    reason: str
    knee: float | None
    knee_ci95: tuple[float, float] | None
    bracketed: bool
    capacity: float | None
    most: float | None
    points: tuple[PointRow, ...]

    @property
    def severity(self) -> Severity:
        """How alarming its answer is."""
        return _STATUS_SEVERITY.get(self.status, "warn")

    @property
    def has_reasons(self) -> bool:
        """True if some load departs from the models for a known reason."""
        return any(point.reasons for point in self.points)

    @property
    def has_theory(self) -> bool:
        """True if some model says anything about some load."""
        return any(value is not None for point in self.points for value in point.waits_ms.values())

    @property
    def subject(self) -> str:
        """How a sentence about it begins."""
        return "The service as it is" if self.label == AS_IT_IS else self.label

    def largest_words(self) -> str:
        """``41.2/s [38.0, 44.1]``, ``above 44.1/s``, ``below 11.0/s``, or what of it is known."""
        low, high = self.largest_ci95
        if self.status == "above":
            return f"above {rate(low)}"
        if self.status == "below":
            return f"below {rate(high)}"
        if low is None and high is None:
            return NONE
        ends = f"[{'0' if low is None else significant(low)}, {'open' if high is None else significant(high)}]"
        return f"{rate(self.largest)} {ends}" if self.largest is not None else ends

    def knee_words(self) -> str:
        """``31.0/s [27.2, 34.9]``; ``or beyond``, ``or below`` where no load past it was replayed."""
        if self.knee is None:
            return NONE
        ends = "" if self.knee_ci95 is None else f" {interval(self.knee_ci95)}"
        beyond = ""
        if not self.bracketed:
            below = self.points and self.knee <= self.points[0].offered
            beyond = ", or below" if below else ", or beyond"
        return f"{rate(self.knee)}{ends}{beyond}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A load of a setting that no other beats both in throughput and in the percentile.

    :param certain: false where others may be as good.
    """

    setting: int
    label: str
    load: float
    served: float | None
    percentile_ms: float | None
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """By which median factor a model is off.

    :param loads: how many loads that rests on; at ``silent`` of them it says nothing.
    """

    model: str
    wait: float | None
    percentile: float | None
    loads: int
    silent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRows:
    """All of a sweep.

    :param errors: by model.
    :param skipped: what was not replayed: setting, load and reason.
    :param gate: the load that was asked for; ``None`` where none was.
    """

    percentile: str
    slo_ms: float | None
    recorded: float | None
    settings: tuple[SettingRow, ...]
    front: tuple[FrontPoint, ...]
    best: Mapping[str, Any]
    errors: Mapping[str, ModelError]
    skipped: tuple[tuple[str, float | None, str], ...]
    gate: GateRow | None
    notes: tuple[str, ...]

    @property
    def judged(self) -> bool:
        """Whether there is an objective."""
        return self.slo_ms is not None

    def sentence(self) -> str:
        """The answer in one sentence."""
        if not any(setting.points for setting in self.settings):
            return "Nothing was replayed to its end."
        if not self.judged:
            knees = [s for s in self.settings if s.knee is not None]
            if not knees:
                return "There is no objective, and the loads do not show a knee."
            top = max(knees, key=lambda s: s.knee or 0.0)
            where = "" if len(self.settings) == 1 else f" with {top.label}"
            return f"Knee at {top.knee_words()}{where}; there is no objective to hold loads against."
        goal = f"{self.percentile} under {milliseconds(self.slo_ms)}"
        best = self.best_setting()
        if best is None:
            status = (
                "no load that was replayed surely meets"
                if self.undecided()
                else "every load that was replayed misses"
            )
            return f"Undecided: {status} {goal}." if self.undecided() else f"{status.capitalize()} {goal}."
        others = len(items(self.best.get("maybe_as_good")))
        more = f"; {others} other setting{'s' if others > 1 else ''} may bear as much" if others else ""
        return f"{best.subject} bears {self._borne(best, goal)}{more}."

    def _borne(self, best: SettingRow, goal: str) -> str:
        low, high = best.largest_ci95
        if best.status == "found":
            times = self._times(best)
            return f"{best.largest_words()} with {goal}" + (
                "" if times is None else f", {significant(times)} times the recorded rate"
            )
        if best.status == "above":
            return f"at least {rate(low)} with {goal}, the highest load that was replayed"
        if high is None:
            return f"at least {rate(low)} with {goal}; how much more, the data cannot tell"
        return f"at least {rate(low)} and less than {rate(high)} with {goal}; the data cannot tell closer"

    def _times(self, best: SettingRow) -> float | None:
        if best.status != "found" or best.largest is None or not self.recorded:
            return None
        return best.largest / self.recorded

    def undecided(self) -> bool:
        """Some setting may meet the objective and none surely does."""
        return any(setting.status == "undecided" for setting in self.settings)

    def best_setting(self) -> SettingRow | None:
        """The setting that surely bears most."""
        number = self.best.get("setting")
        return next((setting for setting in self.settings if setting.number == number), None)

    def severity(self) -> Severity:
        """How alarming the answer is."""
        best = self.best_setting()
        if not self.judged:
            return "calm"
        if best is None:
            return "warn" if self.undecided() else "bad"
        return best.severity


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object of a document, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """The value where it is a list of a document, else an empty one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()


def read_sweep(document: Mapping[str, Any]) -> SweepRows:
    """The rows of ``sweep.json``."""
    objective, traffic, models = (mapping(document.get(key)) for key in ("objective", "traffic", "models"))
    points = [_point(mapping(entry)) for entry in items(document.get("points"))]
    settings = tuple(_setting(mapping(entry), points) for entry in items(document.get("settings")))
    labels = {setting.number: setting.label for setting in settings}
    gate = mapping(document.get("gate"))
    return SweepRows(
        percentile=percentile_label(finite(objective.get("percentile")) or 99.0),
        slo_ms=finite(objective.get("slo_ms")),
        recorded=finite(traffic.get("recorded_rps")),
        settings=settings,
        front=tuple(_front_point(mapping(entry), labels) for entry in items(document.get("pareto"))),
        best=mapping(document.get("best")),
        errors={name: _error(words, mapping(models[name])) for name, words in MODEL_WORDS.items() if name in models},
        skipped=tuple(
            (labels.get(_whole(entry.get("setting")), ""), finite(entry.get("load")), str(entry.get("reason", "")))
            for entry in map(mapping, items(document.get("skipped")))
        ),
        gate=GateRow(
            gate=f"at least {rate(gate.get('at_least_rps'))}",
            outcome=outcome_of(gate.get("passed")),
            reason=str(gate.get("reason") or ""),
        )
        if gate
        else None,
        notes=tuple(str(note) for note in items(document.get("notes"))),
    )


def _whole(value: object) -> int:
    return int(finite(value) or 0)


def _front_point(entry: Mapping[str, Any], labels: Mapping[int, str]) -> FrontPoint:
    setting = _whole(entry.get("setting"))
    return FrontPoint(
        setting=setting,
        label=labels.get(setting, ""),
        load=finite(entry.get("load")) or 0.0,
        served=finite(entry.get("achieved_rps")),
        percentile_ms=finite(entry.get("percentile_ms")),
        certain=bool(entry.get("certain")),
    )


def _error(words: str, entry: Mapping[str, Any]) -> ModelError:
    return ModelError(
        model=words,
        wait=finite(entry.get("wait")),
        percentile=finite(entry.get("percentile")),
        loads=_whole(entry.get("loads")),
        silent=_whole(entry.get("silent")),
    )


def _setting(entry: Mapping[str, Any], points: Sequence[PointRow]) -> SettingRow:
    largest, knee = mapping(entry.get("largest")), mapping(entry.get("knee"))
    number = _whole(entry.get("id"))
    return SettingRow(
        number=number,
        label=str(entry.get("label", "")),
        failure=str(entry.get("failure") or ""),
        status=str(largest.get("status", "")),
        largest=finite(largest.get("rps")),
        largest_ci95=_ends(largest.get("ci95_rps")),
        reason=str(largest.get("reason", "")),
        knee=finite(knee.get("rps")),
        knee_ci95=interval_bounds(knee.get("ci95_rps")),
        bracketed=bool(knee.get("bracketed")),
        capacity=finite(entry.get("capacity_rps")),
        most=finite(entry.get("most_achieved_rps")),
        points=tuple(sorted((row for row in points if row.setting == number), key=lambda row: row.load)),
    )


def _point(entry: Mapping[str, Any]) -> PointRow:
    objective, requests = mapping(entry.get("objective")), mapping(entry.get("requests"))
    predictions = {name: mapping(mapping(entry.get("predictions")).get(name)) for name in MODEL_WORDS}
    meets = objective.get("meets")
    return PointRow(
        setting=_whole(entry.get("setting")),
        load=finite(entry.get("load")) or 0.0,
        offered=finite(entry.get("offered_rps")) or 0.0,
        achieved=finite(entry.get("achieved_rps")),
        p50_ms=finite(mapping(entry.get("latency_ms")).get("p50")),
        percentile_ms=finite(objective.get("percentile_ms")),
        ci95_ms=_ends(objective.get("ci95_ms")),
        at_least=bool(objective.get("at_least")),
        meets=meets if isinstance(meets, bool) else None,
        saturated=bool(entry.get("saturated")),
        enough=bool(entry.get("enough_requests", True)),
        wait_ms=finite(mapping(entry.get("wait_ms")).get("mean")),
        workers=finite(mapping(entry.get("utilization")).get("workers")),
        batch_size=finite(entry.get("batch_size")),
        repeats=len(items(entry.get("runs"))),
        lost=sum(_whole(requests.get(name)) for name in ("error", "timeout", "shed")),
        dispersion=finite(entry.get("dispersion")),
        predicted_ms={name: finite(answer.get("percentile_ms")) for name, answer in predictions.items()},
        waits_ms={name: finite(answer.get("mean_wait_ms")) for name, answer in predictions.items()},
        fitted=frozenset(name for name, answer in predictions.items() if answer.get("fitted") is True),
        reasons=tuple(
            (str(mapping(reason).get("reason", "")), str(mapping(reason).get("text", "")))
            for reason in items(entry.get("reasons"))
        ),
    )


def _ends(value: object) -> tuple[float | None, float | None]:
    pair = items(value)
    return (finite(pair[0]), finite(pair[1])) if len(pair) == 2 else (None, None)
