"""A narrow interface to NVML, so that a session on a real GPU can be recorded and replayed.

All calls go through :meth:`NvmlCalls.ask`: a function's name and plain arguments in, a plain value out. A recording
has one line of JSON per call. A replay returns the recorded answers in order, per function and arguments, and repeats
the last one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

#: ``nvmlReturn`` for a feature that the device lacks, a missing function, and a missing device.
NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
NOT_FOUND = 6
#: Prefixes of the ids of a whole device and of an instance of one (MIG).
_WHOLE, _INSTANCE = "GPU-", "MIG-"


class NvmlRefused(Exception):
    """NVML returned an error.

    :param code: its ``nvmlReturn_t``.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NvmlCalls(Protocol):
    def ask(self, function: str, *arguments: int) -> Any:
        """Call ``nvml<function>``; for ``Device…`` the first argument is the device's number.

        :returns: a number, a string, a list, or a mapping of a structure's fields.
        :raises NvmlRefused: NVML returned an error.
        """

    def close(self) -> None:
        """Close NVML."""


class LiveNvml:
    """NVML of this machine, through ``pynvml``.

    In addition to NVML's functions it has ``GpmMetrics(device, *ids)``: these metrics since the last call, by their
    number as text.

    :param uuids: by number, ids of devices whose numbers differ from NVML's, as under ``CUDA_VISIBLE_DEVICES``.
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
        """:meth:`NvmlCalls.close`. Errors, as of a lost device, are ignored."""
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
        """A device by its id. CUDA reports an instance's id with the prefix of a whole device; NVML has its own."""
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
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics, request.sample1, request.sample2 = len(ids), before, sample
        for place, number in enumerate(ids):
            request.metrics[place].metricId = number
        try:
            self._guarded(nvml.nvmlGpmMetricsGet, request)
            metrics = [request.metrics[place] for place in range(len(ids))]
            return {str(one.metricId): float(one.value) for one in metrics if one.nvmlReturn == 0}
        finally:
            self._guarded(nvml.nvmlGpmSampleFree, before)

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise NvmlRefused(int(error.value), str(error)) from error
        except self._mismatch as error:  # the driver lacks the function's version that pynvml calls
            raise NvmlRefused(FUNCTION_NOT_FOUND, str(error)) from error


def plain(value: Any) -> Any:
    """A value of ``pynvml`` in terms of JSON: structures become mappings, bytes text."""
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
