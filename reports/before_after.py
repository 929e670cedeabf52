"""Before and after in one shape, from ``optimization.json`` or from a comparison, for every reporter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfix.formatting import LATENCY_KEYS, finite, interval_bounds, key_label, ratio, significant
from latfix.results.comparison import Comparison, Summary

STATUSES: tuple[str, ...] = ("ok", "error", "timeout", "shed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """After divided by before. ``ci95`` is ``None`` where only the two figures themselves are known.

    :param decision: the wider bounds that verdicts look at (:mod:`decision`), 0 and infinite where an end is
        open; ``None`` in documents that have none.
    """

    value: float | None
    ci95: tuple[float, float] | None
    decision: tuple[float, float] | None = None

    @property
    def decisive(self) -> bool:
        """What decides excludes 1."""
        bounds = self.ci95 if self.decision is None else self.decision
        return self.ci95 is not None and bounds is not None and (bounds[1] < 1 or bounds[0] > 1)

    def words(self, sign: str = "x") -> str:
        """``x0.240 [0.210, 0.280]``, without the bracket where there is no interval."""
        text = ratio(self.value, sign)
        if self.ci95 is None:
            return text
        return f"{text} [{significant(self.ci95[0])}, {significant(self.ci95[1])}]"


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
        if self.before.accuracy is not None or self.after.accuracy is not None:
            limit = "" if self.accuracy_limit is None else f" (limit {significant(self.accuracy_limit)})"
            parts.append(
                f"accuracy {significant(self.before.accuracy)} {arrow} {significant(self.after.accuracy)}{limit}"
            )
        return "; ".join(parts)


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
    """An arm of ``optimization.json`` (``before`` or ``after``)."""
    entry = mapping(value)
    latency, requests = mapping(entry.get("latency_ms")), mapping(entry.get("requests"))
    return Arm(
        label=label,
        latency_ms={key: finite(latency.get(key)) for key in LATENCY_KEYS},
        throughput_rps=finite(entry.get("throughput_rps")),
        requests={name: int(finite(requests.get(name)) or 0) for name in STATUSES},
        accuracy=finite(entry.get("accuracy")),
    )


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


def pairing_words(comparison: Comparison) -> str:
    """How the two runs were compared, in a sentence."""
    rounds = f"{comparison.rounds} round{'' if comparison.rounds == 1 else 's'}"
    if not comparison.paired:
        return f"The runs are compared as wholes over {rounds}: they replayed different traffic."
    return f"Paired request by request on the same traffic over {rounds}."


def _summary_arm(label: str, summary: Summary) -> Arm:
    return Arm(
        label=label,
        latency_ms={key: finite(summary.latency_ms.get(key)) for key in LATENCY_KEYS},
        throughput_rps=finite(summary.throughput_rps),
        requests={name: int(summary.requests.get(name, 0)) for name in STATUSES},
        accuracy=finite(summary.accuracy),
    )


def prediction_words(document: Mapping[str, Any]) -> str:
    """How good the predictions were, in a sentence or two; empty where there were none."""
    errors, ratios = mapping(document.get("prediction_error")), mapping(document.get("ratio"))
    told, together = [], []
    for key in ("p99", "mean"):
        entry = mapping(errors.get(key))
        median = finite(entry.get("median"))
        if median is not None:
            told.append(f"{key} off by {100 * median:.2g} % in the median of {int(finite(entry.get('steps')) or 0)}")
        final, measured = finite(entry.get("final")), read_ratio(ratios.get(key))
        if final is not None and measured.value is not None:
            together.append(f"{key} {ratio(final)} foretold, {ratio(measured.value)} measured")
    words = [
        f"Predictions against replays of the windows: {'; '.join(told)}." if told else "",
        f"All kept fixes together, on the whole traffic: {'; '.join(together)}." if together else "",
    ]
    return " ".join(filter(None, words))
