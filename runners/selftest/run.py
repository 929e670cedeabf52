"""The self-test from cases to scoreboard: replay, ground truth, diagnosis, score."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from latfix.errors import InputError
from latfix.profilers.diagnose import diagnose
from latfix.results.selftest_scoreboard import CaseScore, Scoreboard
from latfix.run_record.run_record import RunRecord
from latfix.runners.host.cpu_quota import cpu_model
from latfix.runners.replay.run_session import Interrupted
from latfix.runners.selftest.case import Case
from latfix.runners.selftest.faults.fault_log import read_faults
from latfix.runners.selftest.ground_truth import find_truth
from latfix.runners.selftest.plan import not_injectable
from latfix.runners.selftest.run_case import CASE_FILE, Kept, Pace, load_kept, measure_pace, run_case, watch_neighbors
from latfix.runners.selftest.score import least_ms, score_case
from latfix.runners.selftest.scoreboard import make_scoreboard
from latfix.statistics.latency_summary import summarize_ms

#: Progress callback: index, number of cases, the case, and its score once it has one.
OnCase = Callable[[int, int, Case, CaseScore | None], None]


def score_kept(kept: Kept) -> CaseScore:
    """Diagnose and score a kept case without replaying it.

    :raises InputError: its record or log cannot be read.
    """
    record = RunRecord.load(kept.record)
    diagnosis = diagnose(record)
    p50_ms = summarize_ms(record.latencies_ns())["p50"]
    truth = find_truth(record, read_faults(kept.log), diagnosis.percentile, least_ns=round(least_ms(p50_ms) * 1e6))
    return score_case(
        kept.case, truth, diagnosis, neighbors=kept.neighbors, cores=record.meta.cores, folder=kept.folder.name
    )


def run_selftest(
    cases: Sequence[Case], out: Path, *, keep: bool, seed: int, quick: bool, on_case: OnCase
) -> Scoreboard:
    """Replay and score every case; Ctrl-C ends it early with the scores so far.

    :param out: folder for the cases' records; deleted after scoring unless ``keep``.
    :raises LatfixError: a runner failed; records of a kept self-test stay.
    """
    began = time.monotonic()
    neighbors = watch_neighbors()
    scores: list[CaseScore] = []
    pace: Pace | None = None
    with contextlib.suppress(KeyboardInterrupt, Interrupted):  # the scoreboard shows that it is incomplete
        pace = measure_pace()
        for place, case in enumerate(cases):
            on_case(place, len(cases), case, None)
            kept = run_case(case, out, pace)
            scores.append(score_kept(kept))
            if not keep:
                shutil.rmtree(kept.folder)
            on_case(place, len(cases), case, scores[-1])
    facts, typical_ms = {**machine(), "neighbors": neighbors()}, 0.0 if pace is None else pace.typical_ms
    return _board(scores, len(cases), began, seed=seed, quick=quick, machine=facts, typical_ms=typical_ms)


def rescore(folder: Path, *, on_case: OnCase) -> Scoreboard:
    """Diagnose and score all cases kept under ``folder`` again.

    :raises InputError: the folder contains no case.
    """
    began = time.monotonic()
    found = sorted(file.parent for file in folder.rglob(CASE_FILE))
    if not found:
        raise InputError(f"{folder}: found no {CASE_FILE}; expected a folder written by latfix selftest --out")
    scores: list[CaseScore] = []
    kept = [load_kept(each) for each in found]
    with contextlib.suppress(KeyboardInterrupt):
        for place, each in enumerate(kept):
            on_case(place, len(kept), each.case, None)
            scores.append(score_kept(each))
            on_case(place, len(kept), each.case, scores[-1])
    seed, typical_ms = min(each.case.seed for each in kept), kept[0].pace.typical_ms
    return _board(scores, len(kept), began, seed=seed, quick=False, machine=machine(), typical_ms=typical_ms)


def _board(scores: Sequence[CaseScore], planned: int, began: float, **facts: Any) -> Scoreboard:
    """:param began: :func:`time.monotonic` at the start."""
    seconds = time.monotonic() - began
    return make_scoreboard(scores, planned=planned, not_injectable=not_injectable(), seconds=seconds, **facts)


def machine() -> dict[str, Any]:
    """Facts about this machine, without torch, and the date."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    today = datetime.date.today().isoformat()
    return {"date": today, "cpu": cpu_model(), "cores": usable, "os": f"{platform.system()} {platform.release()}"}
