"""Before and after, fix by fix, and gates: the rows that every report of a comparison or an optimization shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from latfix.formatting import (
    LATENCY_KEYS,
    count,
    finite,
    interval,
    interval_bounds,
    key_label,
    rate,
    ratio,
    significant,
)
from latfix.reports.vocabulary import STEP_STATUS, Severity, verdict_words
from latfix.results.comparison import Comparison, Summary

STATUSES: tuple[str, ...] = ("ok", "error", "timeout", "shed")

Outcome = Literal["passed", "failed", "undecided"]
OUTCOME_WORDS: dict[Outcome, tuple[str, Severity]] = {
    "passed": ("passed", "good"),
    "failed": ("failed", "bad"),
    "undecided": ("cannot tell", "warn"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """After divided by before. ``ci95`` is ``None`` where only the two figures themselves are known.

    :param decision: the wider bounds that verdicts use (:mod:`latfix.statistics.decision`), 0 and infinite where
        an end is open; ``None`` in documents that have none.
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
    def tone(self) -> Severity | None:
        """Good or bad where the data decide, else ``None``."""
        if self.value is None or not self.decisive:
            return None
        return "good" if self.value < 1 else "bad"

    def words(self, sign: str = "x") -> str:
        """``x0.240 [0.210, 0.280]``, without the bracket where there is no interval."""
        text = ratio(self.value, sign)
        return text if self.ci95 is None else f"{text} {interval(self.ci95)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one side of a comparison showed. Absent figures are ``None``.

    :param latency_ms: by key of :data:`latfix.formatting.LATENCY_KEYS`.
    :param requests: how many ended in each status.
    """

    label: str
    latency_ms: Mapping[str, float | None]
    throughput_rps: float | None
    requests: Mapping[str, int]
    accuracy: float | None

    @property
    def failed(self) -> int:
        """Requests that did not end ok."""
        return sum(number for name, number in self.requests.items() if name != "ok")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One figure of both arms, as texts.

    :param note: the ratio's interval, or the limit of the accuracy.
    :param judged: true for the figure that the verdict is about.
    :param worse: true where more requests failed than before.
    """

    name: str
    before: str
    after: str
    ratio: Ratio | None = None
    note: str = ""
    judged: bool = False
    worse: bool = False

    def ratio_words(self, sign: str = "x") -> str:
        """The ratio alone; empty where there is none to take."""
        return "" if self.ratio is None else ratio(self.ratio.value, sign)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Two arms and the ratio of their latency figures by key.

    :param accuracy_limit: the lowest score that ``after`` may have.
    :param judged: the key that the verdict is about.
    """

    before: Arm
    after: Arm
    ratios: Mapping[str, Ratio]
    accuracy_limit: float | None = None
    judged: str = "p99"

    @property
    def scored(self) -> bool:
        """True if an accuracy is known."""
        return self.before.accuracy is not None or self.after.accuracy is not None

    @property
    def limit_words(self) -> str:
        """``limit 0.902``; empty without a limit."""
        return "" if self.accuracy_limit is None else f"limit {significant(self.accuracy_limit)}"

    def ratio(self, key: str) -> Ratio:
        """The ratio with its interval where it was estimated, else the quotient of the two figures."""
        if key in self.ratios:
            return self.ratios[key]
        before, after = self.before.latency_ms.get(key), self.after.latency_ms.get(key)
        quotient = after / before if before and after is not None and before > 0 else None
        return Ratio(value=finite(quotient), ci95=None)

    def sentence(self, *, arrow: str = "->", sign: str = "x") -> str:
        """``p99 412 -> 98.0 ms (x0.240 [0.210, 0.280]); mean …; accuracy 0.912 -> 0.911 (limit 0.902)``."""
        parts = []
        for key in dict.fromkeys((self.judged, "mean")):
            before, after = self.before.latency_ms.get(key), self.after.latency_ms.get(key)
            parts.append(
                f"{key_label(key)} {significant(before)} {arrow} {significant(after)} ms "
                f"({self.ratio(key).words(sign)})"
            )
        if self.scored:
            limit = f" ({self.limit_words})" if self.limit_words else ""
            parts.append(
                f"accuracy {significant(self.before.accuracy)} {arrow} {significant(self.after.accuracy)}{limit}"
            )
        return "; ".join(parts)

    def verdict_sentence(self, verdict: str, *, arrow: str = "->", sign: str = "x") -> str:
        """The verdict in words, and :meth:`sentence`."""
        return f"{verdict_words(verdict)}: {self.sentence(arrow=arrow, sign=sign)}"

    def rows(self) -> list[ChangeRow]:
        """Latencies, throughput, requests by status and, where it is known, the accuracy."""
        before, after = self.before, self.after
        rows = [
            ChangeRow(
                name=f"{key_label(key)}, ms",
                before=significant(before.latency_ms.get(key)),
                after=significant(after.latency_ms.get(key)),
                ratio=self.ratio(key),
                note=interval(self.ratio(key).ci95),
                judged=key == self.judged,
            )
            for key in LATENCY_KEYS
        ]
        rows.append(
            ChangeRow(name="throughput", before=rate(before.throughput_rps), after=rate(after.throughput_rps))
        )
        for name in STATUSES:
            was, now = before.requests.get(name, 0), after.requests.get(name, 0)
            worse = name != "ok" and now > was
            rows.append(ChangeRow(name=f"requests {name}", before=count(was), after=count(now), worse=worse))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A fix that was considered.

    :param words: its status in words, with ``severity``.
    :param together: true where it was tried in the same replays as the step before, for the same reason.
    :param adds: what it gives beside all the others.
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
    adds: Ratio
    p99_ms: float | None
    predicted_p99_ms: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """One gate and what became of it.

    :param reason: one sentence with the figures; says what would decide an undecided one.
    """

    gate: str
    outcome: Outcome
    reason: str = ""
    value: float | None = None

    @property
    def words(self) -> str:
        """``passed``, ``failed`` or ``cannot tell``."""
        return OUTCOME_WORDS[self.outcome][0]

    @property
    def severity(self) -> Severity:
        """How alarming the outcome is."""
        return OUTCOME_WORDS[self.outcome][1]


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object of a document, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """The value where it is a list of a document, else an empty one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()


def read_ratio(value: object) -> Ratio:
    """A ``{"value": …, "ci95": [lo, hi]}`` entry; empty entries give an empty ratio."""
    entry = mapping(value)
    ends = items(entry.get("decision"))
    decision = None
    if len(ends) == 2:
        least, most = (finite(end) for end in ends)
        decision = (0.0 if least is None else least, math.inf if most is None else most)
    return Ratio(value=finite(entry.get("value")), ci95=interval_bounds(entry.get("ci95")), decision=decision)


def read_arm(label: str, value: object) -> Arm:
    """An arm of ``optimization.json`` (``before`` or ``after``), or a single run's figures."""
    entry = mapping(value)
    return _arm(label, mapping(entry.get("latency_ms")), mapping(entry.get("requests")), entry)


def read_change(document: Mapping[str, Any]) -> Change:
    """The before and after of ``optimization.json``."""
    ratios = {str(key): read_ratio(value) for key, value in mapping(document.get("ratio")).items()}
    return Change(
        before=read_arm("before", document.get("before")),
        after=read_arm("after", document.get("after")),
        ratios={key: value for key, value in ratios.items() if value.value is not None},
        accuracy_limit=finite(document.get("accuracy_limit")),
    )


def comparison_change(comparison: Comparison) -> Change:
    """The before and after of a comparison of two runs, which are called base and new."""
    ratios = {
        key: Ratio(value=finite(entry.value), ci95=interval_bounds((entry.lo, entry.hi)), decision=entry.decision)
        for key, entry in comparison.ratio.items()
    }
    return Change(
        before=_summary_arm("base", comparison.before),
        after=_summary_arm("new", comparison.after),
        ratios={key: value for key, value in ratios.items() if value.value is not None},
        judged=comparison.judged,
    )


def _summary_arm(label: str, summary: Summary) -> Arm:
    figures = {"throughput_rps": summary.throughput_rps, "accuracy": summary.accuracy}
    return _arm(label, summary.latency_ms, summary.requests, figures)


def _arm(label: str, latency: Mapping[str, Any], requests: Mapping[str, Any], figures: Mapping[str, Any]) -> Arm:
    return Arm(
        label=label,
        latency_ms={key: finite(latency.get(key)) for key in LATENCY_KEYS},
        throughput_rps=finite(figures.get("throughput_rps")),
        requests={name: int(finite(requests.get(name)) or 0) for name in STATUSES},
        accuracy=finite(figures.get("accuracy")),
    )


def pairing_words(comparison: Comparison) -> str:
    """How the two runs were compared, in a sentence."""
    rounds = f"{comparison.rounds} round{'' if comparison.rounds == 1 else 's'}"
    if not comparison.paired:
        return f"The runs are compared as wholes over {rounds}: they replayed different traffic."
    return f"Paired request by request on the same traffic over {rounds}."


def read_steps(document: Mapping[str, Any]) -> list[StepRow]:
    """``steps`` of ``optimization.json``, in order."""
    rows = []
    last: tuple[object, object] = (None, None)
    for entry in map(mapping, items(document.get("steps"))):
        shared = (entry.get("together"), entry.get("reason"))
        rows.append(_step(entry, together=bool(shared[0]) and shared == last))
        if shared[0]:
            last = shared
    return rows


def _step(entry: Mapping[str, Any], *, together: bool) -> StepRow:
    status = str(entry.get("status") or "")
    words, severity = STEP_STATUS.get(status, (status, "warn"))
    ratios = mapping(entry.get("ratio"))
    return StepRow(
        fix=str(entry.get("fix") or ""),
        status=status,
        words=words,
        severity=severity,
        reason=str(entry.get("reason") or ""),
        verified=str(entry.get("verified") or ""),
        together=together,
        mean=read_ratio(ratios.get("mean")),
        p99=read_ratio(ratios.get("p99")),
        adds=read_ratio(mapping(entry.get("adds")).get("p99")),
        p99_ms=finite(entry.get("p99_ms")),
        predicted_p99_ms=finite(entry.get("predicted_p99_ms")),
        accuracy=finite(entry.get("accuracy")),
    )


def read_gates(document: Mapping[str, Any]) -> tuple[GateRow, ...]:
    """``gates`` of a document."""
    return tuple(read_gate(gate) for gate in items(document.get("gates")))


def read_gate(value: object) -> GateRow:
    """An entry of ``gates``; one whose ``passed`` is no boolean is undecided."""
    entry = mapping(value)
    passed = entry.get("passed")
    outcome: Outcome = "undecided"
    if isinstance(passed, bool):
        outcome = "passed" if passed else "failed"
    return GateRow(
        gate=str(entry.get("gate") or ""),
        outcome=outcome,
        reason=str(entry.get("reason") or ""),
        value=finite(entry.get("value")),
    )


REST = "interaction, and the rest of the traffic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one fix, or a group replayed together, did to a statistic.

    :param ratio: when it was added; ``None`` for what no fix accounts for.
    :param adds: beside all the others at the end, by fix.
    :param predicted: what ``ratio`` was predicted to be.
    """

    name: str
    before_ms: float
    after_ms: float
    ratio: Ratio | None
    adds: Mapping[str, Ratio]
    predicted: float | None

    def cells(self) -> list[str]:
        """Ratio when added, predicted, and beside the others."""
        return [
            "" if self.ratio is None else self.ratio.words("×"),
            "" if self.predicted is None else ratio(self.predicted, "×"),
            "; ".join(
                each.words("×") if len(self.adds) == 1 else f"{fix} {each.words('×')}"
                for fix, each in self.adds.items()
            ),
        ]


def read_shares(document: Mapping[str, Any], key: str) -> list[Share]:
    """The entries of ``ablation`` in ``optimization.json`` for a statistic; damaged ones are left out."""
    shares = []
    for entry in map(mapping, items(document.get("ablation"))):
        before, after = (finite(mapping(entry.get(side)).get(key)) for side in ("before_ms", "after_ms"))
        if before is None or after is None:
            continue
        found = mapping(entry.get("ratio")).get(key)
        shares.append(
            Share(
                name=" + ".join(str(fix) for fix in items(entry.get("fixes"))) or REST,
                before_ms=before,
                after_ms=after,
                ratio=None if found is None else read_ratio(found),
                adds={fix: read_ratio(mapping(each).get(key)) for fix, each in mapping(entry.get("adds")).items()},
                predicted=finite(mapping(entry.get("predicted")).get(key)),
            )
        )
    return shares


def prediction_words(document: Mapping[str, Any]) -> str:
    """How good the predictions were, in a sentence or two; empty where there were none."""
    errors, ratios = mapping(document.get("prediction_error")), mapping(document.get("ratio"))
    each, together = [], []
    for key in ("p99", "mean"):
        entry = mapping(errors.get(key))
        median = finite(entry.get("median"))
        if median is not None:
            each.append(f"{key} off by {100 * median:.2g} % in the median of {int(finite(entry.get('steps')) or 0)}")
        final, measured = finite(entry.get("final")), read_ratio(ratios.get(key))
        if final is not None and measured.value is not None:
            together.append(f"{key} {ratio(final)} foretold, {ratio(measured.value)} measured")
    words = [
        f"Predictions against replays of the windows: {'; '.join(each)}." if each else "",
        f"All kept fixes together, on the whole traffic: {'; '.join(together)}." if together else "",
    ]
    return " ".join(filter(None, words))
