"""The result of an optimization: before and after, each considered fix, and what the kept ones contributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from latfix.files.json_documents import Document, json_key
from latfix.formatting import html_table, key_label
from latfix.gates.evaluate import GateResult
from latfix.results.answer_check import AnswerCheck
from latfix.results.comparison import Summary, latency_rows
from latfix.statistics.decision import RatioEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Document):
    """Predicted ratios over the configuration without the fix, by statistic.

    :param compute: the change of compute that they assume.
    """

    ratio: Mapping[str, float]
    compute: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFix(Document):
    """One considered fix, and its outcome.

    :param status: kept, rejected, no_gain, not_effective, undecided or skipped.
    :param title: what the fix does, in a few words; ``risk`` what it may cost. Empty in older documents.
    :param ratio: with it over without it, on the screening windows; empty if it was not replayed.
    :param predicted_p99_ms: predicted p99 of the windows; ``None`` if it was not replayed alone.
    :param p99_ms: p99 of the windows with it.
    :param predicted: the forecast before the replay.
    :param adds: only in documents of earlier versions; now in :class:`Contribution`.
    :param accuracy: with it.
    :param scored: all results of measuring the accuracy, if it was measured.
    :param verified: the evidence that it took effect.
    :param together: ids of the fixes that were tried in the same replays; empty if it was tried alone.
    :param settings: what it changed.
    """

    fix: str
    status: str
    reason: str
    title: str = field(default="", metadata=json_key(omit_empty=True))
    risk: str = field(default="", metadata=json_key(omit_empty=True))
    ratio: Mapping[str, RatioEstimate] = field(default_factory=dict)
    predicted_p99_ms: float | None = None
    p99_ms: float | None = None
    predicted: Prediction | None = None
    adds: Mapping[str, RatioEstimate] | None = None
    accuracy: float | None = None
    scored: Mapping[str, Any] = field(default_factory=dict)
    verified: str = ""
    together: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution(Document):
    """The part of the whole change that one kept fix, or a group replayed together, contributed.

    :param fixes: their ids; empty in the last entry, which is the remainder.
    :param before_ms: by statistic (mean, p99); with ``after_ms``, entries lead from the first settings' figure of
        the final replay to the last settings'.
    :param ratio: its effect when it was added.
    :param adds: by fix, its effect in addition to all others, from replays of the plan with it over without it; for
        those that contributed most, as time allowed.
    :param predicted: the prediction of ``ratio``.
    """

    fixes: tuple[str, ...]
    before_ms: Mapping[str, float]
    after_ms: Mapping[str, float]
    ratio: Mapping[str, RatioEstimate] | None = None
    adds: Mapping[str, Mapping[str, RatioEstimate]] | None = None
    predicted: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError(Document):
    """Errors of predicted ratios of a statistic.

    :param median: over the steps, as a share of the measured ratio; ``None`` without one.
    :param steps: how many were both predicted and replayed alone.
    :param final: the predicted ratio of all kept fixes together, for the traffic of the final replay.
    :param final_error: its error as a share of the measured one.
    :param at_pace: ``final`` with the batch times of that replay: its distance from the measured ratio is the
        simulation's error, the rest is the effect of the machine, or of a restart, on batch times.
    """

    median: float | None
    steps: int
    final: float | None = field(default=None, metadata=json_key(omit_empty=True))
    final_error: float | None = field(default=None, metadata=json_key(omit_empty=True))
    at_pace: float | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionErrors(Document):
    """Errors of predictions by statistic.

    :param simulation: error of the forecast of the measured baseline, a share; ``None`` without a forecast.
    :param judged: of the statistic that decides, if it is another one.
    """

    simulation: float | None
    mean: PredictionError | None = None
    p99: PredictionError | None = None
    judged: PredictionError | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Document):
    """A whole configuration that the search examined closely: one point of accuracy against latency.

    :param fixes: ids; ``settings`` what they change. None is the baseline.
    :param compute: measured time of typical batches over that of the baseline; ``None`` if not needed.
    :param accuracy: ``None`` if not measured: nothing in it changes answers, or it is slower.
    :param predicted: ratios over the first settings by statistic, on the whole traffic; empty without a forecast.
    :param replayed: ratios over the then current best, on the slow stretches; empty if it was not replayed.
    :param throughput_rps: of that replay.
    :param status: kept, foretold (predicted, not replayed), or why it is out: rejected, no_gain, not_effective,
        undecided.
    """

    fixes: tuple[str, ...]
    settings: Mapping[str, Any]
    status: str
    compute: float | None = None
    accuracy: float | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    replayed: Mapping[str, RatioEstimate] = field(default_factory=dict)
    throughput_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineVerdict(Document):
    """The baseline's diagnosis, in a word and in a sentence."""

    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization(Document):
    """The result of ``latfix optimize``: ``optimization.json``.

    :param verdict: improved, no_gain or inconclusive, by the final replay alone.
    :param before: the first settings, from the final interleaved replay; the baseline if there was none.
    :param after: the last settings, likewise; those of a plan that it refuted, too.
    :param proved: ids of the fixes that it replayed together. The plan is empty if it refuted them.
    :param ratio: after over before by statistic.
    :param rounds: of the final replay; 0 if there was none.
    :param judged: the key of ``ratio`` that the verdict is about; p99 in documents without it.
    :param changes: settings that the plan changes, each with its value before and in the plan; ``None`` in documents
        of earlier versions.
    :param answers: what answers are compared as, and whether the baseline's answers depend on the batch; ``None`` if
        that could not be checked.
    :param accuracy_kind: ``evaluate`` (the workload's own score), or ``agreement: `` and the kinds of outputs.
    :param accuracy_limit: the least that the workload's objective allows.
    :param diagnosis: of the baseline.
    :param steps: every considered fix, in order.
    :param ablation: what each kept fix contributed, and the remainder.
    :param candidates: whole configurations that were measured or replayed: accuracy against latency.
    :param floor_ms: by statistic (mean, p99), the predicted latency of the fastest accurate way to run the model,
        with an empty queue and batches of one; empty without a forecast.
    :param layers: results of measuring the layers, if quantizing all of them cost too much accuracy.
    :param records: folders of the runs that pages draw: ``baseline``, and the last ``before`` and ``after``.
    :param disturbed: how other processes disturbed a replay that the verdict is based on; or empty.
    :param plan: the file with the kept fixes, next to the document.
    """

    SCHEMA: ClassVar[str] = "latfix.optimization/1"

    workload: str
    device: str
    verdict: str
    objective: Mapping[str, Any]
    before: Summary
    after: Summary
    ratio: Mapping[str, RatioEstimate]
    rounds: int = 0
    proved: tuple[str, ...] = field(default=(), metadata=json_key(omit_empty=True))
    judged: str = field(default="p99", metadata=json_key(omit_empty=True))
    changes: Mapping[str, tuple[Any, Any]] | None = field(default=None, metadata=json_key(omit_empty=True))
    accuracy_kind: str = ""
    answers: AnswerCheck | None = field(default=None, metadata=json_key(omit_empty=True))
    accuracy_limit: float | None = None
    diagnosis: BaselineVerdict | None = None
    steps: tuple[TriedFix, ...] = ()
    ablation: tuple[Contribution, ...] = ()
    prediction_error: PredictionErrors | None = None
    candidates: tuple[Candidate, ...] = field(default=(), metadata=json_key(omit_empty=True))
    floor_ms: Mapping[str, float] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    layers: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[GateResult, ...] = ()
    plan: str = ""
    records: Mapping[str, str] = field(default_factory=dict, metadata=json_key(omit_empty=True))
    interrupted: bool = False
    disturbed: str = field(default="", metadata=json_key(omit_empty=True))
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, both arms' latencies, and the fixes that were replayed."""
        heading = f"{self.workload} on {self.device}: {self.verdict.replace('_', ' ')}, by {key_label(self.judged)}"
        notes = (*([f"disturbed: {self.disturbed}"] if self.disturbed else []), *self.notes)
        rows = latency_rows(self.before, self.after, self.ratio)
        change = html_table(heading, notes, ("", "before", "after", "ratio", "95 % interval"), rows)
        steps = [(step.fix, step.status, step.reason) for step in self.steps if step.status != "skipped"]
        return change + (html_table("Fixes", (), ("fix", "status", "reason"), steps) if steps else "")


#: Prefix of reasons about time, or about ``--trials``.
BUDGET = "budget: "


#: Prefix of reasons why a fix that gained in its replays is not in the plan.
SURPASSED = "it gained, but another configuration gained more: "
#: Part of reasons that an installation would remove.
_INSTALLATION = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """Skipped steps, each fix in one of three lists, in the order of the document.

    :param reasons: by fix, of all of them.
    :param for_time: applicable ones that the budget left no time for.
    :param to_install: those that need a package or a library which is not installed.
    :param inapplicable: those that have nothing to change here.
    """

    reasons: Mapping[str, str]
    for_time: tuple[str, ...]
    to_install: tuple[str, ...]
    inapplicable: tuple[str, ...]

    @property
    def words(self) -> str:
        """The number of each, and what to do about applicable ones."""
        groups = (
            (self.for_time, "no time left: a larger --budget tries them, or the same command with --resume"),
            (self.to_install, "not installed"),
            (self.inapplicable, "nothing to change here"),
        )
        return "; ".join(f"{len(fixes)} {why}" for fixes, why in groups if fixes)


def untried_of(steps: Sequence[TriedFix]) -> Untried:
    """The skipped ones among an optimization's steps."""
    reasons = {step.fix: step.reason for step in steps if step.status == "skipped"}
    for_time = tuple(fix for fix, reason in reasons.items() if reason.startswith(BUDGET))
    to_install = tuple(fix for fix, reason in reasons.items() if _INSTALLATION in reason and fix not in for_time)
    other = tuple(fix for fix in reasons if fix not in for_time and fix not in to_install)
    return Untried(reasons=reasons, for_time=for_time, to_install=to_install, inapplicable=other)
