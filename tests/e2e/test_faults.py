"""A service with many faults: each affects one request, and the run continues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.runners.replay import runner_process
from latfix.stages import STAGES
from tests.conftest import cli, write_workload

pytestmark = pytest.mark.slow


ADAPTER = """
import resource, sys, threading, time
import torch
from latfix import Workload

def all_memory():
    pages = int(open("/proc/self/statm").read().split()[0])
    usual = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), usual[1]))
    try:
        return [bytearray(16 << 20) for _ in range(64)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, usual)

def thread_that_dies():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

def step():
    time.time = lambda usual=time.time: usual() - 86400

FAULTS = {
    10: lambda x: [][0],
    11: lambda x: sys.exit(3),
    12: lambda x: x[:0],
    13: lambda x: x * float("nan"),
    14: lambda x: all_memory(),
    15: lambda x: [print("x" * 99_999) for _ in range(100)] and x,
    17: lambda x: thread_that_dies() or x,
    18: lambda x: step() or x,
}

class Model(torch.nn.Module):
    def forward(self, x):
        return FAULTS.get(int(x[0, 0]), lambda x: x)(x)

class Faulty(Workload):
    def load(self, device):
        return Model()

    def prepare(self, request):
        return torch.full((2,), float(request.id))
"""
#: Messages of the requests that cannot be answered.
ERRORS = {10: "IndexError", 11: "SystemExit", 12: "", 14: "MemoryError"}
LOG_BYTES = 1 << 20


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, str, str]]:
    """The run's folder, and the command's result."""
    base = tmp_path_factory.mktemp("faults")
    rows = [{"arrival_s": k * 0.03, "id": str(k)} for k in range(40)]
    workload = write_workload(base / "w", adapter=ADAPTER, traffic=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_process, "LOG_BYTES", LOG_BYTES)
        answer = cli("diagnose", workload, "--out", base / "run", "--json", "-")
    return base, answer


def test_each_fault_is_one_requests_and_all_others_are_answered(faulty: tuple[Path, tuple[int, str, str]]) -> None:
    base, (code, _, err) = faulty
    assert code == 0, err
    rows = {row["id"]: row for row in pq.read_table(base / "run" / "requests.parquet").to_pylist()}
    failed = {int(name): row["error"] for name, row in rows.items() if row["status"] != "ok"}
    assert set(failed) == set(ERRORS) and len(rows) == 40
    assert all(words in failed[k] for k, words in ERRORS.items()), failed


def test_a_step_of_the_clock_changes_no_latency(faulty: tuple[Path, tuple[int, str, str]]) -> None:
    record = RunRecord.load(faulty[0] / "run")
    latency = record.requests["latency_ns"]
    assert (latency > 0).all() and latency.max() < 3600e9
    assert np.array_equal(sum(record.requests[f"{stage}_ns"] for stage in STAGES), latency)


def test_the_output_of_a_model_is_kept_in_part(faulty: tuple[Path, tuple[int, str, str]]) -> None:
    log = faulty[0] / "run" / "runner.log"
    assert log.stat().st_size < 2 * LOG_BYTES
    assert log.read_bytes().startswith(b"latfix: ")
    assert "ZeroDivisionError" in log.read_text(), "the end is kept"
