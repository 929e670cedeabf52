"""The pages of an optimization, and of a comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import NONE, count, key_label, rate, significant
from latfix.reports.answer import Answer, comparison_answer, optimization_answer
from latfix.reports.charts import change_charts
from latfix.reports.comparison_rows import (
    Change,
    comparison_change,
    gate_rows,
    optimization_change,
    pairing_words,
    prediction_words,
    shares_of,
    step_rows,
)
from latfix.reports.html.page_file import write_page
from latfix.reports.html.pages import (
    TITLES,
    Card,
    contents_of,
    facts_of,
    last_round,
    machine_details,
    replay_evidence,
    tail_values,
    without_path,
)
from latfix.reports.next_commands import replay_command, workload_argument
from latfix.reports.plan_rows import front_rows, plan_is_empty, setting_rows
from latfix.reports.vocabulary import CLASS_DEFINITIONS, DEFINITIONS
from latfix.results.comparison import Comparison
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import Optimization, untried_of
from latfix.results.request_explanation import Story
from latfix.run_record.run_record import RunRecord


def write_optimization_report(
    path: Path,
    found: Optimization,
    *,
    diagnosis: Diagnosis | None,
    before: RunRecord | None,
    after: RunRecord | None,
    last: Diagnosis | None = None,
    stories: Sequence[Story] = (),
) -> None:
    """The page of an optimization: the change, the effect of each fix, and the causes of the tail.

    :param diagnosis: of the baseline, if it was kept.
    :param before: a replay of the unchanged service, drawn alongside ``after``.
    :param last: of ``after``, or of ``before`` if nothing was kept; with ``stories`` of its slowest requests.
    :raises InputError: the file cannot be written.
    """
    recorded = before or after
    workload = found.workload if recorded is None else without_path(workload_argument(recorded.meta))
    shares, front = shares_of(found.ablation, "p99"), _front(found)
    first = {} if recorded is None else recorded.meta.settings.to_json()
    _write_change(
        path,
        optimization_change(found),
        answer=optimization_answer(found, workload=workload, plan=found.plan),
        records=(before, after),
        last=last,
        stories=stories,
        present={
            "gates": found.gates,
            "ablation": shares,
            "front": front,
            "steps": found.steps,
            "plan": found.plan,
            "causes": diagnosis,
        },
        rounds=found.rounds,
        kind="latfix optimization",
        heading=found.workload,
        facts=facts_of(found.device, after or before, rounds=found.rounds),
        notes=found.notes,
        pairing="",
        gates=gate_rows(found.gates),
        ablation=_ablation(found) if shares else None,
        front=front,
        steps=_steps(found),
        plan={
            "file": found.plan,
            "command": replay_command(workload, found.plan),
            "settings": [] if plan_is_empty(found) else setting_rows(found, first),
        },
        tail=None if diagnosis is None else tail_values(diagnosis),
    )


def _ablation(found: Optimization) -> dict[str, Any]:
    """The effect of each kept fix, without empty columns."""
    shares, means = (shares_of(found.ablation, key) for key in ("p99", "mean"))
    columns = ["fix"]
    for key in ("p99", "mean"):
        columns += [f"{key} share", f"{key} predicted", f"{key} on top of the others"]
    rows = [
        [p99.name, *p99.cells(), *mean.cells()]
        for p99, mean in zip(shares, means, strict=True)
        if p99.ratio is not None
    ]
    drawn = "p99"
    if (chart := change_charts.waterfall("ablation-chart", shares)) is None:
        drawn, chart = "mean", change_charts.waterfall("ablation-chart", means, "mean")
    return {"chart": chart, "drawn": drawn, "predictions": prediction_words(found), **_filled(columns, rows)}


def _filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """A table without empty columns."""
    kept = [k for k in range(len(columns)) if not k or any(row[k] not in ("", NONE) for row in rows)]
    return {"columns": [columns[k] for k in kept], "rows": [[row[k] for k in kept] for row in rows]}


def _front(found: Optimization) -> dict[str, Any] | None:
    """Configurations by accuracy, latency and throughput; ``None`` without any."""
    rows = front_rows(found)
    if not rows:
        return None
    name = key_label(found.judged)
    columns = ["configuration", "", "status", f"{name}, replayed", "95 %", f"{name}, predicted", "accuracy", "served"]
    columns.append("compute")
    caption = (
        "Replayed and predicted configurations, the fastest first. Best: no other replayed configuration is as good "
        "in accuracy, latency and compute together. Compute is the time of typical batches, which limits the "
        "throughput."
    )
    cells = [[row.label, "best" if row.best else "", row.words[0], *row.cells()] for row in rows]
    return {
        "caption": caption,
        "chart": change_charts.front("front-chart", rows, name),
        "errors": change_charts.predicted_against_measured("predicted-chart", rows, name),
        **_filled(columns, cells),
    }


def _steps(found: Optimization) -> dict[str, Any]:
    """Fixes that were replayed or rejected, those ruled out by a prediction, and those not tried."""
    rows = step_rows(found.steps)
    tried = [step for step in rows if step.status != "skipped"]
    judged = [step for step in tried if step.p99.value is not None or step.status != "no_gain"]
    untried = untried_of(found.steps)
    replayed = any(step.p99.value is not None for step in judged)
    figures = ["mean", "p99", "p99, ms", "predicted", "accuracy"] if replayed else []
    return {
        "chart": change_charts.ratio_forest("steps-chart", [(step.fix, step.p99, step.severity) for step in tried]),
        "columns": ["fix", "status", *figures, "reason and verification"],
        "replayed": replayed,
        "tried": judged,
        "not_replayed": [[step.fix, step.reason] for step in tried if step not in judged],
        "skipped": [[fix, reason] for fix, reason in untried.reasons.items()],
        "untried": untried.words,
    }


def write_comparison_report(
    path: Path,
    comparison: Comparison,
    base: RunRecord,
    new: RunRecord,
    *,
    last: Diagnosis | None = None,
    stories: Sequence[Story] = (),
) -> None:
    """The page of a comparison of two runs.

    :param last: the diagnosis of ``new``, with ``stories`` of its slowest requests.
    :raises InputError: the file cannot be written.
    """
    _write_change(
        path,
        comparison_change(comparison),
        answer=comparison_answer(comparison),
        records=(base, new),
        last=last,
        stories=stories,
        present={"gates": comparison.gates},
        gates=gate_rows(comparison.gates),
        kind="latfix comparison",
        heading=new.meta.workload or base.meta.workload or "comparison",
        rounds=comparison.rounds,
        facts=facts_of("", new, rounds=comparison.rounds),
        notes=comparison.notes,
        pairing=pairing_words(comparison),
    )


def _write_change(
    path: Path,
    change: Change,
    *,
    answer: Answer,
    records: tuple[RunRecord | None, RunRecord | None],
    last: Diagnosis | None,
    stories: Sequence[Story],
    present: Mapping[str, object],
    rounds: int,
    **values: object,
) -> None:
    """A page of two arms.

    :param present: optional sections by anchor, shown if the value is true.
    :param records: of the last round.
    :param rounds: 0 if there was no final replay, so that the second arm only repeats the first.
    """
    measured = rounds > 0
    arms = [(change.before.label, records[0], "before"), (change.after.label, records[1], "after")]
    evidence = replay_evidence(arms, last, stories)
    present = {"change": True, **present, **evidence, "method": True}
    order = (
        *("change", "gates", "plan", "ablation", "front", "steps", "arms", "remaining", "slowest"),
        *("windows", "traffic", "machine", "causes", "method"),
    )
    labels = f"{change.before.label.capitalize()} and {change.after.label}" if measured else "Baseline"
    of = last_round(rounds)
    titles = {"change": labels, "remaining": f"{TITLES['causes']}, {change.after.label}"}
    if evidence["remaining"] is not None:
        titles["causes"] = f"{TITLES['causes']}, {change.before.label}"
    if measured:
        for anchor in ("slowest", "windows", "traffic", "machine"):
            titles[anchor] = f"{TITLES[anchor]}{of}, {change.after.label}"
    titles["arms"] = f"Both replays{of}" if measured else "The replay"
    contents = contents_of(anchor for anchor in order if present.get(anchor))
    write_page(
        path,
        "change.html",
        contents={anchor: titles.get(anchor, title) for anchor, title in contents.items()},
        change=change,
        answer=answer,
        unchanged=[] if measured else [[row.name, row.before] for row in change.rows()],
        cards=_change_cards(change) if measured else [],
        **evidence,
        machines=[
            machine_details(record, f"Machine, versions and settings: {label}")
            for label, record, _ in arms
            if record is not None
        ],
        definitions=(*DEFINITIONS, *CLASS_DEFINITIONS),
        **values,
    )


def _change_cards(change: Change) -> list[Card]:
    before, after = change.before, change.after
    keys = list(dict.fromkeys((change.judged, "p99", "p50", "max")))[:3]
    cards = [(key_label(key), change.moved(key), change.ratio(key).words()) for key in keys]
    cards.append(("throughput", rate(after.throughput_rps), f"before {rate(before.throughput_rps)}"))
    cards.append(("not ok", count(after.failed), f"before {count(before.failed)}"))
    if change.scored:
        limit = f", {change.limit_words}" if change.limit_words else ""
        cards.append(("accuracy", significant(after.accuracy), f"before {significant(before.accuracy)}{limit}"))
    return cards
