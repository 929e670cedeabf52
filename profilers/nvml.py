"""Utilization, clocks and memory of NVIDIA GPUs, through NVML, on a thread of its own.

An NVML read can stall the machine for milliseconds, so it is polled once a second and each poll's own
duration is logged.
"""

from __future__ import annotations

from typing import Any

Reading = dict[str, float]


class Nvml:
    """NVML for one device.

    :param handle: the device's handle.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml = library
        self._handle = handle

    @classmethod
    def open(cls, index: int = 0) -> tuple[Nvml | None, str]:
        """NVML for device ``index``, and one line that says what is there or what is missing."""
        try:
            import pynvml
        except ImportError:
            return None, "NVML: not read, the package nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
        except pynvml.NVMLError as error:
            return None, f"NVML: not read, {error}"
        return cls(pynvml, handle), f"NVML: {name}"

    def read(self) -> Reading:
        """One poll. A metric that this device does not support is left out."""
        nvml, handle = self._nvml, self._handle
        reading: Reading = {}

        def take(series: str, function: Any, *arguments: Any) -> Any:
            try:
                value = function(handle, *arguments)
            except nvml.NVMLError:
                return None
            if isinstance(value, int | float):
                reading[series] = float(value)
            return value

        utilization = take("", nvml.nvmlDeviceGetUtilizationRates)
        if utilization is not None:
            reading["nvml.gpu_util"] = float(utilization.gpu)
            reading["nvml.memory_util"] = float(utilization.memory)
        memory = take("", nvml.nvmlDeviceGetMemoryInfo)
        if memory is not None:
            reading["nvml.memory_used_bytes"] = float(memory.used)
            reading["nvml.memory_total_bytes"] = float(memory.total)
        take("nvml.sm_clock_mhz", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        take("nvml.mem_clock_mhz", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM)
        take("nvml.clock_event_reasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        take("nvml.power_mw", nvml.nvmlDeviceGetPowerUsage)
        take("nvml.temperature_c", nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        return reading

    def close(self) -> None:
        """Shut NVML down."""
        self._nvml.nvmlShutdown()
