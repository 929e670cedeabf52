"""What an optimization found: before and after, each fix that was considered, and what the kept ones gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from latfix.files.json_documents import Document, json_key
from latfix.gates.evaluate import GateResult
from latfix.results.answer_check import AnswerCheck
from latfix.results.comparison import Summary
from latfix.statistics.decision import RatioEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Document):
    """Ratios over what was there without the fix, by statistic.

    :param compute: the change of compute that they rest on.
    """

    ratio: Mapping[str, float]
    compute: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFix(Document):
    """One fix that was considered, and what became of it.

    :param status: kept, rejected, no_gain, not_effective, undecided or skipped.
    :param title: what the fix does, in a few words; ``risk`` what it may cost. Empty in older documents.
    :param ratio: with it over without it, on the screening windows; empty where it was not replayed.
    :param predicted_p99_ms: p99 of the windows as predicted; ``None`` where it was not replayed alone.
    :param p99_ms: p99 of the windows with it.
    :param predicted: what the forecast gave before the replay.
    :param adds: only in documents of earlier versions; those of now have it in :class:`Contribution`.
    :param accuracy: with it.
    :param scored: everything that measuring the accuracy gave, where it was measured.
    :param verified: the evidence that it took effect.
    :param together: ids of the fixes that were tried in the same replays; empty where it was tried alone.
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
    """What one kept fix, or a group replayed together, gave of the whole change.

    :param fixes: their ids; empty in the last entry, which is what the others leave over.
    :param before_ms: by statistic (mean, p99); with ``after_ms``, entries lead from the first settings' figure of
        the final replay to the last settings'.
    :param ratio: what it did when it was added.
    :param adds: by fix, what it gives beside all the others, by replays of the plan with it over without it; those
        that gave most, where the budget left time for that.
    :param predicted: ``ratio`` as it was predicted.
    """

    fixes: tuple[str, ...]
    before_ms: Mapping[str, float]
    after_ms: Mapping[str, float]
    ratio: Mapping[str, RatioEstimate] | None = None
    adds: Mapping[str, Mapping[str, RatioEstimate]] | None = None
    predicted: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError(Document):
    """How far predicted ratios of a statistic were from measured ones.

    :param median: over the steps, as a share of the measured ratio; ``None`` without one.
    :param steps: how many were both predicted and replayed alone.
    :param final: the predicted ratio of all kept fixes together, on the whole traffic.
    :param final_error: how far that was from the measured one, as a share.
    :param at_pace: ``final`` with batches as quick as they were in that replay: from this to the measured ratio is
        the simulation's error, the rest is what the machine, or a restart, made of the batches' time.
    """

    median: float | None
    steps: int
    final: float | None = field(default=None, metadata=json_key(omit_empty=True))
    final_error: float | None = field(default=None, metadata=json_key(omit_empty=True))
    at_pace: float | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionErrors(Document):
    """Errors of predictions by statistic.

    :param simulation: how far the forecast of what ran was from it, a share; ``None`` without a forecast.
    """

    simulation: float | None
    mean: PredictionError | None = None
    p99: PredictionError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Document):
    """A whole configuration that the search looked at closely: one point of accuracy against latency.

    :param fixes: ids; ``settings`` what they change. None is the service as it is.
    :param compute: the time of typical batches over what it was, as measured; ``None`` where that was not needed.
    :param accuracy: ``None`` where it was not measured: nothing in it changes answers, or it is slower.
    :param predicted: ratios over the first settings by statistic, on the whole traffic; empty without a forecast.
    :param replayed: ratios over what stood before it, on the slow stretches; empty where it was not replayed.
    :param throughput_rps: of that replay.
    :param status: kept, foretold (not replayed), or why it is out: rejected, no_gain, not_effective, undecided.
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
    """What the diagnosis of the baseline says, in a word and in a sentence."""

    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization(Document):
    """What ``latfix optimize`` found: ``optimization.json``.

    :param verdict: improved, no_gain or inconclusive, by the final replay alone.
    :param before: the first settings, from the final interleaved replay; the baseline where there was none.
    :param after: the last settings, likewise.
    :param ratio: after over before by statistic.
    :param rounds: of the final replay; 0 where there was none.
    :param judged: the key of ``ratio`` that the verdict is about; p99 in documents without it.
    :param changes: settings that the plan changes, each with its value before and in the plan; ``None`` in documents
        of earlier versions.
    :param answers: what answers are compared as, and whether the service as it is answers a request otherwise in a
        batch; ``None`` where there was nothing to see it by.
    :param accuracy_kind: ``evaluate`` (the workload's own score), or ``agreement: `` and the kinds of outputs.
    :param accuracy_limit: the least that the workload's objective allows.
    :param diagnosis: of the baseline.
    :param steps: every fix that was considered, in order.
    :param ablation: what each kept fix gave, and what is left over.
    :param candidates: whole configurations that were measured or replayed: accuracy against latency.
    :param floor_ms: by statistic (mean, p99), what the fastest way to run the model of those known to be accurate
        would take with an empty queue and nobody else in a batch, as foretold; empty without a forecast.
    :param layers: what measuring the layers gave, where quantizing all of them cost too much accuracy.
    :param records: folders of the runs that pages draw: ``baseline``, and the last ``before`` and ``after``.
    :param disturbed: how others on the machine disturbed a replay that the verdict rests on; or empty.
    :param plan: the file with the kept fixes, beside the document.
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


#: How reasons begin that speak of time, or of ``--trials``.
BUDGET = "budget: "


#: What the reasons hold that an installation would remove.
_INSTALLATION = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """Skipped steps, each fix in one of three lists, in the order of the document.

    :param reasons: by fix, of all of them.
    :param for_time: those that apply, but for which the budget left nothing.
    :param to_install: those that need a package or a library which is not there.
    :param inapplicable: those that have nothing to change here.
    """

    reasons: Mapping[str, str]
    for_time: tuple[str, ...]
    to_install: tuple[str, ...]
    inapplicable: tuple[str, ...]

    @property
    def words(self) -> str:
        """How many of each, and what to do about those that apply."""
        groups = (
            (self.for_time, "no time left: a larger --budget tries them, or the same command with --resume"),
            (self.to_install, "not installed"),
            (self.inapplicable, "nothing to change here"),
        )
        return "; ".join(f"{len(fixes)} {why}" for fixes, why in groups if fixes)


def untried_of(steps: Sequence[TriedFix]) -> Untried:
    """The skipped ones of an optimization's steps."""
    reasons = {step.fix: step.reason for step in steps if step.status == "skipped"}
    for_time = tuple(fix for fix, reason in reasons.items() if reason.startswith(BUDGET))
    to_install = tuple(fix for fix, reason in reasons.items() if _INSTALLATION in reason and fix not in for_time)
    other = tuple(fix for fix in reasons if fix not in for_time and fix not in to_install)
    return Untried(reasons=reasons, for_time=for_time, to_install=to_install, inapplicable=other)
