"""Utilization, clocks, limits and memory of an NVIDIA GPU over time, through NVML, read on a separate thread.

An NVML read can stall the machine for milliseconds, so it is polled once or twice a second, and each poll's duration
is logged. Counters since the driver's start are reported as growth since the last poll.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlCalls, NvmlRefused
from latfix.run_record.schema import OTHERS_UTIL, OWN_UTIL

Reading = dict[str, float]

_SM, _MEMORY = 1, 2
_GPU_SENSOR = 0
_SENT, _RECEIVED = 0, 1
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
#: NVML's numbers of reasons for reduced clocks; data-center drivers report times in nanoseconds.
VIOLATIONS = {"power": 0, "thermal": 1, "sync_boost": 2, "board_limit": 3, "low_utilization": 4, "reliability": 5}
#: Functions with their arguments, and by series the field of the answer, or empty for the answer itself: current
#: values, and counters.
_VALUES: tuple[tuple[str, tuple[int, ...], Mapping[str, str]], ...] = (
    ("DeviceGetUtilizationRates", (), {"gpu_util": "gpu", "memory_util": "memory"}),
    ("DeviceGetMemoryInfo", (), {"memory_used_bytes": "used", "memory_total_bytes": "total"}),
    ("DeviceGetTemperature", (_GPU_SENSOR,), {"temperature_c": ""}),
    ("DeviceGetClockInfo", (_SM,), {"sm_clock_mhz": ""}),
    ("DeviceGetClockInfo", (_MEMORY,), {"mem_clock_mhz": ""}),
    ("DeviceGetCurrPcieLinkGeneration", (), {"pcie_generation": ""}),
    ("DeviceGetCurrPcieLinkWidth", (), {"pcie_width": ""}),
)
_COUNTERS: tuple[tuple[str, tuple[int, ...], Mapping[str, str]], ...] = (
    *(
        ("DeviceGetViolationStatus", (number,), {f"violation_{name}_ns": "violationTime"})
        for name, number in VIOLATIONS.items()
    ),
    ("DeviceGetPcieReplayCounter", (), {"pcie_replays": ""}),
    ("DeviceGetTotalEccErrors", (_CORRECTED, _VOLATILE), {"ecc_corrected": ""}),
    ("DeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE), {"ecc_uncorrected": ""}),
)
#: Bits of ``nvml.clock_event_reasons``.
CLOCK_REASONS = {
    0x01: "idle",
    0x02: "application clocks",
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
#: Metrics of the GPU's performance monitor (Hopper and later), by their number.
GPM = {2: "sm_util", 3: "sm_occupancy", 5: "tensor_util", 10: "dram_util"}
#: Polls per reading of PCIe throughput, which takes 20 ms.
_SELDOM = 5
#: Processes are sampled at separate times, up to seconds apart. Samples are requested from so long before the newest,
#: and each process's newest is kept for so long.
_SAMPLES_BACK_US = 2_000_000
_SAMPLES_KEPT_US = 3_000_000
#: Samples above are invalid: drivers sometimes report far more.
_MOST_UTIL = 100
#: Refusals that are final: not supported, no permission, function missing in the driver.
_FINAL = (3, 4, 13)


class Nvml:
    """Readings of one device.

    :param calls: NVML's functions.
    :param device: its number in NVML.
    :param pid: of the process that counts as this one.
    """

    def __init__(self, calls: NvmlCalls, device: int = 0, *, pid: int | None = None) -> None:
        self._calls = calls
        self._device = device
        self._pid = os.getpid() if pid is None else pid
        self._refused: set[tuple[str, tuple[int, ...]]] = set()
        self._last: dict[str, float] = {}
        self._seen_us = 0
        #: By process, time and value of its newest utilization sample.
        self._newest: dict[int, tuple[int, float]] = {}
        self._polls = 0

    @classmethod
    def open(
        cls,
        device: int = 0,
        *,
        uuid: str = "",
        live: Callable[..., NvmlCalls] = LiveNvml,
        pid: int | None = None,
    ) -> tuple[Nvml | None, str]:
        """A reader if possible, and one line with the device's name or the reason why not.

        :param uuid: of the device, if its number may differ from NVML's.
        :param pid: of the process that counts as this one.
        """
        try:
            calls = live({device: uuid} if uuid else None)
            name = calls.ask("DeviceGetName", device)
        except ImportError:
            return None, "NVML: not read, the package nvidia-ml-py is not installed"
        except NvmlRefused as error:
            return None, f"NVML: not read, {error}"
        return cls(calls, device, pid=pid), f"NVML: {name}"

    def read(self) -> Reading:
        """One poll: values by series, without those that the device does not report."""
        reading: Reading = {}
        for function, arguments, values in _VALUES:
            if (answer := self._ask(function, *arguments)) is not None:
                reading |= {
                    f"nvml.{name}": float(answer[field] if field else answer) for name, field in values.items()
                }
        for function, arguments, counters in _COUNTERS:
            if (answer := self._ask(function, *arguments)) is not None:
                for name, field in counters.items():
                    self._grown(reading, f"nvml.{name}", float(answer[field] if field else answer))
        self._others(reading)
        self._processes(reading)
        self._monitor(reading)
        self._polls += 1
        return reading

    def close(self) -> None:
        self._calls.close()

    def _others(self, reading: Reading) -> None:
        """Add readings with a unit, an older name, or a long duration."""
        power = self._ask("DeviceGetPowerUsage")
        if power is not None:
            reading["nvml.power_w"] = float(power) / 1e3
        reasons = self._ask("DeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("DeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            reading["nvml.clock_event_reasons"] = float(reasons)
        for name, number in (("sent", _SENT), ("received", _RECEIVED)) if self._polls % _SELDOM == 0 else ():
            result = self._ask("DeviceGetPcieThroughput", number)
            if result is not None:
                reading[f"nvml.pcie_{name}_bytes_per_s"] = float(result) * 1024

    def _processes(self, reading: Reading) -> None:
        result = self._ask("DeviceGetComputeRunningProcesses")
        if result is not None:
            reading["nvml.processes"] = float(len(result))
            memory = [(one["pid"], one["usedGpuMemory"]) for one in result]
            # A running process uses memory: 0 means that the driver cannot see into a container.
            if (self._pid, 0) not in memory:
                self._split(reading, ("nvml.memory_own_bytes", "nvml.memory_others_bytes"), memory)
        samples = self._ask("DeviceGetProcessUtilization", max(self._seen_us - _SAMPLES_BACK_US, 0))
        if samples is not None:
            named = {one["pid"] for one in result or ()} | {self._pid}
            # Samples contain ended processes for a while.
            latest = [each for each in self._latest(samples) if each[0] in named]
            self._split(reading, (OWN_UTIL, OTHERS_UTIL), latest)

    def _latest(self, samples: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
        """Utilization by process, from recent samples."""
        for one in samples:
            pid, at, util = int(one["pid"]), int(one["timeStamp"]), float(one["smUtil"])
            self._seen_us = max(self._seen_us, at)
            if util <= _MOST_UTIL and at >= self._newest.get(pid, (0, 0.0))[0]:
                self._newest[pid] = at, util
        oldest = self._seen_us - _SAMPLES_KEPT_US
        self._newest = {pid: each for pid, each in self._newest.items() if each[0] > oldest}
        return [(pid, util) for pid, (_, util) in self._newest.items()]

    def _split(self, reading: Reading, series: tuple[str, str], values: Sequence[tuple[int, Any]]) -> None:
        """Add this process's value and the sum of all others.

        In a container the driver may use the host's process numbers. Then this process is unknown, and nothing is
        added.
        """
        known = [(pid, value) for pid, value in values if isinstance(value, int | float)]
        if any(pid == self._pid for pid, _ in known):
            reading[series[0]] = float(sum(value for pid, value in known if pid == self._pid))
            reading[series[1]] = float(sum(value for pid, value in known if pid != self._pid))

    def _monitor(self, reading: Reading) -> None:
        result = self._ask("GpmMetrics", *GPM)
        for number, name in GPM.items():
            value = (result or {}).get(str(number))
            if value is not None and math.isfinite(value):  # a counter that started anew gives NaN
                reading[f"nvml.gpm_{name}"] = float(value)

    def _grown(self, reading: Reading, series: str, total: float) -> None:
        before = self._last.get(series)
        self._last[series] = total
        if before is not None:
            reading[series] = max(total - before, 0.0)

    def _ask(self, function: str, *arguments: int) -> Any:
        """The answer; ``None`` if NVML refuses. A call with a final refusal is not repeated."""
        if (function, arguments) in self._refused:
            return None
        try:
            return self._calls.ask(function, self._device, *arguments)
        except NvmlRefused as error:
            if error.code in _FINAL:
                self._refused.add((function, arguments))
            return None
