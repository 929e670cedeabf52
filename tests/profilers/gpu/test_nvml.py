"""NVML through sessions: readings, growth of counters, and unsupported calls.

Most sessions are written by hand in the shapes of NVML's structures. One was recorded: an NVIDIA H200 (driver 580,
2026-11-26), polled 20 times a second by a process that multiplied bf16 matrices for 3 s, paused for 2.5 s, and did
both again.
"""

from __future__ import annotations

import ctypes
import gzip
import io
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu.nvml_recording import RecordingNvml
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlCalls, NvmlRefused, plain
from tests.profilers.gpu.replayed_nvml import ReplayedNvml

Session = Callable[..., ReplayedNvml]
_PID = 4711


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session from entries of a recording."""

    def make(*entries: Sequence[Mapping[str, Any]]) -> ReplayedNvml:
        path = tmp_path / "session.jsonl"
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in chain(*entries)))
        return ReplayedNvml(path)

    return make


def _answers(call: str, *answers: Any, arguments: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    entry = {"t_ns": 0, "took_ns": 0, "call": call, "arguments": list(arguments)}
    return [{**entry, "answer": answer} for answer in answers]


def test_a_poll_reads_load_clocks_and_memory(session: Session) -> None:
    calls = session(
        _answers("DeviceGetUtilizationRates", {"gpu": 73, "memory": 41}),
        _answers("DeviceGetMemoryInfo", {"total": 1000, "free": 400, "used": 600}),
        _answers("DeviceGetPowerUsage", 412_500),
        _answers("DeviceGetTemperature", 61, arguments=(0, 0)),
        _answers("DeviceGetClockInfo", 1980, arguments=(0, 1)),
        _answers("DeviceGetClockInfo", 3201, arguments=(0, 2)),
        _answers("DeviceGetCurrentClocksEventReasons", 4),
        _answers("DeviceGetCurrPcieLinkGeneration", 5),
        _answers("DeviceGetCurrPcieLinkWidth", 16),
    )
    assert Nvml(calls, pid=_PID).read() == {
        "nvml.gpu_util": 73.0,
        "nvml.memory_util": 41.0,
        "nvml.memory_used_bytes": 600.0,
        "nvml.memory_total_bytes": 1000.0,
        "nvml.power_w": 412.5,
        "nvml.temperature_c": 61.0,
        "nvml.sm_clock_mhz": 1980.0,
        "nvml.mem_clock_mhz": 3201.0,
        "nvml.clock_event_reasons": 4.0,
        "nvml.pcie_generation": 5.0,
        "nvml.pcie_width": 16.0,
    }


def test_counters_are_reported_as_growth(session: Session) -> None:
    times = [{"violationTime": ns} for ns in (5_000, 65_000, 65_000)]
    calls = session(
        _answers("DeviceGetPcieReplayCounter", 7, 7, 9, 1),
        _answers("DeviceGetViolationStatus", *times, arguments=(0, 0)),
        _answers("DeviceGetTotalEccErrors", 2, 3, 3, arguments=(0, 0, 0)),
    )
    reader = Nvml(calls, pid=_PID)
    assert reader.read() == {}, "the first reading is the baseline"
    assert reader.read() == {"nvml.violation_power_ns": 60_000.0, "nvml.pcie_replays": 0.0, "nvml.ecc_corrected": 1.0}
    assert [reader.read()["nvml.pcie_replays"] for _ in range(2)] == [2.0, 0.0], "a reset is no negative growth"


def test_the_older_function_for_clock_reasons_is_used(session: Session) -> None:
    calls = session(_answers("DeviceGetCurrentClocksThrottleReasons", 0x40))
    assert Nvml(calls, pid=_PID).read() == {"nvml.clock_event_reasons": 64.0}


def test_own_and_other_processes_are_separated(session: Session) -> None:
    processes = [{"pid": _PID, "usedGpuMemory": 100}, {"pid": 9, "usedGpuMemory": 30}]
    samples = [
        {"pid": _PID, "timeStamp": 1_700_000_000_000_000, "smUtil": 60},
        {"pid": 9, "timeStamp": 1_700_000_000_000_500, "smUtil": 25},
        {"pid": 12, "timeStamp": 1_700_000_000_000_400, "smUtil": 99},
    ]
    calls = session(
        _answers("DeviceGetComputeRunningProcesses", processes),
        _answers("DeviceGetProcessUtilization", samples, arguments=(0, 0)),
    )
    reader = Nvml(calls, pid=_PID)
    wanted = {
        "nvml.processes": 2.0,
        "nvml.memory_own_bytes": 100.0,
        "nvml.memory_others_bytes": 30.0,
        "nvml.own_sm_util": 60.0,
        "nvml.others_sm_util": 25.0,
    }
    assert reader.read() == wanted, "ended processes do not count"
    assert reader.read() == wanted, "the replay ignores the begin of requested samples"


@pytest.mark.parametrize(("own", "used"), [((90_001, 90_002), (100, None)), ((_PID, 9), (0, 0))])
def test_unknown_processes_in_a_container_are_left_out(
    session: Session, own: tuple[int, int], used: tuple[int | None, int | None]
) -> None:
    """The driver uses the host's process numbers; even if this process's is the same, its memory is unknown."""
    processes = [{"pid": pid, "usedGpuMemory": size} for pid, size in zip(own, used, strict=True)]
    samples = [{"pid": 90_001, "timeStamp": 1_700_000_000_000_000, "smUtil": 60}]
    calls = session(
        _answers("DeviceGetComputeRunningProcesses", processes),
        _answers("DeviceGetProcessUtilization", samples, arguments=(0, 0)) if _PID in own else [],
    )
    assert Nvml(calls, pid=_PID).read() == {"nvml.processes": 2.0}


class _Sampled:
    """Utilization samples like a driver's: at separate times per process, after the requested begin."""

    def __init__(self, *polls: Sequence[tuple[int, int, int]]) -> None:
        self._polls = iter(polls)
        self.since: list[int] = []

    def ask(self, function: str, *arguments: int) -> Any:
        if function == "DeviceGetComputeRunningProcesses":
            return [{"pid": pid, "usedGpuMemory": None} for pid in (_PID, 9)]
        if function != "DeviceGetProcessUtilization":
            raise NvmlRefused(3, "Not Supported")
        self.since.append(arguments[1])
        samples = [{"pid": pid, "timeStamp": at, "smUtil": util} for pid, at, util in next(self._polls)]
        return [one for one in samples if int(one["timeStamp"]) > arguments[1]]

    def close(self) -> None: ...


def _util(reader: Nvml) -> tuple[float, float]:
    result = reader.read()
    return result["nvml.own_sm_util"], result["nvml.others_sm_util"]


def test_a_process_with_later_samples_is_not_missed() -> None:
    """Processes are sampled at separate times: a sample older than another process's newest must not be lost."""
    second, start = 1_000_000, 1_700_000_000_000_000
    calls = _Sampled(
        [(_PID, start + 2 * second, 50), (9, start + second, 40)],
        [(_PID, start + 3 * second, 55), (9, start + 2 * second - 1, 42)],
        [(_PID, start + 4 * second, 60)],
        [(_PID, start + 5 * second, 65)],
    )
    reader = Nvml(calls, pid=_PID)
    assert [_util(reader) for _ in range(4)] == [(50, 40), (55, 42), (60, 42), (65, 0)], "valid for three seconds"
    assert calls.since == [0, start, start + second, start + 2 * second]


def test_a_utilization_above_100_percent_is_ignored() -> None:
    """Drivers report some samples of thousands of percent."""
    start = 1_700_000_000_000_000
    calls = _Sampled(
        [(_PID, start, 50), (9, start, 30)],
        [(_PID, start + 1000, 60), (9, start + 1000, 4_294)],
        [(_PID, start + 2000, 250), (9, start + 2000, 100)],
    )
    reader = Nvml(calls, pid=_PID)
    assert [_util(reader) for _ in range(3)] == [(50, 30), (60, 30), (60, 100)]


def test_the_performance_monitor(session: Session) -> None:
    numbers = (0, 2, 3, 5, 10)
    calls = session(_answers("GpmMetrics", {}, {"2": 71.5, "10": 33.0}, arguments=numbers))
    reader = Nvml(calls, pid=_PID)
    assert reader.read() == {}, "the first sample is the baseline"
    assert reader.read() == {"nvml.gpm_sm_util": 71.5, "nvml.gpm_dram_util": 33.0}


class _Counting:
    def __init__(self, code: int) -> None:
        self.calls: list[str] = []
        self._code = code

    def ask(self, function: str, *_arguments: int) -> Any:
        self.calls.append(function)
        raise NvmlRefused(self._code, "no")

    def close(self) -> None: ...


@pytest.mark.parametrize(("code", "again"), [(3, False), (999, True)])
def test_unsupported_calls_are_not_repeated_and_other_failures_are(code: int, again: bool) -> None:
    calls = _Counting(code)
    reader = Nvml(calls, pid=_PID)
    reader.read()
    first = len(calls.calls)
    assert reader.read() == {} and first > 10 and (len(calls.calls) > first) == again


def test_pcie_throughput_is_read_seldom(session: Session) -> None:
    calls = session(
        _answers("DeviceGetPcieThroughput", 10, arguments=(0, 0)),
        _answers("DeviceGetPcieThroughput", 20, arguments=(0, 1)),
    )
    reader = Nvml(calls, pid=_PID)
    read = [reader.read() for _ in range(6)]
    assert read[0] == read[5] == {"nvml.pcie_sent_bytes_per_s": 10_240.0, "nvml.pcie_received_bytes_per_s": 20_480.0}
    assert read[1] == {}


class _Structure(ctypes.Structure):
    _fields_ = (("busId", ctypes.c_char * 8), ("domain", ctypes.c_uint))


def test_a_recorded_session_is_replayed(tmp_path: Path) -> None:
    class Live:
        def ask(self, function: str, *_arguments: int) -> Any:
            if function == "DeviceGetFanSpeed":
                raise NvmlRefused(3, "Not Supported")
            return plain({"DeviceGetPciInfo": _Structure(b"0000:01", 7), "DeviceGetName": b"H"}[function])

        def close(self) -> None: ...

    file = io.StringIO()
    ticks = iter(range(0, 1000, 5))
    live: NvmlCalls = RecordingNvml(Live(), file, clock=lambda: next(ticks))
    answers = [live.ask("DeviceGetPciInfo", 0), live.ask("DeviceGetName", 0)]
    with pytest.raises(NvmlRefused):
        live.ask("DeviceGetFanSpeed", 0)
    assert answers == [{"busId": "0000:01", "domain": 7}, "H"]
    (tmp_path / "session.jsonl").write_text(file.getvalue())
    assert all(json.loads(line)["took_ns"] == 5 for line in file.getvalue().splitlines())
    again = ReplayedNvml(tmp_path / "session.jsonl")
    assert [again.ask("DeviceGetPciInfo", 0), again.ask("DeviceGetName", 0)] == answers
    with pytest.raises(NvmlRefused) as refused:
        again.ask("DeviceGetFanSpeed", 0)
    assert refused.value.code == 3


class _Error(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces pynvml by a fake module."""

    def put(**functions: Any) -> None:
        module = ModuleType("pynvml")
        usual = {"nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "NVMLError": _Error}
        usual |= {"nvmlDeviceGetHandleByIndex": lambda index: index, "nvmlDeviceGetName": lambda handle: handle}
        for name, function in {**usual, **functions}.items():
            setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return put


def _refusal(live: LiveNvml, function: str, device: int = 0) -> int:
    with pytest.raises(NvmlRefused) as refused:
        live.ask(function, device)
    return refused.value.code


def _raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_devices_are_found_by_their_uuid(library: Callable[..., None]) -> None:
    """torch's device 0 need not be NVML's first."""
    library(
        nvmlDeviceGetHandleByIndex=lambda index: f"index {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: f"uuid {uuid}",
    )
    assert LiveNvml().ask("DeviceGetName", 1) == "index 1"
    assert LiveNvml({1: "GPU-7"}).ask("DeviceGetName", 1) == "uuid GPU-7"
    assert Nvml.open(0, uuid="GPU-7")[1] == "NVML: uuid GPU-7"


def test_refusals_have_their_code(library: Callable[..., None]) -> None:
    older = _raising(_Mismatch("use a versioned function"))
    library(
        nvmlDeviceGetName=_raising(_Error(4)),
        nvmlDeviceGetComputeRunningProcesses=older,
        NVMLLibraryMismatchError=_Mismatch,
    )
    functions = ("DeviceGetName", "DeviceGetNothing", "DeviceGetComputeRunningProcesses")
    assert [_refusal(LiveNvml(), function) for function in functions] == [4, 13, 13]


class _Mismatch(Exception):
    """Like pynvml's ``NVMLLibraryMismatchError``, which is no ``NVMLError``."""


def test_a_lost_device_does_not_fail_the_run(library: Callable[..., None]) -> None:
    lost = _raising(_Error(15))
    library(nvmlShutdown=lost, nvmlGpmSampleFree=lost)
    live = LiveNvml()
    live._gpm[0] = "sample"
    live.close()
    assert not live._gpm


@pytest.mark.parametrize("code", [6, 4])
def test_a_mig_instance_is_found_by_its_id(code: int, library: Callable[..., None]) -> None:
    """torch reports an instance's id with the prefix of a whole device."""

    def by_uuid(uuid: str) -> str:
        if uuid.startswith("GPU-"):
            raise _Error(code)
        return uuid

    library(nvmlDeviceGetHandleByUUID=by_uuid)
    live = LiveNvml({0: "GPU-7"})
    if code == 6:
        assert live.ask("DeviceGetName", 0) == "MIG-7"
    else:
        assert _refusal(live, "DeviceGetName") == code


def test_gpm_compares_with_the_previous_sample(library: Callable[..., None]) -> None:
    freed: list[str] = []
    samples = iter(("first", "second", "third"))
    compared: list[tuple[str, str]] = []

    def metrics(request: Any) -> Any:
        compared.append((request.sample1, request.sample2))
        for metric in request.metrics:
            metric.nvmlReturn, metric.value = 0, 50.0
        return request

    library(
        nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=1),
        nvmlGpmSampleAlloc=lambda: next(samples),
        nvmlGpmSampleGet=lambda *_: None,
        nvmlGpmSampleFree=freed.append,
        nvmlGpmMetricsGet=metrics,
        c_nvmlGpmMetricsGet_t=lambda: SimpleNamespace(metrics=[SimpleNamespace() for _ in range(4)]),
        NVML_GPM_METRICS_GET_VERSION=1,
    )

    live = LiveNvml()
    assert live.ask("GpmMetrics", 0, 2, 10) == {}
    assert live.ask("GpmMetrics", 0, 2, 10) == {"2": 50.0, "10": 50.0}
    live.ask("GpmMetrics", 0, 2, 10)
    live.close()
    assert compared == [("first", "second"), ("second", "third")]
    assert freed == ["first", "second", "third"]


_RECORDED, _RECORDED_PID, _POLLS = Path(__file__).with_name("h200_nvml.jsonl.gz"), 2529, 241


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, float]]:
    """The readings of the recorded session."""
    nvml = Nvml(ReplayedNvml(_RECORDED), pid=_RECORDED_PID)
    return [nvml.read() for _ in range(_POLLS)]


def _during(readings: Sequence[dict[str, float]], series: str, *, load: bool) -> list[float]:
    """Values while the device was loaded, or not, for half a second before and after."""
    busy = [reading["nvml.gpu_util"] >= 90 for reading in readings]
    settled = [k for k in range(10, len(busy)) if set(busy[k - 10 : k + 11]) == {load}]
    return [readings[k][series] for k in settled if series in readings[k]]


def test_a_real_load_meets_the_power_limit(recorded: list[dict[str, float]]) -> None:
    """Near 700 W the clock falls by a quarter, for the reason and for the time that NVML counts."""
    clock = _during(recorded, "nvml.sm_clock_mhz", load=True)
    assert max(_during(recorded, "nvml.power_w", load=True)) > 650 and statistics.median(clock) < 1600
    assert set(_during(recorded, "nvml.clock_event_reasons", load=True)) == {4.0}
    held = _during(recorded, "nvml.violation_power_ns", load=True)
    assert sum(held) / len(held) == pytest.approx(50e6, rel=0.05), "all of the time between polls"
    assert set(_during(recorded, "nvml.sm_clock_mhz", load=False)) >= {1980.0}
    assert sum(_during(recorded, "nvml.violation_power_ns", load=False)) == 0


def test_real_utilization_by_process_is_a_moving_average(recorded: list[dict[str, float]]) -> None:
    """It still shows most of the load when the device has been idle for half a second, unlike the total."""
    total = [reading["nvml.gpu_util"] for reading in recorded]
    after = next(k for k in range(100, _POLLS) if total[k] == 0 < total[k - 1])
    assert recorded[after + 10]["nvml.own_sm_util"] > 50 and recorded[after + 10]["nvml.gpu_util"] == 0
    assert recorded[after + 45]["nvml.own_sm_util"] < 5
    assert {reading["nvml.others_sm_util"] for reading in recorded if "nvml.others_sm_util" in reading} == {0.0}


def test_a_monitor_that_has_just_started_gives_no_number(recorded: list[dict[str, float]]) -> None:
    """The device answered NaN for some intervals."""
    assert b"NaN" in gzip.decompress(_RECORDED.read_bytes())
    values = [reading["nvml.gpm_dram_util"] for reading in recorded if "nvml.gpm_dram_util" in reading]
    assert 100 < len(values) < _POLLS and all(0 <= value <= 100 for value in values)
