"""Whatever a text from outside holds, it stays text: on the pages of runs, changes, recordings, sweeps and trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.formatting import visible
from latfix.reports.html.recording_page import write_recording_report
from latfix.reports.html.sweep_page import write_sweep_report
from latfix.results.comparison import Trial
from latfix.results.diagnosis import Activity, Source, UnitLedger, Window
from latfix.results.optimization import Optimization
from latfix.results.sweep import Sweep
from tests.reports.conftest import HOSTILE, Session, make_diagnosis, make_document, make_record
from tests.reports.html.every_page import write_comparison, write_optimization, write_run, write_trial
from tests.reports.html.test_pages import Page, checked
from tests.reports.test_sweep_reports import document as sweep_document
from tests.results.test_documents import written

#: What ends a text, an attribute, an element, a script or a comment, or begins one.
PIECES = (
    "<script>",
    "</script>",
    "</style>",
    "<img src=x onerror=f()>",
    '" onclick="',
    "'",
    "-->",
    "<!--",
    "]]>",
    "&",
)
ATTACKS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), min_size=1, max_size=6).map("".join)
ORIGIN = ("started", "host", "branch", "commit", "command")


def _session(text: str) -> Session:
    record = make_record(40, text=text)
    record = replace(record, meta=replace(record.meta, origin=dict.fromkeys(ORIGIN, text)))
    diagnosis = make_diagnosis(record, text=text, causes=("python.gc", f"{text}.{text}", text))
    course = Activity(throughout=False, intervals_s=((0.0, 1.0),), text=text)
    known: dict[str, Any] = {"requests": 9, "offered_rps": 9.0, "p50_ms": 5.0, "p95_ms": None, "p99_ms": None}
    windows = tuple(Window(start_s=k, end_s=k + 1.0, causes_ms={text: 4.0}, **known) for k in (0.0, 1.0))
    causes = tuple(replace(each, active=course) for each in diagnosis.causes)
    return record, replace(diagnosis, causes=causes, windows=windows)


def _run(page: Path, text: str) -> None:
    write_run(page, _session(text))


def _comparison(page: Path, text: str) -> None:
    session = _session(text)
    write_comparison(page, session, session[0])


def _optimization(page: Path, text: str) -> None:
    session = _session(text)
    found = Optimization.from_json(
        _filled(make_document(), text, ("workload", "device", "fix", "reason", "plan", "verified"))
    )
    found = replace(found, rounds=2, notes=(text,), changes={text: (text, text)}, disturbed=text)
    write_optimization(page, session, found, session)


def _recording(page: Path, text: str) -> None:
    _, diagnosis = _session(text)
    unit = UnitLedger(id=text, start_ms=1.0, latency_ms=2.0, causes_ms={text: 2.0})
    source = Source(kind=text, path=text, unit=text, read={text: text}, origin=dict.fromkeys(ORIGIN, text))
    write_recording_report(page, replace(diagnosis, source=source, slowest=(unit,), typical=unit))


def _sweep(page: Path, text: str) -> None:
    words = _filled(sweep_document(), text, ("workload", "device", "label", "reason", "text", "knee_rule", "latfix"))
    words["settings"][1]["failure"] = text
    found = Sweep.from_json({**words, "machine": {text: text}})
    write_sweep_report(page, replace(found, notes=(text,), origin=dict.fromkeys(ORIGIN, text)))


def _trial(page: Path, text: str) -> None:
    names = ("workload", "device", "name", "failure", "accuracy_reason")
    found = Trial.from_json(_filled(written("trial"), text, names))
    write_trial(page, _session(text), replace(found, notes=(text,), origin=dict.fromkeys(ORIGIN, text)))


def _filled(value: Any, text: str, names: tuple[str, ...]) -> Any:
    """A document with a text in each of these keys that holds one."""
    if isinstance(value, list):
        return [_filled(each, text, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: text if key in names and isinstance(each, str) else _filled(each, text, names)
        for key, each in value.items()
    }


@cache
def _harmless(write: Callable[[Path, str], None]) -> Page:
    """The page with words instead; with an option and a dotted name, which have markup of their own."""
    return _page(write, "some.name --option")


def _page(write: Callable[[Path, str], None], text: str) -> Page:
    with TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        write(page, text)
        return checked(page)


@pytest.mark.parametrize("write", [_run, _comparison, _optimization, _recording, _sweep, _trial])
@given(text=st.one_of(ATTACKS, st.just(HOSTILE)))
@settings(max_examples=15)
def test_any_text_stays_text(write: Callable[[Path, str], None], text: str) -> None:
    page, harmless = _page(write, text), _harmless(write)
    assert page.tags <= harmless.tags | {"wbr", "span"}
    known = {(tag, name) for tag, name, _ in harmless.attributes}
    assert {(tag, name) for tag, name, _ in page.attributes} <= known | {("span", "class"), ("span", "title")}
    assert visible(text, limit=190).removesuffix("…").replace("\u00a0", " ") in page.text
