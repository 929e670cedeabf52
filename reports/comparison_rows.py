"""Rows of comparisons and optimizations for all reports: before and after, fix by fix, and gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from latfix.formatting import (
    LATENCY_KEYS,
    LOST,
    NONE,
    count,
    counted,
    finite,
    interval,
    interval_bounds,
    key_label,
    latency_words,
    mebibytes,
    percent,
    rate,
    ratio,
    seconds,
    significant,
)
from latfix.gates.evaluate import MOST_LOST, GateResult
from latfix.lower_bound import AtLeast
from latfix.reports.vocabulary import STEP_STATUS, Severity, change_severity, verdict_words
from latfix.results.comparison import Comparison, Summary, Trial, TriedIdea
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import SURPASSED, Contribution, Optimization, TriedFix
from latfix.stages import STATUS_NAMES
from latfix.statistics.decision import RatioEstimate

Outcome = Literal["passed", "failed", "undecided"]
_OUTCOME_SEVERITY: dict[Outcome, Severity] = {"passed": "good", "failed": "bad", "undecided": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """After divided by before. ``ci95`` is ``None`` if only the two figures are known.

    :param decision: the wider bounds that verdicts use (:mod:`latfix.statistics.decision`), 0 or infinite for an
        open end; ``None`` in documents without them.
    """

    value: float | None
    ci95: tuple[float, float] | None
    decision: tuple[float, float] | None = None

    @property
    def decisive(self) -> bool:
        """True if the bounds that decide exclude 1."""
        bounds = self.ci95 if self.decision is None else self.decision
        return self.ci95 is not None and bounds is not None and (bounds[1] < 1 or bounds[0] > 1)

    @property
    def doubtful(self) -> bool:
        """True if the 95 % interval excludes 1 but the bounds that decide do not: restarts may differ as much."""
        return self.ci95 is not None and not self.ci95[0] <= 1 <= self.ci95[1] and not self.decisive

    @property
    def tone(self) -> Severity | None:
        """Good or bad if the ratio is decisive, else ``None``."""
        if self.value is None or not self.decisive:
            return None
        return "good" if self.value < 1 else "bad"

    def words(self) -> str:
        """``×0.240 [0.210, 0.280]``; without an interval ``×0.240``."""
        text = ratio(self.value, "×")
        return text if self.ci95 is None else f"{text} {interval(self.ci95)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The figures of one side of a comparison, ``None`` if unknown.

    :param latency_ms: by key of :data:`latfix.formatting.LATENCY_KEYS`.
    :param requests: number of requests by status.
    :param latency_ci95_ms: their 95 % intervals, if known.
    :param memory_bytes: peak resident memory.
    :param start_s: seconds to load and warm up.
    """

    label: str
    latency_ms: Mapping[str, float | None]
    throughput_rps: float | None
    requests: Mapping[str, int]
    accuracy: float | None
    memory_bytes: float | None = None
    device_memory_bytes: float | None = None
    start_s: float | None = None
    latency_ci95_ms: Mapping[str, object] = field(default_factory=dict)

    def latency_words(self) -> dict[str, str]:
        """The latencies by key."""
        return latency_words(self.latency_ms)

    @property
    def failed(self) -> int:
        """Requests that did not end ok."""
        return sum(number for name, number in self.requests.items() if name != "ok")

    @property
    def success(self) -> float:
        """Share of the requests that ended ok."""
        return self.requests.get("ok", 0) / max(sum(self.requests.values()), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One figure of both arms, as text.

    :param note: the ratio's interval, or the accuracy limit.
    :param judged: true for the figure that the verdict is about.
    :param worse: true if more requests failed than before.
    """

    name: str
    before: str
    after: str
    ratio: Ratio | None = None
    note: str = ""
    judged: bool = False
    worse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Two arms and the ratios of their latencies by key.

    :param accuracy_limit: the lowest accuracy allowed for ``after``.
    :param judged: the key that the verdict is about.
    """

    before: Arm
    after: Arm
    ratios: Mapping[str, Ratio]
    accuracy_limit: float | None = None
    judged: str = "p99"

    @property
    def survivors(self) -> str:
        """Of which requests the means are, if not of about the same share on both sides; else empty."""
        before, after = self.before.success, self.after.success
        if abs(before - after) <= MOST_LOST:
            return ""
        return f"of requests that ended ok: {percent(before)} before, {percent(after)} after"

    @property
    def scored(self) -> bool:
        """True if an accuracy is known."""
        return self.before.accuracy is not None or self.after.accuracy is not None

    @property
    def limit_words(self) -> str:
        """``limit 0.902``; empty without a limit."""
        return "" if self.accuracy_limit is None else f"limit {significant(self.accuracy_limit)}"

    def ratio(self, key: str) -> Ratio:
        """The estimated ratio with its interval, else the quotient of the two figures."""
        if key in self.ratios:
            return self.ratios[key]
        before, after = self.before.latency_ms.get(key), self.after.latency_ms.get(key)
        known = finite(before) and finite(after) is not None
        return Ratio(value=finite(after / before) if known and before and after else None, ci95=None)

    def moved(self, key: str) -> str:
        """``412 → 98.0 ms``."""
        before, after = (arm.latency_words()[key] for arm in (self.before, self.after))
        return f"{before} → {after}" + ("" if after in (NONE, LOST) else " ms")

    def sentence(self) -> str:
        """``p99 412 → 98.0 ms (×0.240 [0.210, 0.280]); mean …; accuracy 0.912 → 0.911 (limit 0.902)``."""
        parts = []
        for key in dict.fromkeys((self.judged, "mean")):
            step = self.ratio(key)
            size = f" ({step.words()})" if step.value is not None else ""
            parts.append(f"{key_label(key)} {self.moved(key)}{size}")
        if self.scored:
            limit = f" ({self.limit_words})" if self.limit_words else ""
            parts.append(f"accuracy {significant(self.before.accuracy)} → {significant(self.after.accuracy)}{limit}")
        return "; ".join(parts)

    def rows(self) -> list[ChangeRow]:
        """Latencies, throughput, costs, requests by status and, if known, the accuracy."""
        before, after = self.before, self.after
        was, now = before.latency_words(), after.latency_words()
        rows = [
            ChangeRow(
                name=f"{key_label(key)}, ms",
                before=was[key],
                after=now[key],
                ratio=self.ratio(key),
                note=interval(self.ratio(key).ci95),
                judged=key == self.judged,
            )
            for key in LATENCY_KEYS
        ]
        rows.append(
            ChangeRow(name="throughput", before=rate(before.throughput_rps), after=rate(after.throughput_rps))
        )
        rows += self._cost_rows()
        for name in STATUS_NAMES:
            first, then = before.requests.get(name, 0), after.requests.get(name, 0)
            worse = name != "ok" and then > first
            if not first and not then and name != "ok":
                continue
            rows.append(ChangeRow(name=f"requests {name}", before=count(first), after=count(then), worse=worse))
        if self.scored:
            rows.append(
                ChangeRow(
                    name="accuracy",
                    before=significant(before.accuracy),
                    after=significant(after.accuracy),
                    note=self.limit_words,
                )
            )
        return rows

    def _cost_rows(self) -> list[ChangeRow]:
        """Memory and start-up time, if known."""
        before, after = self.before, self.after
        pairs: list[tuple[str, float | None, float | None, Callable[[object], str]]] = [
            ("peak memory", before.memory_bytes, after.memory_bytes, mebibytes),
            ("device memory", before.device_memory_bytes, after.device_memory_bytes, mebibytes),
            ("start-up", before.start_s, after.start_s, seconds),
        ]
        return [
            ChangeRow(name=name, before=words(was), after=words(now))
            for name, was, now, words in pairs
            if was is not None or now is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A fix that was considered.

    :param words: its status in words; ``severity`` its color.
    :param together: true if it shares its replays and reason with the step before.
    """

    fix: str
    status: str
    words: str
    severity: Severity
    reason: str
    verified: str
    together: bool
    mean: Ratio
    p99: Ratio
    p99_ms: float | None
    predicted_p99_ms: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """One gate and its outcome.

    :param reason: one sentence with the figures and, if undecided, what would decide it.
    :param value: the figure with its unit; empty if unknown.
    """

    gate: str
    outcome: Outcome
    reason: str = ""
    value: str = ""

    @property
    def severity(self) -> Severity:
        """The color of the outcome."""
        return _OUTCOME_SEVERITY[self.outcome]


def ratio_of(estimate: RatioEstimate | None) -> Ratio:
    """An estimate for display; empty for ``None`` and for figures that are not finite."""
    if estimate is None or estimate.lost:
        return Ratio(value=None, ci95=None)
    return Ratio(
        value=finite(estimate.value), ci95=interval_bounds((estimate.lo, estimate.hi)), decision=estimate.decision
    )


def optimization_change(found: Optimization) -> Change:
    """The before and after of an optimization."""
    limit, kept = finite(found.accuracy_limit), any(step.status == "kept" for step in found.steps)
    labels = "before", "after" if kept or not found.proved else "tried"
    return _change(labels, found, accuracy_limit=limit, judged=found.judged)


def comparison_change(found: Comparison) -> Change:
    """The two runs of a comparison, labeled base and new."""
    return _change(("base", "new"), found, judged=found.judged)


def _change(
    labels: tuple[str, str],
    found: Comparison | Optimization,
    *,
    accuracy_limit: float | None = None,
    judged: str = "p99",
) -> Change:
    ratios = {key: ratio_of(estimate) for key, estimate in found.ratio.items()}
    return Change(
        before=arm_of(labels[0], found.before),
        after=arm_of(labels[1], found.after),
        ratios={key: value for key, value in ratios.items() if value.value is not None},
        accuracy_limit=accuracy_limit,
        judged=judged,
    )


def arm_of(label: str, figures: Summary | Diagnosis) -> Arm:
    """One arm of a change, or a single run."""
    return Arm(
        label=label,
        latency_ms={key: _known(figures.latency_ms.get(key)) for key in LATENCY_KEYS},
        latency_ci95_ms=figures.latency_ci95_ms,
        throughput_rps=finite(figures.throughput_rps),
        requests={
            name: figures.requests.get(name) or 0
            for name in STATUS_NAMES
            if name in figures.requests or name != "unfinished"
        },
        **{name: finite(getattr(figures, name, None)) for name in _COSTS},  # a Diagnosis has none of them
    )


_COSTS = ("accuracy", "memory_bytes", "device_memory_bytes", "start_s")


def _known(figure: float | None) -> float | None:
    """The figure if it can be shown: a finite number or a lower bound."""
    return figure if isinstance(figure, AtLeast) else finite(figure)


def result_words(found: Comparison) -> tuple[str, Severity]:
    """The result and its color: of the gates if one did not pass or the verdict is undecided, else the verdict."""
    outcomes = [gate.passed for gate in found.gates]
    if False in outcomes:
        return "gate failed", "bad"
    if None in outcomes:
        return "undecided", "warn"
    if outcomes and found.verdict == "undecided":
        return "gates passed", "good"
    return verdict_words(found.verdict), change_severity(found.verdict)


def pairing_words(comparison: Comparison) -> str:
    """One sentence on how the two runs were compared."""
    rounds = counted(comparison.rounds, "round")
    if not comparison.paired:
        return f"Compared by their distributions over {rounds}: the runs replayed different traffic."
    return f"Compared request by request on the same traffic over {rounds}."


def step_rows(steps: Sequence[TriedFix]) -> list[StepRow]:
    """The considered fixes, in order."""
    rows = []
    last: tuple[tuple[str, ...], str] = ((), "")
    for step in steps:
        shared = (step.together, step.reason)
        words, severity = STEP_STATUS.get(step.status, (step.status, "warn"))
        rows.append(
            StepRow(
                fix=step.fix,
                status=step.status,
                words="surpassed" if step.reason.startswith(SURPASSED) else words,
                severity=severity,
                reason=step.reason,
                verified=step.verified,
                together=bool(step.together) and shared == last,
                mean=ratio_of(step.ratio.get("mean")),
                p99=ratio_of(step.ratio.get("p99")),
                p99_ms=finite(step.p99_ms),
                predicted_p99_ms=finite(step.predicted_p99_ms),
                accuracy=finite(step.accuracy),
            )
        )
        if step.together:
            last = shared
    return rows


def gate_rows(gates: Sequence[GateResult]) -> tuple[GateRow, ...]:
    """Gates with their outcomes."""
    return tuple(
        GateRow(
            gate=gate.gate.text,
            outcome=outcome_of(gate.passed),
            reason=gate.reason,
            value="" if gate.value is None else gate.gate.show(gate.value),
        )
        for gate in gates
    )


def outcome_of(passed: bool | None) -> Outcome:
    """``None`` is undecided."""
    return "undecided" if passed is None else "passed" if passed else "failed"


REST = "interaction of fixes, rest of the traffic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The effect of one fix, or of those that the forecast cannot divide, on a statistic.

    :param ratio: its share of the ratio of all; ``None`` for what is not divided.
    :param adds: by fix, its ratio on top of all other kept fixes.
    :param predicted: the predicted ``ratio``.
    """

    name: str
    before_ms: float
    after_ms: float
    ratio: Ratio | None
    adds: Mapping[str, Ratio]
    predicted: float | None

    def cells(self) -> list[str]:
        """Its share of the ratio, predicted ratio, and ratio on top of the others."""
        return [
            "" if self.ratio is None else self.ratio.words(),
            "" if self.predicted is None else ratio(self.predicted, "×"),
            "; ".join(
                each.words() if len(self.adds) == 1 else f"{fix} {each.words()}" for fix, each in self.adds.items()
            ),
        ]


def shares_of(contributions: Sequence[Contribution], key: str) -> list[Share]:
    """The effect of each kept fix on a statistic, and the remainder."""
    return [
        Share(
            name=" + ".join(entry.fixes) or REST,
            before_ms=entry.before_ms[key],
            after_ms=entry.after_ms[key],
            ratio=None if entry.ratio is None else ratio_of(entry.ratio.get(key)),
            adds={fix: ratio_of(each.get(key)) for fix, each in (entry.adds or {}).items()},
            predicted=finite((entry.predicted or {}).get(key)),
        )
        for entry in contributions
    ]


def prediction_words(found: Optimization) -> str:
    """One or two sentences on the prediction errors; empty without predictions."""
    errors = found.prediction_error
    each, together = [], []
    by_key = () if errors is None else ((found.judged, errors.judged), ("p99", errors.p99), ("mean", errors.mean))
    for key, error in by_key:
        if error is None:
            continue
        if finite(error.median) is not None:
            each.append(f"{key} by {percent(error.median)} (median of {error.steps})")
        measured = ratio_of(found.ratio.get(key)).value
        if finite(error.final) is not None and measured is not None:
            known = finite(error.at_pace)
            paced = "" if known is None else f" ({ratio(known)} with the measured batch times)"
            together.append(f"{key} predicted {ratio(error.final)}{paced}, measured {ratio(measured)}")
    words = [
        f"Predictions of replayed configurations were off: {'; '.join(each)}." if each else "",
        f"All kept fixes in the final replay: {'; '.join(together)}." if together else "",
    ]
    return " ".join(filter(None, words))


def idea_words(idea: TriedIdea) -> tuple[str, Severity]:
    """The verdict on an idea of a trial, and its color."""
    if idea.failure:
        return "failed", "bad"
    if idea.comparison is None:
        return "not replayed", "calm"
    return verdict_words(idea.comparison.verdict), change_severity(idea.comparison.verdict)


def trial_keys(found: Trial) -> list[str]:
    """Keys of the latencies in the table of a trial, the judged one first."""
    return list(dict.fromkeys((found.judged, "p50", "p99", "mean")))


def idea_ratios(found: Trial, idea: TriedIdea) -> list[tuple[str, str]]:
    """The ratio of each latency over the unmodified workload, and its interval."""
    known = {} if idea.comparison is None else idea.comparison.ratio
    steps = [ratio_of(known.get(key)) for key in trial_keys(found)]
    return [(ratio(step.value, "×"), "" if step.ci95 is None else interval(step.ci95)) for step in steps]


def idea_costs(found: Trial, arm: TriedIdea) -> dict[str, str]:
    """Memory, memory of devices if any arm has it, and start-up time, by column."""
    arms = (found.base, *found.ideas)
    device = {"GPU": mebibytes(arm.device_memory_bytes or None)} if any(a.device_memory_bytes for a in arms) else {}
    return {"memory": mebibytes(arm.memory_bytes or None), **device, "start": seconds(arm.start_s)}


def idea_remarks(idea: TriedIdea) -> list[str]:
    """Why an idea failed, exceeds the accuracy limit, or has no verdict."""
    lines = [idea.failure] if idea.failure else []
    lines += [idea.accuracy_reason] if idea.accuracy_reason and not idea.accurate else []
    if idea.comparison is not None:
        lines += [note for note in idea.comparison.notes if not note.startswith("settings: ")]
    return lines


def trial_notes(found: Trial) -> Iterator[str]:
    """Warnings on a trial."""
    if found.interrupted:
        yield "Interrupted: only complete rounds are shown."
    if found.failure:
        yield f"The unmodified workload failed, so the trial was ended: {found.failure}"
    yield from found.notes


def trial_method(found: Trial) -> str:
    """How the ideas of a trial were compared."""
    stretch = "the whole traffic"
    if not found.whole:
        stretch = f"seconds {significant(found.from_s)} to {significant(found.to_s)} of the traffic"
    rounds = f"{counted(found.rounds, 'round')} of {stretch} ({counted(found.requests, 'request')})"
    return (
        f"{rounds}, alternating, each in a fresh process. Ratios over the unmodified workload with 95 % intervals; "
        f"the verdict is by {key_label(found.judged)}."
    )
