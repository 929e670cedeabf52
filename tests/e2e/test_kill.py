"""Runs that are killed or interrupted at random moments: the record is kept, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from tests.conftest import cli, succeeded, write_workload

pytestmark = pytest.mark.slow


#: Tests started in the background ignore Ctrl-C, and so do their children.
PROGRAM = """
import signal, sys
from latfix.cli.app import main
from latfix.runners.replay import runner_process
if "--impatient" in sys.argv:
    sys.argv.remove("--impatient")
    runner_process._EXIT_TIMEOUT_S = 1.0
    runner_process.RunnerProcess.wait_for_end.__defaults__ = (2.0,)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
#: Logs the service's answers and their times independently of latfix's own record.
ADAPTER = """
import os
import time
import torch
from latfix import Request, Workload

class Steady(Workload):
    def load(self, device):
        self.log = os.open(self.folder / "answered", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return torch.nn.Identity()

    def prepare(self, request):
        return torch.ones(4)

    def finish(self, output, request):
        os.write(self.log, f"{request.id} {time.time()}\\n".encode())
        return output
"""
SCHEDULED = 6000


class Started:
    """``latfix diagnose`` in its own process, and its runner."""

    def __init__(self, workload: Path, folder: Path, *options: str) -> None:
        self.workload = workload
        self.folder = folder
        command = [sys.executable, "-c", PROGRAM, "diagnose", str(workload), "--out", str(folder), *options]
        self.parent = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def children(self) -> list[int]:
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{self.parent.pid}/task").iterdir()
            return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        return []

    def wait_for_answers(self, count: int) -> None:
        """Wait until a number of requests have been answered."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.parent.poll() is not None:
                raise AssertionError(f"it ended by itself: {self.parent.communicate()}")
            with contextlib.suppress(OSError):
                if (self.workload / "answered").read_bytes().count(b"\n") >= count:
                    return
            time.sleep(0.02)
        raise AssertionError("no answers")

    def answered_before(self, moment: float) -> set[str]:
        lines = (self.workload / "answered").read_text().splitlines()
        return {line.split()[0] for line in lines if float(line.split()[1]) < moment}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    running: list[Started] = []

    def begin(*options: str) -> Started:
        rows = [{"arrival_s": k * 0.005, "id": str(k)} for k in range(SCHEDULED)]
        workload = write_workload(tmp_path / "w", adapter=ADAPTER, traffic=rows, runner={"warmup_requests": 3})
        running.append(Started(workload, tmp_path / "run", *options))
        return running[-1]

    yield begin
    for one in running:
        for pid in [*one.children(), one.parent.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.parent.communicate()


def _gone(pid: int) -> bool:
    """True if a process has ended, including a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _await_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if all(_gone(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"runner processes stayed behind: {[pid for pid in pids if not _gone(pid)]}")


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _document(*arguments: object) -> dict[str, Any]:
    out = succeeded(cli(*arguments, "--json", "-"))
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("victim", ["runner", "latfix"])
def test_a_killed_run_is_kept_but_for_its_last_second(
    victim: str, start: Callable[[], Started], tmp_path: Path
) -> None:
    # GIVEN a run in the middle of its traffic
    run = start()
    chance = random.Random(victim)
    run.wait_for_answers(300)
    runners = run.children()
    assert len(runners) == 1
    time.sleep(chance.uniform(0, 1.2))

    # WHEN it is killed
    killed_at = time.time()
    _kill({"runner": runners, "latfix": [run.parent.pid]}[victim])
    _, err = run.parent.communicate(timeout=60)

    # THEN no process stays behind, and the surviving process reports it in one line
    _await_gone(runners)
    if victim == "runner":
        assert run.parent.returncode == 4
        assert "killed by SIGKILL" in err.splitlines()[-1] and "Traceback" not in err
    # AND every answer that is a second old is in the record, which shows its state
    record = RunRecord.load(run.folder)
    answered = record.measured & (record.requests["status"] == Status.OK)
    kept = {record.traffic.ids[k] for k in record.requests["index"][answered].tolist()}
    lost = run.answered_before(killed_at - 1.0) - kept
    assert not lost
    assert record.partial and 0 < len(kept) < SCHEDULED
    assert record.unrecorded() == SCHEDULED - int(record.measured.sum())
    # AND the commands read it
    document = _document("report", run.folder, "--out", tmp_path / "report")
    assert document["partial"] is True
    assert document["requests"]["ok"] == len(kept)
    assert any("partial" in note or "stopped" in note or "before" in note for note in document["notes"])
    compared = _document("compare", run.folder, run.folder)
    assert compared["before"]["requests"]["ok"] == len(kept)


@pytest.mark.parametrize("seed", range(2))
def test_killed_before_the_first_answer_it_is_readable_or_has_a_reason(
    seed: int, start: Callable[[], Started], tmp_path: Path
) -> None:
    run = start()
    time.sleep(random.Random(seed).uniform(0.2, 3.0))
    runners = run.children()
    run.parent.kill()
    run.parent.communicate(timeout=60)
    _await_gone(runners)

    code, out, err = cli("report", run.folder, "--out", tmp_path / "report", "--json", "-")

    assert "Traceback" not in err
    if code == 0:
        assert json.loads(out)["partial"] is True
    else:
        assert code == 2 and err.startswith("latfix: ") and err.count("\n") == 1


def test_ctrl_c_ends_it_in_order(start: Callable[..., Started], tmp_path: Path) -> None:
    """The folder is closed, and CI's reports are written. Other signals become Ctrl-C: tests/cli/test_app.py."""
    run = start("--junit", str(tmp_path / "junit.xml"))
    run.wait_for_answers(300)
    runners = run.children()

    os.kill(run.parent.pid, signal.SIGINT)
    interrupted_at = time.time()
    out, err = run.parent.communicate(timeout=60)

    assert run.parent.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted" in out
    assert "interrupted" in (tmp_path / "junit.xml").read_text()
    _await_gone(runners)
    names = {path.name for path in run.folder.iterdir()}
    assert {"requests.parquet", "diagnosis.json", "report.html", "causes.parquet"} <= names
    assert "segments" not in names
    record = RunRecord.load(run.folder)
    assert record.meta.state == "interrupted" and record.partial
    kept = {record.traffic.ids[k] for k in record.requests["index"][record.measured].tolist()}
    assert not run.answered_before(interrupted_at) - kept, "an orderly end loses nothing"
    assert _document("report", run.folder)["requests"]["ok"] == record.counts()["ok"]


def test_ctrl_c_while_the_model_loads(start: Callable[..., Started]) -> None:
    run = start("--impatient")
    adapter = run.workload / "adapter.py"
    adapter.write_text(ADAPTER.replace("return torch.nn.Identity()", "time.sleep(60)"))
    deadline = time.monotonic() + 60
    while not (run.workload / "answered").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    runners = run.children()
    time.sleep(0.2)

    os.kill(run.parent.pid, signal.SIGINT)
    _, err = run.parent.communicate(timeout=60)

    assert run.parent.returncode == 130, err
    assert err.splitlines()[-1] == "latfix: interrupted"
    _await_gone(runners)
    assert RunRecord.load(run.folder).counts()["ok"] == 0


def test_ctrl_c_at_a_model_that_hangs(start: Callable[..., Started]) -> None:
    run = start("--impatient")
    run.wait_for_answers(300)
    runners = run.children()
    os.kill(runners[0], signal.SIGSTOP)  # like a model that never releases the interpreter lock

    os.kill(run.parent.pid, signal.SIGINT)
    _, err = run.parent.communicate(timeout=90)

    assert run.parent.returncode == 130, err
    _await_gone(runners)
    assert RunRecord.load(run.folder).counts()["ok"] > 0
