"""The HTML reports: one self-contained file each, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import count
from latfix.reports.before_after import Change, comparison_change, items, pairing_words, read_change
from latfix.reports.elements import Content, Html, element, joined, section
from latfix.reports.html.change_sections import (
    arms_section,
    change_cards,
    change_section,
    gates_section,
    steps_section,
)
from latfix.reports.html.fix_waterfall import ablation_section, read_shares
from latfix.reports.html.method_sections import definitions_section, machine_details, method_section
from latfix.reports.html.over_time_section import windows_section
from latfix.reports.html.page_file import write_page
from latfix.reports.html.run_sections import (
    advice_section,
    causes_section,
    latency_section,
    run_cards,
    slow_section,
    stages_section,
    traffic_section,
)
from latfix.reports.next_commands import optimize_command, replay_command, workload_argument
from latfix.reports.terminal.workers import workers_section
from latfix.reports.vocabulary import Severity, change_severity, diagnosis_severity, verdict_words
from latfix.results.comparison import Comparison
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord

#: Sections of a run's page, in their order.
_RUN_ANCHORS = ("causes", "advice", "latency", "windows", "stages", "workers", "slowest", "traffic", "method")


def write_run_report(path: Path, record: RunRecord, diagnosis: Diagnosis, *, command: str | None = None) -> None:
    """The page of one run.

    :param command: what to run next, as the user would type it; made from ``run.json`` where ``None``.
    :raises InputError: the file cannot be written.
    """
    over_time, workers = windows_section(diagnosis), workers_section(diagnosis)
    sections = [
        causes_section(diagnosis),
        advice_section(diagnosis, command=command or optimize_command(workload_argument(record.meta))),
        latency_section(record, diagnosis),
        *([over_time] if over_time is not None else []),
        stages_section(record, diagnosis),
        *([workers] if workers is not None else []),
        slow_section(record, diagnosis),
        traffic_section(record),
        method_section(record, diagnosis),
        definitions_section(),
    ]
    absent = {name for name, part in (("windows", over_time), ("workers", workers)) if part is None}
    severity = diagnosis_severity(diagnosis)
    main: list[Content] = [_verdict(diagnosis.sentence, severity), _notes(_run_notes(record, diagnosis))]
    main += [
        run_cards(diagnosis),
        _contents(anchor for anchor in _RUN_ANCHORS if anchor not in absent),
    ]
    write_page(
        path,
        kind="latfix diagnosis",
        heading=diagnosis.workload,
        facts=_facts(diagnosis.device, record),
        main=[*main, *sections],
    )


def write_optimization_report(
    path: Path,
    document: Mapping[str, Any],
    *,
    diagnosis: Diagnosis | None,
    before: RunRecord | None,
    after: RunRecord | None,
) -> None:
    """The page of an optimization: what changed, what each fix did, and where the tail came from.

    :param document: ``optimization.json``.
    :param diagnosis: of the baseline, where it was kept.
    :param before: a replay of the unchanged service, drawn beside ``after``.
    :raises InputError: the file cannot be written.
    """
    change = read_change(document)
    verdict = str(document.get("verdict", ""))
    main: list[Content] = [
        _verdict(_change_sentence(verdict, change), change_severity(verdict)),
        _notes(str(note) for note in items(document.get("notes"))),
        change_cards(change),
        _contents(_present(document, diagnosis, before, after)),
        change_section(change),
    ]
    sections = (gates_section, ablation_section, steps_section)
    for part in (*(make(document) for make in sections), arms_section(change, before, after)):
        if part is not None:
            main.append(part)
    if document.get("plan"):
        recorded = before or after
        workload = workload_argument(recorded.meta) if recorded is not None else str(document.get("workload", ""))
        main.append(_plan_section(document, workload))
    if diagnosis is not None:
        main.append(causes_section(diagnosis))
    main.append(_machines([("before", before), ("after", after)]))
    main.append(definitions_section())
    write_page(
        path,
        kind="latfix optimization",
        heading=str(document.get("workload", "")),
        facts=_facts(str(document.get("device", "")), after or before),
        main=main,
    )


def write_comparison_report(path: Path, comparison: Comparison, base: RunRecord, new: RunRecord) -> None:
    """The page of two runs side by side.

    :raises InputError: the file cannot be written.
    """
    change = comparison_change(comparison)
    verdict = str(comparison.verdict)
    main: list[Content] = [
        _verdict(_change_sentence(verdict, change), change_severity(verdict)),
        element("p", pairing_words(comparison), class_="soft"),
        _notes(comparison.notes),
        change_cards(change),
    ]
    arms = arms_section(change, base, new)
    main.append(_contents(["change", *(["arms"] if arms is not None else []), "method"]))
    main.append(change_section(change))
    if arms is not None:
        main.append(arms)
    main += [_machines([(change.before.label, base), (change.after.label, new)]), definitions_section()]
    heading = str(new.meta.get("workload") or base.meta.get("workload") or "comparison")
    write_page(path, kind="latfix comparison", heading=heading, facts=_facts("", new), main=main)


def _verdict(sentence: str, severity: Severity) -> Html:
    return element("p", sentence, class_=f"verdict {severity}", id="verdict")


def _change_sentence(verdict: str, change: Change) -> str:
    return f"{verdict_words(verdict).capitalize()}: {change.sentence(arrow='→', sign='×')}"


def _notes(notes: Iterable[str]) -> Html:
    lines = [element("li", note) for note in notes]
    return element("ul", *lines, class_="notes", aria_label="Warnings") if lines else Html("")


def _run_notes(record: RunRecord, diagnosis: Diagnosis) -> Sequence[str]:
    if record.partial and not any("partial" in note.lower() for note in diagnosis.notes):
        return (*diagnosis.notes, "Partial run: it did not reach its end; figures cover what was recorded.")
    return diagnosis.notes


_TITLES = {
    "causes": "Where the tail comes from",
    "advice": "What to do",
    "latency": "Latency",
    "windows": "Over time",
    "stages": "Stages",
    "workers": "Workers",
    "slowest": "Slowest requests",
    "traffic": "Traffic",
    "method": "How it was measured",
    "change": "Before and after",
    "gates": "Gates",
    "ablation": "What each fix gave",
    "steps": "What was tried",
    "arms": "Both replays",
    "plan": "Plan",
    "definitions": "What the figures mean",
}


def _contents(anchors: Iterable[str]) -> Html:
    links = [element("a", _TITLES[anchor], href=f"#{anchor}") for anchor in (*anchors, "definitions")]
    return element("nav", *links, aria_label="Sections")


def _present(
    document: Mapping[str, Any], diagnosis: Diagnosis | None, before: RunRecord | None, after: RunRecord | None
) -> list[str]:
    """Anchors of the sections that an optimization's page will have."""
    drawn = any(record is not None and len(record.latencies_ns()) for record in (before, after))
    there = {
        "change": True,
        "gates": bool(items(document.get("gates"))),
        "ablation": bool(read_shares(document, "p99")),
        "steps": bool(items(document.get("steps"))),
        "arms": drawn,
        "plan": bool(document.get("plan")),
        "causes": diagnosis is not None,
        "method": True,
    }
    return [anchor for anchor, shown in there.items() if shown]


def _plan_section(document: Mapping[str, Any], workload: str) -> Html:
    plan = str(document["plan"])
    command = replay_command(workload, plan)
    return section(
        "plan",
        "Plan",
        element("p", "The kept fixes are in ", element("code", plan), ". Replay with them:"),
        element("pre", element("code", command)),
    )


def _machines(arms: Iterable[tuple[str, RunRecord | None]]) -> Html:
    parts = [
        machine_details(record, title=f"Machine, versions and settings: {label}")
        for label, record in arms
        if record is not None
    ]
    return section("method", "How it was measured", *(parts or [element("p", "No record was kept.", class_="soft")]))


def _facts(device: str, record: RunRecord | None) -> Html:
    parts = [device] if device else []
    if record is not None:
        started = record.meta.get("started") or record.meta.get("started_at") or record.meta.get("start")
        if isinstance(started, str):
            parts.append(started)
        parts.append(f"{count(sum(record.counts().values()))} requests")
        if record.partial:
            parts.append("partial run")
    return joined([" · ".join(parts)])
