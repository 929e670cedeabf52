"""Tables of the smaller commands on narrow terminals: no figure, title or id is cut, and no color is lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Group
from rich.text import Text

from latfix.gates.reference_level import Level
from latfix.profilers.allocator_lab.compare_policies import compare, fragmentation
from latfix.profilers.allocator_lab.trace import AllocationTrace, Event
from latfix.reports.answer import Answer, Line
from latfix.reports.history_rows import machine_words
from latfix.reports.terminal.doctor import render_doctor
from latfix.reports.terminal.fragmentation import render_fragmentation
from latfix.reports.terminal.history import render_history
from latfix.reports.terminal.widgets import Column, FittedTable, Portable, answer_block, safe
from latfix.reports.watch_view import watch_line, watch_panel
from latfix.results.doctor_finding import CheckedMachine, Doctor
from latfix.results.history import HistoryTrend, HistoryTrends, PastRun
from tests.reports.conftest import Session, in_one_line, printed, unharmed

_MIB = 1 << 20
WIDTHS = pytest.mark.parametrize("width", [60, 80, 120])


@WIDTHS
def test_all_columns_of_the_allocators_are_shown(width: int) -> None:
    sizes = ((0, 60), (0, 0), (1, 20), (2, 70), (3, 10))
    trace = AllocationTrace(events=[Event(key=key, size=mib * _MIB) for key, mib in sizes], source="test")
    found = fragmentation(trace, 100 * _MIB, compare(trace, 100 * _MIB))
    found = replace(found, recorded={"retries": 1, "ooms": 1, "device_allocs": 1, "device_frees": 0})
    text = printed(render_fragmentation(found), width=width)
    unharmed(text, width)
    titles = next(line for line in text.splitlines() if line.startswith("policy")).split()
    assert titles == ["policy", "failed", "stalls", "calls", "held", "stuck", "int.", "ext."]
    assert all(name in text for name in ("garbage_collection_threshold:0.8", "roundup_power2_divisions:8"))
    assert "In the recording: 1 stall, 1 failure, 1 device call." in in_one_line(text)


def test_the_largest_free_piece_may_be_memory_that_was_not_taken() -> None:
    trace = AllocationTrace(events=[Event(key=0, size=100 * _MIB), Event(key=1, size=5 * _MIB)], source="test")
    found = fragmentation(trace, 118 * _MIB, compare(trace, 118 * _MIB))
    text = in_one_line(printed(render_fragmentation(found)))
    assert "18.0 MiB free, of which 18.0 MiB not yet taken from the device, too little for the segment" in text


def _history(metric: str) -> HistoryTrends:
    run = PastRun(
        run="1",
        started="2026-11-25T14:33:19",
        value=0.9,
        verdict="host.contention",
        folder="/runs/" + "r" * 44,
        settings="",
        versions={},
        requests={},
    )
    disturbed = replace(run, run="2", value=1.0, not_compared_because="the machine was disturbed")
    trend = HistoryTrend(
        workload="ranker",
        machine="m",
        machine_facts={"cpu": "Intel(R) Xeon(R) Processor", "cores": 2},
        device="cpu",
        command="diagnose",
        plan="",
        traffic="",
        level=Level.of([0.9, 1.0], metric),
        runs=(run, disturbed),
        changes=(),
    )
    return HistoryTrends(file="h.db", metric=metric, trends=(trend,))


@WIDTHS
@pytest.mark.parametrize("metric", ["p99", "cause:host.contention"])
def test_a_history_is_not_cut(width: int, metric: str) -> None:
    text = printed(render_history(_history(metric), workload="ranker"), width=width)
    unharmed(text, width)
    words = ("host.contention", "/runs/" + "r" * 44, "next run, 95 %", "Intel(R) Xeon(R) Processor, 2 cores")
    assert all(word in text for word in words)
    assert text.count("excluded: the machine was disturbed") == 1


def test_a_machine_of_one_core_has_one() -> None:
    (trend,) = _history("p99").trends
    assert machine_words(replace(trend, machine_facts={"cores": 1})) == "1 core"


@WIDTHS
def test_the_live_view_of_a_service(width: int, ordinary: Session) -> None:
    found = replace(ordinary[1], percentile=95.0, requests={"ok": 9, "error": 1})
    text = printed(watch_panel(found, "rec", 60.0, "12:00:00"), width=width)
    unharmed(text, width)
    assert "cause of the slowest 5 % of ok" in text and "p99.9" in text
    line = watch_line(replace(found, verdict="losing"), "12:00:00")
    assert "requests are lost; causes of the slowest 5 % of ok requests: " in line
    assert "undecided; causes of" in watch_line(replace(found, verdict="inconclusive"), "12:00:00")
    all_ok = replace(found, verdict="python.gc", requests={"ok": 10, "error": 0})
    assert "  causes of the slowest 5 %: " in watch_line(all_ok, "12:00:00")


def test_cells_keep_their_color() -> None:
    table = FittedTable([Column("name"), Column("figure")], [[Text("a", "red"), Text("1", "green")]])
    assert "\x1b[31ma" in printed(Portable(table), color=True) and "\x1b[32m1" in printed(Portable(table), color=True)


def test_a_number_keeps_its_sign_and_unit() -> None:
    for width in range(12, 40):
        text = printed(
            Portable(safe("it is slower by + 8.1 ms, all else - 1.03 ms, and 102 ms at 5 % of 3 MiB")), width=width
        )
        assert not re.search(r"[-+]$|^(ms|%|MiB)", text, re.M), text


def test_a_single_core_is_one_core() -> None:
    machine = CheckedMachine(cpu="A", cores=1, os="Linux", gpus=())
    found = Doctor(date="", machine=machine, versions={}, findings=())
    assert in_one_line(printed(render_doctor(found))).startswith("A, 1 core, no GPU: nothing to change")


@pytest.mark.parametrize(("letters", "begins"), [(40, 16), (60, 9)])
def test_the_path_of_a_report_is_not_broken(letters: int, begins: int) -> None:
    answer = Answer(headline="x", severity="calm", lines=(Line(label="95 % interval", words="y"),))
    folder = Path("a-" * (letters // 2 - 1) + "b")
    last = printed(Portable(Group(*answer_block(answer, folder=folder))), width=80).rstrip().splitlines()[-1]
    assert last == f"{'report':{begins - 1}}{folder}/report.html"
