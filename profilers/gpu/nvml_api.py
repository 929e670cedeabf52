"""The few calls through which NVML is read, so that a session on a real GPU can be written down and played again.

Everything that latfix asks of NVML goes through :meth:`NvmlCalls.ask`: a function's name and plain arguments in, a
plain value out. A recording is a line of JSON a call; a replay answers each call with what it was answered then, in
the same order per function and arguments, and the last answer from there on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol

#: What ``nvmlReturn`` says where a device does not have something; the reader leaves it out.
NOT_SUPPORTED = 3
#: The error for a function that is not there, and for a device that is not.
FUNCTION_NOT_FOUND = 13
NOT_FOUND = 6


#: What the id of a whole device begins with, and that of an instance of one (MIG).
_WHOLE, _INSTANCE = "GPU-", "MIG-"


class NvmlRefused(Exception):
    """NVML answered with an error.

    :param code: its ``nvmlReturn_t``.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NvmlCalls(Protocol):
    """Where NVML is asked."""

    def ask(self, function: str, *arguments: int) -> Any:
        """Call ``nvml<function>``; for ``Device…`` the first argument is the device's number.

        :returns: a number, a text, a list, or a mapping of a structure's fields.
        :raises NvmlRefused: NVML answered with an error.
        """

    def close(self) -> None:
        """Let go of NVML."""


class LiveNvml:
    """NVML of this machine, through ``pynvml``.

    Beside NVML's own functions it answers ``GpmMetrics(device, *ids)``: those metrics since it was last asked, by
    their number as text.

    :param uuids: of devices that are not NVML's of the same number, as where ``CUDA_VISIBLE_DEVICES`` picks some.
    :raises NvmlRefused: there is no driver.
    :raises ImportError: the package nvidia-ml-py is not installed.
    """

    def __init__(self, uuids: Mapping[int, str] | None = None) -> None:
        import pynvml

        self._nvml = pynvml
        self._mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        self._uuids = dict(uuids or {})
        self._handles: dict[int, Any] = {}
        self._gpm: dict[int, Any] = {}
        self._guarded(pynvml.nvmlInit)

    def ask(self, function: str, *arguments: int) -> Any:
        """:meth:`NvmlCalls.ask`."""
        if function == "GpmMetrics":
            return self._gpm_metrics(*arguments)
        name = f"nvml{function}"
        if not hasattr(self._nvml, name):
            raise NvmlRefused(FUNCTION_NOT_FOUND, f"{name} is not in this version of nvidia-ml-py")
        call = getattr(self._nvml, name)
        if function.startswith("Device") and function != "DeviceGetCount":
            device, *rest = arguments
            return plain(self._guarded(call, self._handle(device), *rest))
        return plain(self._guarded(call, *arguments))

    def close(self) -> None:
        """:meth:`NvmlCalls.close`. A device that is lost by now refuses even that, and what was read is read."""
        for sample in self._gpm.values():
            with contextlib.suppress(NvmlRefused):
                self._guarded(self._nvml.nvmlGpmSampleFree, sample)
        self._gpm.clear()
        with contextlib.suppress(NvmlRefused):
            self._guarded(self._nvml.nvmlShutdown)

    def _handle(self, device: int) -> Any:
        if device not in self._handles:
            uuid = self._uuids.get(device)
            self._handles[device] = (
                self._guarded(self._nvml.nvmlDeviceGetHandleByIndex, device) if uuid is None else self._by_uuid(uuid)
            )
        return self._handles[device]

    def _by_uuid(self, uuid: str) -> Any:
        """A device by its id; of an instance of one CUDA tells the number alone, NVML knows it by another name."""
        try:
            return self._guarded(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
        except NvmlRefused as error:
            if error.code != NOT_FOUND or not uuid.startswith(_WHOLE):
                raise
            return self._guarded(self._nvml.nvmlDeviceGetHandleByUUID, _INSTANCE + uuid.removeprefix(_WHOLE))

    def _gpm_metrics(self, device: int, *ids: int) -> dict[str, float]:
        nvml = self._nvml
        handle = self._handle(device)
        if not self._guarded(nvml.nvmlGpmQueryDeviceSupport, handle).isSupportedDevice:
            raise NvmlRefused(NOT_SUPPORTED, "Not Supported")
        sample = self._guarded(nvml.nvmlGpmSampleAlloc)
        try:
            self._guarded(nvml.nvmlGpmSampleGet, handle, sample)
        except NvmlRefused:
            self._guarded(nvml.nvmlGpmSampleFree, sample)
            raise
        before, self._gpm[device] = self._gpm.get(device), sample
        if before is None:
            return {}
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics, asked.sample1, asked.sample2 = len(ids), before, sample
        for place, number in enumerate(ids):
            asked.metrics[place].metricId = number
        try:
            self._guarded(nvml.nvmlGpmMetricsGet, asked)
            got = [asked.metrics[place] for place in range(len(ids))]
            return {str(one.metricId): float(one.value) for one in got if one.nvmlReturn == 0}
        finally:
            self._guarded(nvml.nvmlGpmSampleFree, before)

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise NvmlRefused(int(error.value), str(error)) from error
        except self._mismatch as error:  # a driver without the version of the function that pynvml calls
            raise NvmlRefused(FUNCTION_NOT_FOUND, str(error)) from error


class RecordingNvml:
    """Passes calls on, and writes each with its answer.

    :param calls: where they are answered.
    :param file: takes a line a call.
    """

    def __init__(self, calls: NvmlCalls, file: IO[str], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._calls = calls
        self._file = file
        self._clock = clock

    def ask(self, function: str, *arguments: int) -> Any:
        """:meth:`NvmlCalls.ask`."""
        entry: dict[str, Any] = {"t_ns": self._clock(), "call": function, "arguments": list(arguments)}
        try:
            entry["answer"] = self._calls.ask(function, *arguments)
        except NvmlRefused as error:
            entry |= {"error": error.code, "message": str(error)}
            raise
        finally:
            entry["took_ns"] = self._clock() - entry["t_ns"]
            self._file.write(json.dumps(entry) + "\n")
        return entry["answer"]

    def close(self) -> None:
        """:meth:`NvmlCalls.close`."""
        self._calls.close()


def plain(value: Any) -> Any:
    """A value of ``pynvml`` as JSON would have it: structures become mappings, bytes text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str | int | float) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    fields = getattr(value, "_fields_", None)
    if fields is not None:  # a ctypes structure
        return {name: plain(getattr(value, name)) for name, *_ in fields}
    if hasattr(value, "value"):  # a number of C
        return plain(value.value)
    return {name: plain(one) for name, one in vars(value).items()}
