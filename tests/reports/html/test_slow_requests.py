"""The slowest requests of the arm that a page is about: causes in each row, and a link to each story."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.reports.html.change_page import write_comparison_report
from latfix.results.comparison import compare_records
from latfix.results.diagnosis import Window
from tests.reports.conftest import Session
from tests.reports.html.every_page import write_comparison, write_optimization, write_run, write_trial
from tests.reports.html.test_pages import checked


@pytest.mark.parametrize("write", [write_run, write_comparison, write_optimization, write_trial])
def test_each_slow_request_has_its_causes_and_a_link_to_its_story(
    tmp_path: Path, ordinary: Session, write: Callable[[Path, Session], None]
) -> None:
    record, diagnosis = ordinary
    path = tmp_path / "report.html"
    write(path, ordinary)
    page, source = checked(path), path.read_text(encoding="utf-8")
    ids = [record.traffic.ids[int(record.requests["index"][row])] for row in record.slowest()]
    rows = re.findall(r'<tr data-at="[\d.]+">(.*?)</tr>', source, re.DOTALL)
    assert len(rows) == len(ids) == 20
    known = set(diagnosis.ledger.request.tolist())
    for k, (row, name) in enumerate(zip(rows, ids, strict=True)):
        assert f'<code>{name}</code> <a href="#story-{k}">story</a>' in row
        if int(name.removeprefix("request-")) in known:
            assert any(entry.cause in row for entry in diagnosis.causes), "why it was slow"
        story = source.partition(f'<p id="story-{k}">')
        assert f"<summary><code>{name}</code>" in story[0].rpartition("<details")[2], "unfolds at the link"
    assert [href for _, attribute, href in page.attributes if attribute == "href"].count("#slowest") == 1


def test_a_change_names_what_remains_next_to_what_was_there(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    first = replace(diagnosis.causes[0], cause="memory.allocator", evidence="9 stalls of the allocator")
    last = replace(diagnosis, causes=(first, *diagnosis.causes[1:]))
    write_optimization(tmp_path / "report.html", (record, last))
    text = checked(tmp_path / "report.html").text
    remaining = text.rindex("Where the tail comes from, after")
    before = text.rindex("Where the tail comes from, before")
    assert remaining < before
    assert "9 stalls of the allocator" in text[remaining:before]
    assert "9 stalls of the allocator" not in text[before:]


def test_a_change_shows_machine_and_causes_of_the_new_arm_over_time(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    at = np.arange(0, 40) * 10**9
    samples = {"t_ns": at, "series": np.full(40, "process.rss_bytes", dtype=object), "value": np.full(40, 2.0**30)}
    known: dict[str, Any] = {"requests": 9, "offered_rps": 9.0, "p50_ms": 5.0, "p95_ms": None, "p99_ms": None}
    windows = tuple(Window(start_s=k, end_s=k + 1.0, causes_ms={"python.gc": 4.0}, **known) for k in (0.0, 1.0))
    session = replace(record, samples=samples), replace(diagnosis, windows=windows)
    write_comparison(tmp_path / "report.html", session)
    text = checked(tmp_path / "report.html").text
    assert "Machine, new" in text and "memory, MiB" in text and "Over time, new" in text


def test_without_a_diagnosis_the_slowest_requests_have_no_column_of_causes(tmp_path: Path, ordinary: Session) -> None:
    record = ordinary[0]
    path = tmp_path / "report.html"
    write_comparison_report(path, compare_records(record, record), record, record)
    text = checked(path).text
    assert "Slowest requests, new" in text and "largest causes" not in text and "not in the ledger" not in text
