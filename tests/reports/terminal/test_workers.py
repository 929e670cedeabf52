"""The table of workers in the terminal and on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latfix.reports.diagnosis_rows import weight_words
from latfix.reports.html.pages import write_run_report
from latfix.reports.terminal.diagnosis import render_diagnosis
from latfix.results.diagnosis import Diagnosis
from latfix.results.worker_summary import WorkerRow
from tests.reports.conftest import Session, printed

ROW: dict[str, Any] = {
    "worker": 0,
    "device": "cuda:0",
    "batches": 1200,
    "requests": 4100,
    "busy_share": 0.71,
    "compute_p50_ms": 8.125,
    "compute_p99_ms": 19.4,
    "tail_requests": 3,
    "tail_share": 0.15,
    "weight": None,
    "slow_s": 0.0,
}
SLOW = {**ROW, "worker": 1, "device": "cuda:1", "tail_share": 0.85, "weight": [1.0, 3.14159], "slow_s": 12.5}


def _with(diagnosis: Diagnosis, *rows: Any) -> Diagnosis:
    return replace(diagnosis, workers=tuple(WorkerRow.from_json(row) for row in rows))


def _shown(diagnosis: Diagnosis, width: int = 100) -> str:
    return printed(render_diagnosis(diagnosis, folder=None, verbose=True), width=width)


def test_one_worker_has_no_table(ordinary: Session, tmp_path: Path) -> None:
    record, diagnosis = ordinary
    assert "Workers" not in _shown(diagnosis)
    write_run_report(tmp_path / "report.html", record, diagnosis)
    assert "#workers" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("width", [64, 100, 140])
def test_each_worker_has_a_line(ordinary: Session, width: int) -> None:
    lines = [line.split() for line in _shown(_with(ordinary[1], ROW, SLOW), width).splitlines()]
    assert ["0", "cuda:0", "4,100", "71.0", "%", "8.12", "19.4", "15.0", "%", "–"] in lines
    assert ["1", "cuda:1", "4,100", "71.0", "%", "8.12", "19.4", "85.0", "%", "3.14"] in lines
    unweighted = _shown(_with(ordinary[1], ROW, {**ROW, "worker": 1}), width)
    assert "weight" not in unweighted.split("Workers")[1], "no column of nothing"
    narrow = _shown(_with(ordinary[1], SLOW), 60)
    table = narrow[narrow.index("Workers") :].splitlines()[:6]
    assert all(len(line) <= 60 for line in table)
    assert all(figure in " ".join(table) for figure in ("4,100", "71.0 %", "8.12", "19.4", "85.0 %", "3.14"))


def test_many_workers_are_cut_in_the_terminal_and_whole_on_the_page(ordinary: Session, tmp_path: Path) -> None:
    record, diagnosis = ordinary
    many = _with(diagnosis, *({**SLOW, "worker": k, "device": f"cuda:{k}"} for k in range(12)))
    shown = _shown(many)
    assert "cuda:7" in shown and "cuda:8" not in shown and "4 more workers are on the page" in shown
    write_run_report(tmp_path / "report.html", record, many)
    page = (tmp_path / "report.html").read_text()
    assert 'href="#workers"' in page and "cuda:11" in page and "12.5" in page and "1.00 to 3.14" in page


def test_hostile_names_and_odd_figures_are_shown_as_text(ordinary: Session, tmp_path: Path) -> None:
    record, diagnosis = ordinary
    odd = {**ROW, "device": "<script>alert(1)</script>", "weight": [None, 2.0], "busy_share": None}
    broken = _with(diagnosis, odd)
    _shown(broken)
    write_run_report(tmp_path / "report.html", record, broken)
    assert "<script>alert" not in (tmp_path / "report.html").read_text()
    assert all(weight_words(row) == "" for row in broken.workers)
