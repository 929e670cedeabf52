"""The self-test as a whole: one case through a real runner process, interrupts and failures."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError, RunnerError
from latfix.results.selftest_scoreboard import CaseScore
from latfix.run_record.run_record import RunRecord
from latfix.runners.selftest import run as module
from latfix.runners.selftest.case import Case
from latfix.runners.selftest.faults.fault_log import read_faults
from latfix.runners.selftest.plan import make_case
from latfix.runners.selftest.recipes import RECIPES
from latfix.runners.selftest.run import rescore, run_selftest, score_kept
from latfix.runners.selftest.run_case import Kept, Pace, load_kept, run_case
from latfix.runners.selftest.run_case import main as collect
from tests.runners.selftest.conftest import case_score

PACE = Pace(blocks=2, typical_ms=3.0)
COLLECTED = (
    *("--case", "sleep_prepare+work_model", "--intensity", "large", "--seed", "11", "--seconds", "1.2"),
    *("--blocks", "2", "--typical-ms", "3"),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A short kept run with pauses in prepare and in the model."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert collect(["--out", str(tmp_path_factory.mktemp("cases")), *COLLECTED]) == 0
    return load_kept(Path(output.getvalue().split()[0]))


@pytest.mark.slow
def test_planned_faults_strike_the_right_requests(kept: Kept) -> None:
    record, faults = RunRecord.load(kept.record), read_faults(kept.log)
    planned = {
        (row, where, kind)
        for row, payload in enumerate(record.traffic.payloads)
        for where, kind, _ in payload["faults"]
    }
    assert planned == {(int(fault.request[1:]), fault.where, fault.kind) for fault in faults}
    assert {fault.cause for fault in faults} == {"external.dependency", "host.slowdown"}
    rows = record.requests
    place = {int(index): k for k, index in enumerate(rows["index"]) if not rows["warmup"][k]}
    for fault in faults:
        k = place[int(fault.request[1:])]
        stage = rows["prepare_ns" if fault.where == "prepare" else "compute_ns"][k]
        assert stage >= fault.ns > 0
        begin = record.meta.t0_ns + rows["arrival_ns"][k]
        assert begin <= fault.start_ns < fault.end_ns <= begin + rows["latency_ns"][k]


@pytest.mark.slow
def test_a_kept_case_scores_the_same_again(kept: Kept) -> None:
    assert (kept.case, kept.pace) == (make_case(("sleep_prepare", "work_model"), "large", 11, 1.2), PACE)
    assert collect(["--out", str(kept.folder.parent), *COLLECTED]) == 2, "nothing is overwritten"
    first, second = score_kept(kept), score_kept(load_kept(kept.folder))
    assert first == second
    assert set(first.injected) == {"external.dependency", "host.slowdown"} and first.faults >= 8
    # If a busy machine slowed all requests down, small faults do not count.
    counted = set(first.true_ms) == set(first.injected) and first.errors is not None and first.errors.count >= 8
    assert counted or first.dropped
    board = rescore(kept.folder.parent, on_case=lambda *_: None)
    assert board.cases == (first,) and not board.interrupted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "kinds", "series"),
    [
        ("neighbor_prepare", {"neighbor"}, "neighbor.throttled_ns."),
        ("giant_threads", {"sleep"}, ""),
        ("uncompiled", {"compile", "uncompiled"}, "compile.limit_hits"),
        ("lazy_threads", {"first use"}, ""),
    ],
)
def test_a_fault_reaches_the_log_and_its_evidence_the_record(
    recipe: str, kinds: set[str], series: str, tmp_path: Path
) -> None:
    if reason := RECIPES[recipe].obstacle():
        pytest.skip(reason)
    kept = run_case(make_case((recipe,), "large", 12, 3.0), tmp_path, PACE)
    faults = read_faults(kept.log)
    assert {fault.kind for fault in faults} == kinds
    assert {fault.cause for fault in faults} == {RECIPES[recipe].cause}
    assert all(fault.request for fault in faults)
    record = RunRecord.load(kept.record)
    seen = record.samples["value"][np.char.startswith(record.samples["series"].astype(str), series)]
    assert not series or seen.max() > 0
    assert score_kept(kept).faults > 0


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        collect(["--out", "x", "--case", "nothing_such"])
    assert "found 'nothing_such'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"recipes": ["gc_model"], "blocks": "x"}'])
def test_a_folder_that_is_no_case_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "case.json").write_text(text)
    with pytest.raises(InputError, match=r"case\.json: found no case"):
        load_kept(tmp_path)
    with pytest.raises(InputError, match=r"found no case\.json"):
        rescore(tmp_path / "none", on_case=lambda *_: None)


@pytest.fixture
def no_replay(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Cases are counted instead of replayed."""
    replayed: list[Case] = []

    def run_case(case: Case, out: Path, pace: Pace, **_: Any) -> Kept:
        folder = out / case.id
        folder.mkdir()
        replayed.append(case)
        return Kept(case=case, folder=folder, pace=pace)

    monkeypatch.setattr(module, "measure_pace", lambda: PACE)
    monkeypatch.setattr(module, "run_case", run_case)
    monkeypatch.setattr(module, "score_kept", lambda kept: case_score(kept.case))
    return replayed


QUICK: dict[str, Any] = {"seed": 1, "quick": True}
CASES = [make_case(("quiet_low",), "small", seed, 1.0) for seed in (1, 2, 3)]


def test_every_case_is_replayed_and_reported_once(no_replay: list[Case], tmp_path: Path) -> None:
    reported: list[tuple[int, bool]] = []
    board = run_selftest(
        CASES,
        tmp_path,
        keep=False,
        **QUICK,
        on_case=lambda k, _n, _c, score: reported.append((k, bool(score))),
    )
    assert no_replay == CASES and len(board.cases) == 3 and not board.interrupted
    assert reported == [(0, False), (0, True), (1, False), (1, True), (2, False), (2, True)]
    assert not list(tmp_path.iterdir())
    run_selftest(CASES, tmp_path, keep=True, **QUICK, on_case=lambda *_: None)
    assert {path.name for path in tmp_path.iterdir()} == {case.id for case in CASES}


@pytest.mark.usefixtures("no_replay")
def test_an_interrupt_keeps_the_scores_so_far(tmp_path: Path) -> None:
    def stop_at_second(place: int, _of: int, _case: Case, score: CaseScore | None) -> None:
        if place == 1 and score is None:
            raise KeyboardInterrupt

    board = run_selftest(CASES, tmp_path, keep=False, **QUICK, on_case=stop_at_second)
    assert board.interrupted and [case.id for case in board.cases] == [CASES[0].id] and board.planned == 3


def test_a_runner_that_fails_is_an_error(
    no_replay: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Kept:
        raise RunnerError("the runner died")

    monkeypatch.setattr(module, "run_case", fail)
    with pytest.raises(RunnerError, match="died"):
        run_selftest(CASES, tmp_path, keep=False, **QUICK, on_case=lambda *_: None)
    assert no_replay == []


@pytest.mark.slow
def test_a_run_cut_short_cannot_be_scored(kept: Kept, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(kept.folder, copy)
    meta = json.loads((copy / "record" / "run.json").read_text())
    del meta["t0_ns"]
    (copy / "record" / "run.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match="did not reach its end"):
        score_kept(replace(kept, folder=copy))
