"""One summary type for CI, from the document of a diagnosis, an optimization or a comparison.

Its texts are unescaped; each report escapes for its own format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from latfix.reports.answer import Answer, comparison_answer, diagnosis_answer, optimization_answer
from latfix.reports.comparison_rows import (
    Arm,
    Change,
    GateRow,
    Outcome,
    StepRow,
    arm_of,
    comparison_change,
    gate_rows,
    optimization_change,
    result_words,
    step_rows,
)
from latfix.reports.plan_rows import plan_is_empty
from latfix.results.comparison import Comparison
from latfix.results.diagnosis import CauseSummary, Diagnosis
from latfix.results.optimization import Optimization


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of a command, or why there is none.

    :param command: ``diagnose``, ``report``, ``optimize``, ``compare`` or ``gate``.
    :param title: the verdict, or what its gates make of it; empty for the verdict.
    :param run: figures of a single run; ``None`` for two.
    :param change: before and after; ``None`` for a single run.
    :param failure: why there is no reliable result; empty if there is one.
    :param answer: the answer block; ``None`` for results without one.
    :param unjudged: requested gates that could not be evaluated.
    """

    command: str
    workload: str
    device: str = ""
    verdict: str = ""
    title: str = ""
    sentence: str = ""
    gates: tuple[GateRow, ...] = ()
    run: Arm | None = None
    change: Change | None = None
    causes: tuple[CauseSummary, ...] = ()
    steps: tuple[StepRow, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str = ""
    unjudged: tuple[str, ...] = ()
    answer: Answer | None = None

    def count(self, outcome: Outcome) -> int:
        """The number of gates with this outcome."""
        return sum(gate.outcome == outcome for gate in self.gates)

    def findings(self) -> Iterator[tuple[Outcome, GateRow]]:
        """Gates that did not pass, the failed ones first."""
        outcomes: tuple[Outcome, ...] = ("failed", "undecided")
        return ((outcome, gate) for outcome in outcomes for gate in self.gates if gate.outcome == outcome)

    def gate_words(self) -> str:
        """``gates: 2 passed, 1 failed``; empty without gates."""
        outcomes: tuple[Outcome, ...] = ("passed", "failed", "undecided")
        counts = [f"{self.count(outcome)} {outcome}" for outcome in outcomes if self.count(outcome)]
        if self.unjudged:
            counts.append(f"{len(self.unjudged)} not evaluated")
        return f"gates: {', '.join(counts)}" if counts else ""


def read_summary(
    document: Mapping[str, Any],
    *,
    command: str,
    workload: str = "",
    failure: str = "",
    typed: str | None = None,
    plan: str = "",
) -> Summary:
    """The summary of a document.

    :param document: of a diagnosis, a comparison, or an optimization, which may have ``causes`` of its baseline; of
        any other result, only the common fields are read.
    :param workload: its name if the document has none.
    :param typed: the workload as a user types it, and ``plan`` the path of its plan; without them their names.
    """
    common: dict[str, Any] = {"command": command, "failure": failure}
    schema = document.get("schema")
    if schema not in (Diagnosis.SCHEMA, Comparison.SCHEMA, Optimization.SCHEMA):
        return Summary(
            **common,
            workload=str(document.get("workload") or workload),
            device=str(document.get("device") or ""),
            verdict=str(document.get("verdict") or ""),
            sentence=str(document.get("sentence") or ""),
            notes=tuple(map(str, document.get("notes") or ())),
        )
    if schema == Diagnosis.SCHEMA:
        run = Diagnosis.from_json(document)
        return Summary(
            **common,
            workload=run.workload or workload,
            device=run.device,
            verdict=run.verdict,
            sentence=run.sentence,
            gates=gate_rows(run.gates),
            run=arm_of("run", run),
            causes=run.causes,
            notes=run.notes,
            answer=diagnosis_answer(run, workload=typed),
        )
    found: Comparison | Optimization
    steps: list[StepRow] = []
    refuted = ""
    if schema == Comparison.SCHEMA:
        found = Comparison.from_json(document)
        change = comparison_change(found)
        common |= {"answer": comparison_answer(found), "title": result_words(found)[0]}
    else:
        found = Optimization.from_json(document)
        change, steps = optimization_change(found), step_rows(found.steps)
        workload = found.workload or workload
        common |= {"device": found.device}
        answer = optimization_answer(found, workload=typed or found.workload, plan=plan or found.plan)
        common["answer"] = answer
        refuted = answer.headline if found.rounds and plan_is_empty(found) else ""
    return Summary(
        **common,
        workload=workload,
        verdict=found.verdict,
        sentence=refuted or change.sentence(),
        gates=gate_rows(found.gates),
        change=change,
        causes=tuple(CauseSummary.from_json(entry) for entry in document.get("causes", ())),
        steps=tuple(steps),
        notes=found.notes,
    )
