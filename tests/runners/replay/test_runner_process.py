"""Messages between latfix and its runner, and the life of a runner process."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.cli.shared.options import TrafficOptions, load_traffic
from latfix.config.workload_toml import load_spec
from latfix.errors import RunnerError
from latfix.runners.replay import runner_main, runner_process
from latfix.runners.replay.pipe_protocol import LineReader, LineWriter
from latfix.runners.replay.run_session import Replay, prepare_folder, run
from latfix.runners.replay.runner_process import RunnerProcess
from latfix.settings import RunnerSettings
from tests.conftest import write_workload

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    messages=st.lists(st.dictionaries(st.text(max_size=8), _JSON, max_size=4), max_size=5), chunk=st.integers(1, 40)
)
def test_messages_are_reassembled_from_any_chunks(messages: list[dict[str, object]], chunk: int) -> None:
    read, write = os.pipe()
    whole_read, whole_write = os.pipe()
    writer, reader = LineWriter(whole_write), LineReader(read)
    for message in messages:
        writer.send(message)
    os.close(whole_write)
    with open(whole_read, "rb") as whole:  # noqa: PTH123
        data = whole.read()
    got = []
    for start in range(0, len(data), chunk):
        os.write(write, data[start : start + chunk])
        got += reader.read()
    assert got == messages and not reader.ended
    os.close(write)
    assert reader.read() == [] and reader.ended
    os.close(read)


def test_a_writer_without_a_reader_is_silent() -> None:
    read, write = os.pipe()
    os.close(read)
    LineWriter(write).send({"event": "status"})
    os.close(write)


def _process(workload: Path, log: Path, **settings: object) -> RunnerProcess:
    return RunnerProcess(workload, "adapter:Plain", RunnerSettings(device="cpu", **settings), log)  # type: ignore[arg-type]


FORKING = """
import os
import time
from multiprocessing.shared_memory import SharedMemory
import torch
from latfix import Workload

class Plain(Workload):
    def load(self, device):
        self.shared = SharedMemory(create=True, size=1)
        (self.folder / "shared").write_text(self.shared.name)
        if not (child := os.fork()):
            time.sleep(600)
        (self.folder / "child").write_text(str(child))
        return torch.nn.Identity()

    def prepare(self, request):
        return torch.ones(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["", "os.setsid(); "])
def test_it_starts_reports_itself_and_ends_with_its_children(leaves: str, tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "w", adapter=FORKING.replace("time.sleep", f"{leaves}time.sleep"))
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with _process(workload, tmp_path / "log", env={"LATFIX_TEST": "1"}) as process:
        ready = process.start()
        assert process._process is not None
        pid = process._process.pid
        child = int((workload / "child").read_text())
        assert Path(f"/proc/{child}").exists()
        assert ready["device"] == "cpu"
        assert ready["machine"]["cores"] >= 1
        assert ready["default_collate"] is True and ready["evaluates"] is False
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert {b"LATFIX_TEST=1", b"PYTHONHASHSEED=0"} <= set(environment)
        # Nothing is timed after a profile, and tearing CUPTI down may crash with captured graphs.
        assert not any(variable.startswith(b"TEARDOWN_CUPTI") for variable in environment)
        # A stopped process does nothing; after it continues, it still answers.
        process.pause()
        process.resume()
        process.close()
        process.close()
    assert not Path(f"/proc/{pid}").exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    assert not (Path("/dev/shm") / (workload / "shared").read_text().lstrip("/")).exists()
    # The child would take resources from the service that is measured next.
    state = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and " Z " not in state.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not state.exists() or " Z " in state.read_text()


@pytest.mark.slow
def test_a_service_that_replaces_the_clock_is_refused(tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "w", adapter=FORKING + "\ntime.perf_counter_ns = lambda: 5\n")
    with (
        _process(workload, tmp_path / "log") as process,
        pytest.raises(RunnerError, match=r"adapter:Plain: found time.perf_counter_ns replaced"),
    ):
        process.start()


@pytest.mark.slow
def test_a_run_records_unit_costs_and_the_cost_of_probes(tmp_path: Path) -> None:
    spec = load_spec(str(write_workload(tmp_path / "w")))
    replay = Replay(spec=spec, traffic=load_traffic(spec, TrafficOptions()), settings=spec.settings)
    record = run(tmp_path / "run", replay)
    names = {"minor_fault_ns", "minor_fault_low_ns", "minor_fault_high_ns", "unmapping_mib_ns"}
    calibration, overhead = record.meta.calibration, record.meta.overhead
    assert names <= set(calibration)
    series = set(record.samples["series"])
    assert {"gil.wait_ns", "gil.switch_interval_ns", "thread.latfix-worker-0.cpu_ns"} <= series
    assert {f"cost.{name}" for name in names} <= series
    assert overhead["process_counters_us_per_request"] > 0
    assert overhead["lock_probe_core_share"] > 0
    assert overhead["memory_readings"] >= 2 * len(record.batches["batch_id"])
    assert overhead["per_request_us"] > overhead["process_counters_us_per_request"]
    assert (record.requests["prepare_process_cpu_ns"] > 0).all()


def test_the_end_of_an_abandoned_command_is_skipped(tmp_path: Path) -> None:
    """A profile that took too long ends while the next command runs."""
    process = RunnerProcess(tmp_path, "adapter:Plain", RunnerSettings(), tmp_path / "log")
    process._reader, process._process = mock.Mock(ended=False), mock.Mock()
    process._writer = mock.Mock()
    process._unread.extend(
        [
            {"event": "done", "do": "device_profile", "profile": {}},
            {"event": "status", "done": 1},
            {"event": "done", "do": "evaluate", "score": 0.5},
        ]
    )
    events: list[Any] = []
    assert process.command("evaluate", on_event=events.append)["score"] == 0.5
    assert [event["event"] for event in events] == ["status"]


def test_a_late_status_does_not_prolong_the_wait_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = RunnerProcess(tmp_path, "adapter:Plain", RunnerSettings(), tmp_path / "log")
    read, write = os.pipe()
    process._reader, process._process = LineReader(read), mock.Mock(poll=lambda: None)
    process._unread.append({"event": "status", "done": 1})
    seconds = itertools.count(0.0, 10.0)
    monkeypatch.setattr(runner_process, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(runner_process, "_LOOK_S", 0.0)
    with pytest.raises(RunnerError, match="did not answer within 15 s; see"):
        process.wait_for_end()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("begun", "named"),
    [(False, "did not start within 70 s; a larger --budget waits longer"), (True, "has responded for 300 s")],
)
def test_a_service_that_compiles_before_its_replay_has_the_time_of_its_start(
    begun: bool, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a loaded service that says nothing once it is asked to replay, or nothing more once the replay began
    process = RunnerProcess(tmp_path, "adapter:Plain", RunnerSettings(), tmp_path / "log")
    read, write = os.pipe()
    process._reader, process._writer = LineReader(read), mock.Mock()
    process._process = mock.Mock(poll=lambda: None, pid=0)
    process._unread.extend([{"event": "status", "done": 1}] * begun)
    seconds = itertools.count(0.0, 10.0)
    fake = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(runner_process, "time", fake)
    monkeypatch.setattr(runner_process, "_LOOK_S", 0.0)
    monkeypatch.setattr(process, "_signal", lambda _: None)
    # THEN the limit of its start holds until the replay begins
    with pytest.raises(RunnerError, match=named):
        process.replay(tmp_path, starts_s=70.0)
    os.close(read)
    os.close(write)


@pytest.mark.slow
def test_an_interrupt_right_after_the_start_is_not_forgotten(tmp_path: Path) -> None:
    # GIVEN a replay of a quarter of an hour
    rows = [{"arrival_s": k * 90.0} for k in range(10)]
    workload = write_workload(tmp_path / "w", traffic=rows)
    spec = load_spec(str(workload))
    replay = Replay(spec=spec, traffic=load_traffic(spec, TrafficOptions()), settings=spec.settings)
    folder = prepare_folder(tmp_path / "run", replay)
    with RunnerProcess(spec.folder, spec.entry, spec.settings, folder.path / "runner.log") as process:
        process.start()
        assert process._writer is not None
        for _ in range(2):  # the second replay finds the process ready too
            # WHEN it is interrupted right after it started
            process._writer.send({"do": "replay", "folder": str(folder.path), "first": True, "most_s": 1e9})
            process.interrupt()
            # THEN it still ends
            assert process.wait_for_end(timeout_s=60)["state"] == "interrupted"


@pytest.mark.parametrize(
    ("python", "log", "reason"),
    [("no such python", "log", "could not be started"), ("", "no folder/log", "No such file or directory")],
)
def test_a_process_that_cannot_be_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    python: str,
    log: str,
    reason: str,
) -> None:
    if python:
        monkeypatch.setattr(sys, "executable", str(tmp_path / python))
    with (
        _process(write_workload(tmp_path / "w"), tmp_path / log) as process,
        pytest.raises(RunnerError, match=reason),
    ):
        process.start()


def test_a_library_that_cannot_be_loaded_is_no_fault_of_the_record() -> None:
    library = OSError("libcublas.so.12: cannot open shared object file")
    assert runner_main._disk_words(library) == f"the runner failed: OSError: {library}"
    assert "free space" in runner_main._disk_words(OSError(errno.ENOSPC, "No space left on device"))


def test_a_runner_imports_no_module_that_decides() -> None:
    """It must start quickly, and all that it loads occupies the measured process's memory."""
    look = "import sys, latfix.runners.replay.runner_main; print([n for n in sys.modules if n.startswith('latfix')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    for part in ("forecast", "attribution", "profilers.causes", "runners.fixes", "runners.optimize", "reports"):
        assert part not in done.stdout, part
