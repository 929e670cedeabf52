"""``load_runner(record=...)``: a record that reads like a run's, during and after the service."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latfix
from latfix.errors import InputError
from latfix.profilers.probes import stage_recorder
from latfix.profilers.probes.stage_recorder import SegmentWriter
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.run_record.live_record import live_parts, load_live
from latfix.run_record.run_record import RunRecord
from latfix.runners.live import live_record
from tests.runners.live.conftest import MakeRunner


def _serve(runner: latfix.Runner, count: int, payload: Callable[[int], Any] = lambda _: None) -> None:
    for k in range(count):
        try:
            runner.infer_sync({"id": f"r{k}", "value": k if k % 50 else -1, "payload": payload(k)})
        except latfix.RequestFailed:
            assert k % 50 == 0


def test_features_of_any_type_are_recorded(make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(load={"record": tmp_path / "log"}, warmup_requests=0)
    for k in range(1, 4):
        features: dict[str, Any] = {"value": np.int64(k), "kind": Path("x")}
        runner.infer_sync(latfix.Request(id=f"r{k}", arrival_s=0.0, features=features))
    runner.close()
    assert RunRecord.load(tmp_path / "log").traffic.features["value"].tolist() == [1, 2, 3]


def test_every_request_is_recorded_with_its_features(make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(load={"record": tmp_path / "log"}, warmup_requests=0)
    _serve(runner, 200)
    runner.close()
    record = RunRecord.load(tmp_path / "log")
    assert record.counts()["ok"] == 196
    assert record.counts()["error"] == 4
    assert not record.partial
    assert record.traffic.ids == [f"r{k}" for k in range(200)]
    assert record.traffic.features["value"].tolist() == [k if k % 50 else -1 for k in range(200)]
    assert "negative" in record.errors[50]
    assert record.begins
    assert (np.diff(record.requests["arrival_ns"]) > 0).all()
    assert set(record.batches["batch_id"]) >= set(record.requests["batch_id"][record.requests["status"] == 0])
    assert "process.rss_bytes" in set(record.samples["series"])


def test_a_full_disk_ends_the_record_with_a_warning_and_not_the_service(
    make_runner: MakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: SegmentWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SegmentWriter, "flush", full)
    runner = make_runner(load={"record": tmp_path / "log"})
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not caplog.messages:
        time.sleep(0.05)
    _serve(runner, 20)
    runner.close()
    assert runner.stats().requests["ok"] == 19
    assert caplog.messages == [f"{tmp_path / 'log'}: latfix stopped recording there (No space left on device)"]


def test_it_is_read_while_the_service_runs(make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(load={"record": tmp_path / "log"})
    _serve(runner, 20)
    deadline = time.monotonic() + 30
    found = None
    while found is None or found.requests["ok"] != 19:
        assert time.monotonic() < deadline
        with contextlib.suppress(InputError):  # nothing is on the disk yet
            found = diagnose_recording(tmp_path / "log", ReadOptions())
    assert found.source is not None
    assert found.source.kind == "live"
    assert runner.serving


def test_a_slow_dependency_is_named_from_the_record(make_runner: MakeRunner, tmp_path: Path) -> None:
    def outside(seconds: float) -> Callable[[], None]:
        def prepare() -> None:
            with latfix.span("feature_store"):
                time.sleep(seconds)

        return prepare

    runner = make_runner(load={"record": tmp_path / "log"}, batch_window_ms=0.0)
    for k in range(300):
        runner.infer_sync({"value": 1, "payload": {"prepare": outside(0.08 if k % 20 == 3 else 0.001)}})
    runner.close()
    assert diagnose_recording(tmp_path / "log", ReadOptions(percentile=95)).verdict == "external.dependency"


def test_callers_in_line_wait_for_the_service(make_runner: MakeRunner, tmp_path: Path) -> None:
    load = {"record": tmp_path / "log", "slots": 2, "when_full": "wait"}
    runner = make_runner(load=load, warmup_requests=0)
    sleep = {"prepare": lambda: time.sleep(0.005)}
    wait([runner.submit({"value": 1, "payload": sleep}) for _ in range(40)])
    runner.close()
    rows = RunRecord.load(tmp_path / "log").requests
    assert not rows["dispatch_ns"].any()
    assert rows["prepare_wait_ns"].max() > 0.5 * rows["latency_ns"].max()


@pytest.mark.slow
def test_the_disk_stays_within_its_bound_and_the_latest_is_kept(
    make_runner: MakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_record, "_LOOK_S", 0.1)
    monkeypatch.setattr(stage_recorder, "FLUSH_INTERVAL_S", 0.05)
    folder = tmp_path / "log"
    (run := folder / "2026-11-01-run" / "segments").mkdir(parents=True)
    (run.parent / "run.json").write_text("{}")
    runner = make_runner(load={"record": folder, "record_mb": 3})
    number = 0
    for _ in range(8):
        futures = [runner.submit({"value": 1, "number": number + k}) for k in range(400)]
        number += 400
        wait(futures)
        time.sleep(0.25)
    runner.close()
    parts = live_parts(folder)
    assert len(parts) > 1
    record = load_live(folder)
    assert len(record.traffic) < number
    assert record.traffic.features["number"].max() == number - 1
    assert run.exists(), "a run next to the parts is never removed"
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 4e6
    assert not record.begins
    late = load_live(folder, last_s=0.3)
    assert 0 < len(late.traffic) < len(record.traffic)


def test_a_part_that_another_process_deleted_is_followed_by_the_next(
    make_runner: MakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Several processes write to one folder, and each deletes the oldest part when the folder is full."""
    monkeypatch.setattr(live_record, "_LOOK_S", 0.05)
    runner = make_runner(load={"record": tmp_path / "log"})
    deadline = time.monotonic() + 30

    def part() -> Path:
        while not (opened := list((tmp_path / "log").glob("*/segments/schedule.jsonl"))):
            assert time.monotonic() < deadline, "no part follows"
        return opened[0].parents[1]

    shutil.rmtree(part())
    assert part().is_dir()
    _serve(runner, 20)
    runner.close()
    assert RunRecord.load(tmp_path / "log").counts()["ok"] == 19
    assert not caplog.messages


def test_warm_up_is_not_in_it(make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(
        load={"record": tmp_path / "log"}, traffic=[{"arrival_s": 0.0, "value": 1}], warmup_requests=5
    )
    _serve(runner, 3)
    runner.close()
    record = RunRecord.load(tmp_path / "log")
    assert len(record.traffic) == 3 and not record.begins, "the first request is no first use"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"record": "/proc/nowhere"}, "cannot record there"), ({"record": "log", "record_mb": 0}, "record_mb")],
)
def test_an_unwritable_record_is_refused(make_runner: MakeRunner, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_runner(load=arguments)
