"""Findings about GPUs, from invented NVML readings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from latfix.profilers.gpu.nvml_api import NOT_SUPPORTED, NvmlRefused
from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.gpu import gpu
from latfix.runners.host.kernel_files import System
from tests.runners.doctor.conftest import MakeSystem

Answers = Mapping[tuple[Any, ...], Any]

_TORCH = {"built_for_cuda": "13.0", "cuda": True, "devices": []}
_CALM: Answers = {
    ("DeviceGetCount",): 1,
    ("SystemGetDriverVersion",): "580.65",
    ("SystemGetCudaDriverVersion_v2",): 13000,
    ("DeviceGetName", 0): "NVIDIA H200",
    ("DeviceGetPersistenceMode", 0): 1,
    ("DeviceGetClockInfo", 0, 1): 1980,
    ("DeviceGetMaxClockInfo", 0, 1): 1980,
    ("DeviceGetCurrentClocksEventReasons", 0): 0,
    ("DeviceGetEnforcedPowerLimit", 0): 700_000,
    ("DeviceGetPowerManagementDefaultLimit", 0): 700_000,
    ("DeviceGetCurrPcieLinkGeneration", 0): 5,
    ("DeviceGetMaxPcieLinkGeneration", 0): 5,
    ("DeviceGetCurrPcieLinkWidth", 0): 16,
    ("DeviceGetMaxPcieLinkWidth", 0): 16,
    ("DeviceGetMigMode", 0): [0, 0],
    ("DeviceGetEccMode", 0): [1, 1],
    ("DeviceGetTotalEccErrors", 0, 1, 0): 0,
    ("DeviceGetRemappedRows", 0): [0, 0, 0, 0],
    ("DeviceGetComputeRunningProcesses", 0): [],
    ("DeviceGetPciInfo", 0): {"busId": "00000000:1B:00.0"},
}


class _Calls:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.closed = False

    def ask(self, function: str, *arguments: int) -> Any:
        answer = self._answers.get((function, *arguments))
        if answer is None:
            raise NvmlRefused(NOT_SUPPORTED, "Not Supported")
        return answer

    def close(self) -> None:
        self.closed = True


def _found(
    system: System, answers: Mapping[tuple[Any, ...], Any] | None = None, torch: Mapping[str, Any] | None = None
) -> dict[str, Finding]:
    calls = _Calls({**_CALM, **(answers or {})})
    there, found = gpu(system, {**_TORCH, **(torch or {})}, live=lambda: calls, cores=(0, 1, 2, 3), pid=4711)
    assert there and calls.closed
    return {finding.id: finding for finding in found}


def test_a_calm_device_costs_nothing(make_system: MakeSystem) -> None:
    found = _found(make_system({}))
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["gpu.torch"].found == "1 device, driver 580.65, up to CUDA 13.0; torch built for CUDA 13.0"


@pytest.mark.parametrize(
    ("identity", "answers", "text", "change"),
    [
        ("gpu.persistence", {("DeviceGetPersistenceMode", 0): 0}, "persistence mode is off", "nvidia-smi -i 0 -pm 1"),
        (
            "gpu.clocks",
            {("DeviceGetClockInfo", 0, 1): 1200, ("DeviceGetCurrentClocksEventReasons", 0): 0x24},
            "1200 of 1980 MHz now (power cap, thermal, by software)",
            "cooling",
        ),
        (
            "gpu.clocks",
            {("DeviceGetClockInfo", 0, 1): 1410, ("DeviceGetCurrentClocksEventReasons", 0): 0x02},
            "application clocks",
            "-q -d CLOCK",
        ),
        (
            "gpu.clocks",
            {("DeviceGetClockInfo", 0, 1): 1410, ("DeviceGetCurrentClocksEventReasons", 0): 0x600},
            "(board limit, reliability)",
            "cooling",
        ),
        ("gpu.power", {("DeviceGetEnforcedPowerLimit", 0): 350_000}, "350 W, 700 W by default", "-pl 700"),
        ("gpu.link", {("DeviceGetCurrPcieLinkWidth", 0): 8}, "8 of 16 lanes", "slot"),
        ("gpu.ecc", {("DeviceGetTotalEccErrors", 0, 1, 0): 3}, "3 uncorrected", "ROW_REMAPPER"),
        ("gpu.ecc", {("DeviceGetRemappedRows", 0): [0, 0, 1, 0]}, "rows wait", "reset"),
        (
            "gpu.processes",
            {("DeviceGetComputeRunningProcesses", 0): [{"pid": 12, "usedGpuMemory": 512 << 20}]},
            "used by 1 other process: 12 (512 MiB)",
            "CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_what_costs_is_found(
    make_system: MakeSystem, identity: str, answers: dict[tuple[Any, ...], Any], text: str, change: str
) -> None:
    found = _found(make_system({}), answers)
    assert [finding.id for finding in found.values() if finding.state == "costs"] == [identity]
    assert text in found[identity].found and change in found[identity].change and found[identity].costs


@pytest.mark.parametrize(
    ("answers", "states"),
    [
        (
            {("DeviceGetClockInfo", 0, 1): 345, ("DeviceGetCurrentClocksEventReasons", 0): 0x01},
            {"gpu.clocks": "note"},
        ),
        ({("DeviceGetCurrPcieLinkGeneration", 0): 1}, {"gpu.link": "note"}),
        ({("DeviceGetMigMode", 0): [1, 1]}, {"gpu.mig": "note"}),
        ({("DeviceGetComputeRunningProcesses", 0): [{"pid": 4711, "usedGpuMemory": None}]}, {}),  # its own
        ({("DeviceGetCurrPcieLinkWidth", 0): 0}, {"gpu.link": "unknown"}),  # as in some virtual machines
    ],
)
def test_what_an_idle_device_shows_is_no_fault(
    make_system: MakeSystem, answers: dict[tuple[Any, ...], Any], states: dict[str, str]
) -> None:
    found = _found(make_system({}), answers)
    assert {finding.id: finding.state for finding in found.values() if finding.state != "ok"} == states


def test_what_the_driver_does_not_report_is_unknown(make_system: MakeSystem) -> None:
    bare = {key: None for key in _CALM if key[0] not in ("DeviceGetCount", "DeviceGetName")}
    found = _found(make_system({}), bare)
    assert {finding.id: finding.state for finding in found.values()} == {
        "gpu.torch": "ok",
        "gpu.mig": "note",
        **{f"gpu.{name}": "unknown" for name in ("persistence", "clocks", "power", "link", "ecc", "processes")},
    }


@pytest.mark.parametrize(
    ("torch", "answers", "change"),
    [
        ({"built_for_cuda": None, "cuda": False}, {}, "install torch built for CUDA"),
        (
            {"cuda": False},
            {("SystemGetCudaDriverVersion_v2",): 12040},
            "a driver for CUDA 13.0, or a build of torch for CUDA 12.4",
        ),
        ({"cuda": False}, {}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_torch_that_does_not_use_the_device(
    make_system: MakeSystem, torch: dict[str, Any], answers: dict[tuple[Any, ...], Any], change: str
) -> None:
    finding = _found(make_system({}), answers, torch)["gpu.torch"]
    assert finding.state == "costs" and finding.costs == "the GPU is not used" and change in finding.change


def test_cores_far_from_the_device(make_system: MakeSystem) -> None:
    files = {
        "/sys/devices/system/node/node0/cpulist": "0-1",
        "/sys/devices/system/node/node1/cpulist": "2-3",
        "/sys/bus/pci/devices/0000:1b:00.0/local_cpulist": "0-1",
    }
    finding = _found(make_system(files))["gpu.node"]
    assert finding.state == "costs" and "cores 2-3 are on another" in finding.found
    assert "taskset -c 0-1" in finding.change


@pytest.mark.parametrize(
    ("error", "files", "there", "state", "text"),
    [
        (NvmlRefused(9, "Driver Not Loaded"), {}, False, "note", "gpu.none"),
        (NvmlRefused(9, "Driver Not Loaded"), {"/dev/nvidia0": ""}, True, "costs", "Driver Not Loaded"),
        (ImportError(), {}, False, "missing", "nvidia-ml-py"),
    ],
)
def test_without_a_gpu_its_driver_or_its_package(
    make_system: MakeSystem, error: Exception, files: dict[str, str], there: bool, state: str, text: str
) -> None:
    def live() -> _Calls:
        raise error

    seen, (finding,) = gpu(make_system(files), {"cuda": False}, live=live)
    assert (seen, finding.state) == (there, state) and text in f"{finding.id} {finding.found} {finding.change}"
