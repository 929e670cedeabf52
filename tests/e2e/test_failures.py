"""Models that die, and traffic at the edges: one line, the right exit code, and a readable folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.runners.replay import runner_process
from tests.conftest import cli, succeeded, write_workload

pytestmark = pytest.mark.slow


ADAPTER = """
import os
import time
import torch
from latfix import Request, Workload

class Deadly(Workload):
    def load(self, device):
        {load}

        class Model(torch.nn.Module):
            def forward(self, x):
                if (x == 30).any():
                    {forward}
                return x
        return Model()

    def prepare(self, request):
        {prepare}
        return torch.full((1,), float(request.id))
"""


def _adapter(*, load: str = "pass", forward: str = "pass", prepare: str = "pass") -> str:
    return ADAPTER.format(load=load, forward=forward, prepare=prepare)


def _rows(n: int, step_s: float) -> list[dict[str, Any]]:
    return [{"arrival_s": k * step_s, "id": str(k)} for k in range(n)]


def _one_line(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("latfix: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


#: The 31st request comes after more than two flushes, so something is recorded by then.
DEATHS = {
    "exit 0": ("os._exit(0)", "exit code 0"),
    # It fails, whether its end or its silent pipes are noticed first.
    "closed pipes": ("os.closerange(3, 64)", "pipe|exit code 1 "),
    "interpreter lock": ("__import__('ctypes').PyDLL(None).sleep(600)", "one holds the interpreter lock"),
}


@pytest.mark.parametrize("how", DEATHS)
def test_a_model_process_that_dies(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statement, named = DEATHS[how]
    runner = {"hang_limit_ms": 1000.0}
    folder = write_workload(
        tmp_path / "w", adapter=_adapter(forward=statement), traffic=_rows(60, 0.05), runner=runner
    )
    monkeypatch.setattr(runner_process, "STALL_S", 2.0)
    monkeypatch.setattr(runner_process, "_EXIT_TIMEOUT_S", 1.0)

    code, out, err = cli("diagnose", folder, "--out", tmp_path / "run")

    assert code == 4
    assert not out
    assert re.search(named, _one_line(err))
    assert "in forward" in (tmp_path / "run" / "runner.log").read_text() or how != "interpreter lock"
    record = RunRecord.load(tmp_path / "run")
    assert record.partial and record.meta.state == "failed"
    assert 10 <= record.counts()["ok"] <= 30, "all but the last second is kept"
    out = succeeded(cli("report", tmp_path / "run", "--json", "-"))
    document = json.loads(out)
    assert document["partial"] is True
    assert document["requests"]["ok"] == record.counts()["ok"]


def test_a_fork_that_outlives_the_model_blocks_nothing(tmp_path: Path) -> None:
    # The fork inherits the pipes, so their end does not show the runner's death.
    forked = "if os.fork() == 0: time.sleep(60); os._exit(0)"
    source = _adapter(load=forked, forward="os._exit(9)")
    folder = write_workload(tmp_path / "w", adapter=source, traffic=_rows(60, 0.02))
    start = time.monotonic()
    code, _, err = cli("diagnose", folder, "--out", tmp_path / "run")
    assert code == 4 and "exit code 9" in _one_line(err)
    assert time.monotonic() - start < 50


@pytest.mark.parametrize(
    ("source", "code", "named"),
    [
        (_adapter(load="raise OSError('no weights here')"), 4, "load('cpu') raised OSError: no weights here"),
        (_adapter(load="os._exit(5)"), 4, "exit code 5"),
        ("x = 1\nclass A: pass", 2, "not a subclass of latfix.Workload"),
    ],
)
def test_a_workload_that_does_not_load(source: str, code: int, named: str, tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", adapter=source)
    got, out, err = cli("diagnose", folder, "--out", tmp_path / "run")
    assert (got, out) == (code, "")
    assert named in _one_line(err)
    if code == 4:
        assert RunRecord.load(tmp_path / "run").counts()["ok"] == 0
    else:
        assert [file.name for file in (tmp_path / "run").iterdir()] == ["runner.log"], "it may run again"


def test_if_all_requests_fail_the_first_reason_counts(tmp_path: Path) -> None:
    source = _adapter(prepare="raise LookupError('the store is away \\ud800')")
    folder = write_workload(tmp_path / "w", adapter=source, traffic=_rows(5, 0.01))
    code, _, err = cli("diagnose", folder, "--out", tmp_path / "run")
    assert code == 4
    assert "LookupError: the store is away" in _one_line(err)
    rows = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    assert [row["status"] for row in rows] == ["error"] * 5
    assert {row["error"] for row in rows} == {"prepare raised LookupError: the store is away ? (adapter.py:18)"}


EDGES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "one request after an hour": ([{"arrival_s": 3600}], 1),
    "two hundred at zero, then ten thousand a second": (
        [{"arrival_s": max(k - 199, 0) * 1e-4, "id": str(k)} for k in range(3_000)],
        3_000,
    ),
}


@pytest.mark.parametrize("edge", EDGES)
def test_traffic_at_the_edges(edge: str, tmp_path: Path) -> None:
    rows, n = EDGES[edge]
    folder = write_workload(tmp_path / "w", traffic=rows, runner={"max_batch_size": 64, "batch_window_ms": 1.0})

    out = succeeded(cli("diagnose", folder, "--out", tmp_path / "run", "--json", "-"))
    assert json.loads(out)["requests"]["ok"] == n
    record = RunRecord.load(tmp_path / "run")
    assert record.requests["index"].tolist() == list(range(n))
    scheduled = [round(row["arrival_s"] * 1e9) for row in rows]
    assert all(abs(a - b) <= 1 for a, b in zip(record.requests["arrival_ns"].tolist(), scheduled, strict=True))


def test_options_change_the_schedule_of_a_workload_whose_folder_cannot_be_written(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", traffic=_rows(100, 0.02))
    options = ("--repeat", 2, "--speed", 4, "--duration", 0.6, "--limit", 100, "--seed", 7)
    for path in (*folder.iterdir(), folder):
        path.chmod(path.stat().st_mode & 0o555)
    try:
        code, out, err = cli("diagnose", folder, "--out", tmp_path / "run", "--json", "-", *options)
    finally:
        folder.chmod(0o755)
    assert code == 0, err
    assert {path.name for path in folder.iterdir()} <= {"adapter.py", "workload.toml", "traffic.jsonl", "__pycache__"}
    record = RunRecord.load(tmp_path / "run")
    assert json.loads(out)["requests"]["ok"] == 100
    assert record.requests["arrival_ns"].tolist() == [k * 5_000_000 for k in range(100)]
    assert record.meta.seed == 7


def test_file_size_limits_are_one_line_and_keep_the_record(tmp_path: Path) -> None:
    # A limit on the size of files stands in for a full disk: writes beyond it fail with EFBIG. Standard
    # output and error are pipes, which it does not touch.
    resource = pytest.importorskip("resource")
    folder = write_workload(tmp_path / "w", traffic=_rows(4000, 0.001))
    limit = 200_000

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    program = "import sys; from latfix.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "diagnose", str(folder), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files, timeout=100, check=False)

    assert done.returncode == 4, done.stderr
    assert "File too large" in _one_line(done.stderr)
    record = RunRecord.load(tmp_path / "run")
    assert record.partial
    assert 0 < record.counts()["ok"] < 4000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB, if this test may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small disk needs root to mount it")
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_full_from_the_start(small_disk: Path, tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w")
    (small_disk / "filler").write_bytes(bytes(20 << 20))
    code, out, err = cli("diagnose", folder, "--out", small_disk / "run")
    assert (code, out) == (2, "")
    assert "MiB free" in _one_line(err)


FILL = """
def fill_disk():
    with open({filler!r}, "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
"""


def test_a_disk_full_during_the_run(small_disk: Path, tmp_path: Path) -> None:
    # The 31st request fills the disk, after more than one flush.
    source = _adapter(forward="fill_disk()") + FILL.format(filler=str(small_disk / "filler"))
    folder = write_workload(tmp_path / "w", adapter=source, traffic=_rows(200, 0.03))

    code, _, err = cli("diagnose", folder, "--out", small_disk / "run")

    assert code == 4
    assert "No space left on device" in _one_line(err)
    record = RunRecord.load(small_disk / "run")
    assert record.partial
    assert 0 < record.counts()["ok"] < 200
    out = succeeded(cli("report", small_disk / "run", "--out", tmp_path / "report", "--json", "-"))
    assert json.loads(out)["requests"]["ok"] == record.counts()["ok"]
