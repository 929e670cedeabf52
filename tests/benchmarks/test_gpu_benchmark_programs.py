"""What the benchmarks for a GPU make of programs that they start: tests, optimizations, and the cost of probes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import probe_cost
from benchmarks.gpu import child, samples
from benchmarks.gpu.commands import ROOT, Ended
from benchmarks.gpu.parts import BEYOND_S
from latfix.profilers.gpu.nvml_api import NvmlRefused
from latfix.runners.gpu import async_batches as flights
from tests.runners.gpu.simulated import SimulatedEvent
from tests.runners.gpu.test_async_batches import Flown

# tests

_TESTS = """
import pytest, time, warnings

@pytest.mark.parametrize("text", ["a b", "c"])
def test_passes(text): warnings.warn("new", FutureWarning)

def test_fails(): assert False

@pytest.mark.skip(reason="no such device")
def test_skipped(): pass

@pytest.fixture
def broken():
    yield
    raise OSError("in the end")

def test_breaks(broken): pass

def test_hangs(): time.sleep(HANG)
"""


def _pytest(folder: Path, hang: float) -> str:
    """What pytest prints; until the test that hangs, where it does."""
    file = folder / "tests" / "gpu" / "test_some.py"
    file.parent.mkdir(parents=True)
    file.write_text(_TESTS.replace("HANG", str(hang)))
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    output = folder / "output"
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    with output.open("w") as file_, subprocess.Popen([*command, "tests/gpu"], cwd=folder, stdout=file_) as process:
        while process.poll() is None:
            time.sleep(0.05)
            if hang and "test_hangs" in output.read_text():
                process.kill()
    return output.read_text()


def test_outcomes_are_read_from_what_pytest_prints(tmp_path: Path) -> None:
    found = child.outcomes(_pytest(tmp_path, 0))
    assert found["passed"] == 3 and found["skipped_tests"] == 1 and found["under_way"] == []
    assert found["not_passed"] == [
        "tests/gpu/test_some.py::test_fails",
        "tests/gpu/test_some.py::test_breaks",
    ]


def test_of_tests_that_were_stopped_the_one_under_way_is_told(tmp_path: Path) -> None:
    found = child.outcomes(_pytest(tmp_path, 120))
    assert found["passed"] == 2 and found["under_way"] == ["tests/gpu/test_some.py::test_hangs"]


def test_the_test_that_is_a_part_of_its_own_is_left_out() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["--deselect", child._OWN_PART, "tests/gpu/test_device_memory.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "(1 deselected)" in done.stdout, done.stdout


# samples


def test_an_optimization_ends_within_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(command: list[str], seconds: float) -> Ended:
        file = Path(command[command.index("--json") + 1])
        file.write_text(json.dumps({"verdict": "improved", "steps": [], "layers": {}}))
        asked.update(budget=float(command[command.index("--budget") + 1].rstrip("s")), seconds=seconds)
        return Ended(exit_code=0, output="", seconds=1.0, stopped=False)

    monkeypatch.setattr(samples, "run", run)
    result = samples.optimized("vision", time.monotonic() + 200)
    assert asked["budget"] + BEYOND_S <= 200.5 and asked["seconds"] <= 200
    assert result["verdict"] == "improved" and result["exit_code"] == 0 and "layers" not in result


@pytest.mark.parametrize("error", [ImportError("no pynvml"), NvmlRefused(9, "Driver Not Loaded")])
def test_a_sample_runs_where_nvml_cannot_be_recorded(tmp_path: Path, error: Exception) -> None:
    def refuses() -> Any:
        raise error

    with samples.recorded_nvml(tmp_path / "nvml.jsonl", refuses) as why:
        assert why == str(error)


def test_nvml_is_recorded_meanwhile(tmp_path: Path) -> None:
    def refuses(*_: Any) -> Any:
        raise NvmlRefused(3, "Not Supported")

    calls = SimpleNamespace(ask=refuses, close=lambda: None)
    with samples.recorded_nvml(tmp_path / "nvml.jsonl", lambda: calls) as why:
        assert why == ""
        time.sleep(1.2)
    assert len((tmp_path / "nvml.jsonl").read_text().splitlines()) > 10


# probes


def _counting(calls: list[int], function: Callable[..., None]) -> Callable[..., None]:
    def counted(*arguments: Any) -> None:
        calls.append(1)
        function(*arguments)

    return counted


@pytest.mark.parametrize(("overlap", "least"), [(False, 1), (True, 3)])
def test_without_probes_only_events_that_are_waited_for_are_recorded(
    monkeypatch: pytest.MonkeyPatch, overlap: bool, least: int
) -> None:
    recorded: list[int] = []
    record = SimulatedEvent.record
    monkeypatch.setattr(SimulatedEvent, "record", _counting(recorded, record))
    read: list[str] = []
    monkeypatch.setattr("latfix.runners.engine.engine.cuda_counters", read.append)
    with_probes = Flown(24, overlap=overlap)
    assert with_probes.wrong() == [] and read
    # Each event is recorded once when it is made.
    assert len(recorded) - 6 * flights._READY == (4 + 2 * overlap) * len(with_probes.batches)
    recorded.clear()
    read.clear()
    with probe_cost._without_probes(overlap=overlap):
        served = Flown(24, overlap=overlap)
    assert served.wrong() == [] and read == []
    assert len(recorded) - least * flights._READY == least * len(served.batches)
    assert not served.batches["copy_in_ns"].any(), "nothing was read"


def test_probes_are_measured_under_a_profiles_load(tmp_path: Path, write_workload: Callable[..., Path]) -> None:
    folder = write_workload(tmp_path / "w", traffic=[{"arrival_s": k * 0.1} for k in range(11)])
    profile = "[profile.gpu.runner]\nmax_batch_size = 3\n[profile.gpu.traffic]\nspeed = 4.0\nrepeat = 2\n"
    with (folder / "workload.toml").open("a") as file:
        file.write(profile)
    spec, traffic = probe_cost._workload(tmp_path, str(folder), "gpu", 40.0, 8.0)
    assert spec.settings.max_batch_size == 3 and len(traffic) == 22
    assert traffic.duration_s == pytest.approx(2.1 / 4)
    spec, traffic = probe_cost._workload(tmp_path, str(folder), "", 40.0, 8.0)
    assert len(traffic) == 11 and traffic.duration_s == pytest.approx(1.0)
