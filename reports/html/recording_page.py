"""The page of a recording that was not replayed: causes, advice, the slowest units, and the facts read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from latfix.formatting import count, finite, milliseconds, moment, significant, visible
from latfix.reports.answer import diagnosis_answer
from latfix.reports.diagnosis_rows import (
    cause_actions,
    cause_advice,
    closing_advice,
    largest_causes,
    read_words,
)
from latfix.reports.html.page_file import write_page
from latfix.reports.html.pages import (
    Card,
    contents_of,
    latency_cards,
    latency_rows,
    origin_words,
    tail_values,
    window_values,
)
from latfix.reports.vocabulary import CLASS_DEFINITIONS, DEFINITIONS
from latfix.results.diagnosis import Diagnosis, Source, UnitLedger

#: Most cause columns in the table of the slowest units.
_COLUMNS = 6
_LONGEST_NAME = 60
_NO_ACTION = "latfix names no setting for it; docs/causes.md describes the cause."
_STAGE_FIGURES = {"mean": "mean, ms", "p50": "p50, ms", "p99": "p99, ms", "reference": "quiet, ms"}
#: Definitions that also apply to recordings.
_DEFINED = ("95 % interval", "Quiet request, reference", "Tail and excess", "Unexplained", "Named cause")


def write_recording_report(path: Path, diagnosis: Diagnosis) -> None:
    """The page of a recording.

    :raises InputError: the file cannot be written.
    """
    source = diagnosis.source
    figures = {"mean": "ms"} if diagnosis.is_single else _STAGE_FIGURES
    stages = [
        [name, *(significant(row.get(key)) for key in figures)]
        for name, row in diagnosis.stages_ms.items()
        if any(finite(value) for value in row.values())
    ]
    units = [] if diagnosis.is_single else [*([diagnosis.typical] if diagnosis.typical else []), *diagnosis.slowest]
    present = {
        "causes": diagnosis.is_timed and finite(diagnosis.excess_ms) is not None,
        "advice": True,
        "latency": diagnosis.is_timed and not diagnosis.is_single,
        "windows": bool(diagnosis.windows),
        "stages": bool(stages),
        "units": bool(units),
        "read": True,
    }
    columns = largest_causes(((unit.causes_ms, 1) for unit in units), _COLUMNS)
    write_page(
        path,
        "recording.html",
        kind="latfix diagnosis of a recording",
        heading=diagnosis.workload,
        facts=" · ".join(filter(None, (diagnosis.device, *_source_words(source)))),
        contents=contents_of(anchor for anchor, there in present.items() if there),
        diagnosis=diagnosis,
        answer=diagnosis_answer(diagnosis),
        notes=diagnosis.notes,
        cards=_cards(diagnosis),
        advice=cause_advice(diagnosis),
        actions={cause: action or _NO_ACTION for cause, action in cause_actions(diagnosis).items()},
        closing=closing_advice(diagnosis),
        latency_rows=latency_rows(diagnosis),
        windows=window_values(diagnosis.windows, ()) if diagnosis.windows else None,
        stage_rows=stages,
        stage_columns=["stage", *figures.values()],
        unit_columns=[diagnosis.unit, "start, s", "took, ms", *(f"{name}, ms" for name in columns), "others, ms"],
        unit_rows=[_unit_row(unit, columns) for unit in units],
        read=read_words(diagnosis),
        definitions=[*((name, words) for name, words in DEFINITIONS if name in _DEFINED), *CLASS_DEFINITIONS],
        tail=tail_values(diagnosis),
    )


def _source_words(source: Source | None) -> list[str]:
    if source is None:
        return []
    name = source.path if "://" in source.path else PurePath(source.path).name
    return [source.kind, name, *origin_words(source.origin)]


def _cards(diagnosis: Diagnosis) -> list[Card]:
    unit, known = diagnosis.unit, diagnosis.counts
    number = (f"{unit}s", count(sum(known.values())), ", ".join(f"{count(n)} {name}" for name, n in known.items()))
    if not diagnosis.is_timed:
        return [number]
    if diagnosis.is_single:
        return [(unit, milliseconds(diagnosis.excess_ms), "the only one in the recording"), number]
    return [*latency_cards(diagnosis), number]


def _unit_row(unit: UnitLedger, columns: Sequence[str]) -> list[str]:
    shown: Mapping[str, float] = {name: unit.causes_ms.get(name, 0.0) for name in columns}
    rest = sum(unit.causes_ms.values()) - sum(shown.values())
    figures = [*shown.values(), rest if abs(rest) > 1e-9 else 0.0]
    return [
        visible(unit.id, limit=_LONGEST_NAME),
        moment(unit.start_ms),
        significant(unit.latency_ms),
        *map(significant, figures),
    ]
