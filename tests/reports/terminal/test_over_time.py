"""The run over time, on the terminal and on the page: windows, and when causes were active."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from latfix.reports.diagnosis_rows import active_causes
from latfix.reports.html.pages import write_run_report
from latfix.reports.terminal.diagnosis import render_diagnosis
from latfix.results.diagnosis import Activity, Diagnosis, Window
from tests.reports.conftest import Session, in_one_line, printed


def window(k: int, *, p99: float | None = 40.0) -> dict[str, Any]:
    return {
        "start_s": 2.5 * k,
        "end_s": 2.5 * (k + 1),
        "requests": 120,
        "offered_rps": 48.0 + k,
        "p50_ms": 10.0 + k,
        "p95_ms": 30.0,
        "p99_ms": p99,
        "note": "",
        "causes_ms": {"python.gc": 1.5 * k, "traffic.burst": -0.25},
    }


def with_windows(
    diagnosis: Diagnosis, windows: list[dict[str, Any]], active: Mapping[str, Any] | None = None
) -> Diagnosis:
    """The diagnosis with windows, and with when its named causes were active."""
    course = None if active is None else Activity.from_json(active)
    causes = tuple(replace(cause, active=course if cause.named else None) for cause in diagnosis.causes)
    return replace(diagnosis, causes=causes, windows=tuple(Window.from_json(each) for each in windows))


PART = {"throughout": False, "intervals_s": [[12.4, 18.9], [31.0, 35.2]], "text": "active 12.4–18.9 and 31.0–35.2 s"}


def terminal(diagnosis: Diagnosis, *, width: int = 80, encoding: str = "utf-8") -> str:
    return printed(render_diagnosis(diagnosis, folder=None, verbose=True), width=width, encoding=encoding)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_terminal_draws_windows_and_names_active_stretches(ordinary: Session, width: int) -> None:
    text = terminal(with_windows(ordinary[1], [window(k) for k in range(24)], PART), width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "Over time" in text
    assert "10.0 ms to 33.0 ms" in text and "48.0/s to 71.0/s" in text
    row = next(line for line in text.splitlines() if line.startswith("p50 ") and ("█" in line or "@" in line))
    assert row.index("█") > row.index("▃")  # it grows from window to window
    assert "12.4–18.9" in text


def test_windows_of_a_long_recording_have_a_length_in_seconds(ordinary: Session) -> None:
    long = [{**window(k), "start_s": 1234.0 * k, "end_s": 1234.0 * (k + 1)} for k in range(4)]
    assert "4 windows of 1,234 s" in in_one_line(terminal(with_windows(ordinary[1], long)))


def test_p95_is_shown_if_p99_is_missing(ordinary: Session) -> None:
    text = terminal(with_windows(ordinary[1], [window(k, p99=None if k else 40.0) for k in range(6)]))
    assert any(line.startswith("p95 ") and "30.0 ms" in line for line in text.splitlines())
    assert not any(line.startswith("p99 ") and "40.0 ms" in line for line in text.splitlines())


def test_a_terminal_without_unicode_gets_signs(ordinary: Session) -> None:
    text = terminal(with_windows(ordinary[1], [window(k) for k in range(24)], PART), encoding="ascii")
    row = next(line for line in text.splitlines() if line.startswith("p50 ") and "#" in line)
    assert "?" not in row and "#" in row.split()[1]


def test_causes_that_were_active_throughout_are_not_listed(ordinary: Session) -> None:
    whole = {"throughout": True, "intervals_s": [[0.0, 60.0]], "text": "throughout"}
    assert active_causes(with_windows(ordinary[1], [], whole)) == []
    assert {cause for cause, _ in active_causes(with_windows(ordinary[1], [], PART))} == {
        entry.cause for entry in ordinary[1].causes if entry.named
    }


def test_a_diagnosis_without_windows_shows_none(ordinary: Session, tmp_path: Path) -> None:
    assert "Over time" not in terminal(ordinary[1])
    write_run_report(tmp_path / "report.html", *ordinary)
    assert "#windows" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_has_a_row_a_window_and_a_bar_a_stretch(ordinary: Session, tmp_path: Path) -> None:
    record, diagnosis = ordinary
    windows = [window(k, p99=None if k == 3 else 40.0) for k in range(8)]
    write_run_report(tmp_path / "report.html", record, with_windows(diagnosis, windows, PART))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'href="#windows"' in page and 'id="windows"' in page
    section = page[page.index('id="windows"') :]
    section = section[: section.index("</section>")]
    assert section.count("<tr>") == 1 + len(windows)
    assert "12.4–18.9" in section and "17.5 to 20.0" in section
    assert section.count("–</td>") == 1  # the missing p99
    assert 'id="windows-chart-title"' in section
