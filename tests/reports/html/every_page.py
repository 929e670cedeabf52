"""A page of every kind, for the tests in a browser and for screenshots."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfix.profilers.chunked.downsample import downsampled
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.profilers.diagnose import diagnose
from latfix.profilers.drilldown.explain import explain_slowest
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.reports.html.change_page import write_comparison_report, write_optimization_report
from latfix.reports.html.history_page import write_history_page
from latfix.reports.html.pages import write_run_report
from latfix.reports.html.recording_page import write_recording_report
from latfix.reports.html.sweep_page import write_sweep_report
from latfix.reports.html.trial_page import write_trial_report
from latfix.results.comparison import Trial, compare_records
from latfix.results.history import HistoryTrends
from latfix.results.optimization import Optimization
from latfix.results.request_explanation import Story
from latfix.results.sweep import Sweep
from latfix.run_record.run_record import RunRecord
from tests.profilers.recordings.devices.hand_made import HandMade
from tests.reports.conftest import Session, make_document, make_record, make_session
from tests.reports.test_sweep_reports import document as sweep_document
from tests.results.test_documents import written

TRIAL = Trial.from_json(written("trial"))


def stories_of(session: Session) -> Sequence[Story]:
    return explain_slowest(session[0], session[1].ledger)


def write_run(page: Path, session: Session) -> None:
    write_run_report(page, *session, stories=stories_of(session))


def write_comparison(page: Path, session: Session, base: RunRecord | None = None) -> None:
    record, last = session
    base = base or make_session("untrusted")[0]
    write_comparison_report(page, compare_records(base, record), base, record, last=last, stories=stories_of(session))


def write_optimization(
    page: Path, session: Session, found: Optimization | None = None, before: Session | None = None
) -> None:
    record, diagnosis = before or make_session("untrusted")
    write_optimization_report(
        page,
        found or replace(Optimization.from_json(make_document()), rounds=3),
        diagnosis=diagnosis,
        before=record,
        after=session[0],
        last=session[1],
        stories=stories_of(session),
    )


def write_trial(page: Path, session: Session, found: Trial = TRIAL) -> None:
    write_trial_report(page, found, replay=(*session, stories_of(session)))


def _run(name: str) -> Callable[[Path], None]:
    return lambda page: write_run(page, make_session(name))


def many_requests(page: Path) -> None:
    """As ``latfix report`` writes it: figures of all requests, rows of a sample."""
    record = make_record(200_000)
    diagnosis = diagnose(record)
    began = time.monotonic()
    write_run_report(page, *downsampled(WholeRecord(record), diagnosis))
    seconds, size = time.monotonic() - began, page.stat().st_size
    print(f"the page of 200,000 requests took {seconds:.2f} s and has {size:,} bytes")


def _devices(page: Path) -> None:
    """A training run on two devices: a trace of each rank, the second starved in each third step."""
    folder = page.with_suffix("")
    folder.mkdir()
    for rank in range(2):
        made = HandMade()
        for k in range(30):
            begin = k * 2000.0
            late = 700.0 if rank and k % 3 == 0 else 0.0
            made.step(f"ProfilerStep#{k}", begin, begin + 1000 + late)
            made.call("launch", begin + 10, begin + 15, k)
            made.work(k, begin + 20 + late, begin + 900 + late)
            made.call("sync", begin + 16, begin + 950 + late)
        made.write(folder / f"rank{rank}.json")
    write_recording_report(page, diagnose_recording(folder, ReadOptions()))


def _optimization(page: Path) -> None:
    estimate = {key: {"value": 0.5, "ci95": [0.45, 0.55]} for key in ("mean", "p99")}
    names = ("gc.freeze", "quantize.bf16")
    contributions: list[dict[str, Any]] = [
        {
            "fixes": [name],
            "before_ms": {"mean": 80.0 / 2**k, "p99": 400.0 / 2**k},
            "after_ms": {"mean": 40.0 / 2**k, "p99": 200.0 / 2**k},
            "ratio": estimate,
            "adds": {name: estimate},
            "predicted": {"mean": 0.55, "p99": 0.45},
        }
        for k, name in enumerate(names)
    ]
    found = Optimization.from_json({**make_document(), "ablation": contributions})
    changes = {"gc": ("default", "freeze"), "precision": ("fp32", "bf16")}
    write_optimization(page, make_session("ordinary"), replace(found, rounds=5, changes=changes))


#: By name, what writes the page.
EVERY_PAGE: dict[str, Callable[[Path], None]] = {
    **{
        name.replace(" ", "-"): _run(name) for name in ("ordinary", "partial", "zero", "one", "all errors", "hostile")
    },
    "many": many_requests,
    "devices": _devices,
    "optimization": _optimization,
    "comparison": lambda page: write_comparison(page, make_session("ordinary"), make_session("one")[0]),
    "trial": lambda page: write_trial(page, make_session("ordinary")),
    "sweep": lambda page: write_sweep_report(page, Sweep.from_json(sweep_document())),
    "history": lambda page: write_history_page(page, HistoryTrends.from_json(written("history")), workload=None),
}
