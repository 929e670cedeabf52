"""A result for CI in one shape, from ``diagnosis.json``, ``optimization.json`` or a comparison's document.

Everything in it is as the document has it; each report escapes for its own format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfix.formatting import LATENCY_KEYS, finite, interval_bounds
from latfix.reports.comparison_rows import (
    Arm,
    Change,
    GateRow,
    Outcome,
    StepRow,
    items,
    mapping,
    read_arm,
    read_change,
    read_gates,
    read_steps,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLine:
    """A cause of the tail. Milliseconds a tail request; absent figures are ``None``."""

    cause: str
    tail_ms: float | None
    ci95_ms: tuple[float, float] | None
    share: float | None
    named: bool
    fixes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a command found, or why it found nothing.

    :param command: ``diagnose``, ``report``, ``optimize`` or ``compare``.
    :param run: figures of a single run; ``None`` where there are two.
    :param intervals_ms: 95 % intervals of the single run's latencies, by key.
    :param change: before and after; ``None`` for a single run.
    :param failure: why there is no result, or none to rely on; empty where there is.
    :param unjudged: gates that were asked for and could not be looked at.
    """

    command: str
    workload: str
    device: str = ""
    verdict: str = ""
    sentence: str = ""
    gates: tuple[GateRow, ...] = ()
    run: Arm | None = None
    intervals_ms: Mapping[str, tuple[float, float]] | None = None
    change: Change | None = None
    causes: tuple[CauseLine, ...] = ()
    steps: tuple[StepRow, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str = ""
    unjudged: tuple[str, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """How many gates came out so."""
        return sum(gate.outcome == outcome for gate in self.gates)

    def gate_words(self) -> str:
        """``gates: 2 passed, 1 failed``; empty without gates."""
        outcomes: tuple[Outcome, ...] = ("passed", "failed", "undecided")
        told = [f"{self.count(outcome)} {outcome}" for outcome in outcomes if self.count(outcome)]
        if self.unjudged:
            told.append(f"{len(self.unjudged)} not judged")
        return f"gates: {', '.join(told)}" if told else ""


def read_summary(
    document: Mapping[str, Any], *, command: str, workload: str = "", failure: str = "", unjudged: Sequence[str] = ()
) -> Summary:
    """The summary of a document.

    :param workload: its name where the document has none.
    """
    two = "before" in document and "after" in document
    latency = mapping(document.get("latency_ci95_ms"))
    intervals = {key: interval_bounds(latency.get(key)) for key in LATENCY_KEYS}
    change = read_change(document) if two else None
    sentence = change.sentence(arrow="→", sign="×") if change is not None else str(document.get("sentence") or "")
    return Summary(
        command=command,
        workload=str(document.get("workload") or workload),
        device=str(document.get("device") or ""),
        verdict=str(document.get("verdict") or ""),
        sentence=sentence,
        gates=read_gates(document),
        run=None if two else read_arm("run", document),
        intervals_ms=None if two else {key: bounds for key, bounds in intervals.items() if bounds is not None},
        change=change,
        causes=tuple(_cause(mapping(cause)) for cause in items(document.get("causes"))),
        steps=tuple(read_steps(document)),
        notes=tuple(str(note) for note in items(document.get("notes"))),
        failure=failure,
        unjudged=tuple(unjudged),
    )


def _cause(entry: Mapping[str, Any]) -> CauseLine:
    return CauseLine(
        cause=str(entry.get("cause") or ""),
        tail_ms=finite(entry.get("tail_ms")),
        ci95_ms=interval_bounds(entry.get("ci95_ms")),
        share=finite(entry.get("tail_share")),
        named=entry.get("named") is True,
        fixes=tuple(str(fix) for fix in items(entry.get("fixes"))),
    )
