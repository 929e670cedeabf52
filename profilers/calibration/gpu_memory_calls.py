"""Costs of a device's memory calls: allocate a segment, free it, synchronize with an idle device.

Measured at the start of a run, on an idle device, with the runtime's own calls (``cudaMalloc``, ``cudaFree``,
``cudaDeviceSynchronize``), so that the service's cached memory is unchanged. With expandable segments torch maps
pages instead, and the driver's calls for that are measured. Calls take longer while the device or another process's
driver call is busy, so the costs are lower bounds.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Protocol

from latfix.profilers.calibration.microbenchmarks import flat

_MIB = 1 << 20
#: Measured sizes: a segment of the small pool, and a large one. They determine a cost per call and one per MiB.
SMALL_BYTES, LARGE_BYTES = 2 * _MIB, 120 * _MIB
#: Page sizes of expandable segments by pool; the measured sizes are multiples of them.
_SMALL_PAGE, _LARGE_PAGE = 2 * _MIB, 20 * _MIB
_ROUNDS = 9
#: Free memory that a measurement requires, in large blocks, because the service may allocate at the same time.
_ROOM = 8


class DeviceCalls(Protocol):
    """A device runtime's calls for memory."""

    def free_bytes(self) -> int:
        """Free bytes on the device."""

    def malloc(self, size: int) -> int:
        """The address of new memory; 0 if the device refuses."""

    def free(self, address: int) -> None:
        """Free memory."""

    def synchronize(self) -> None:
        """Wait for the device."""


def device_costs(device: str, environment: str = "") -> dict[str, float]:
    """Costs of ``device``'s calls in the format of :func:`latfix.profilers.calibration.microbenchmarks.flat`.

    :param environment: settings of torch's allocator, which makes other calls with expandable segments.
    :returns: ``device_malloc``, ``device_malloc_mib``, ``device_free``, ``device_free_mib``, ``device_sync``, each
        with ``_ns``, ``_low_ns``, ``_high_ns``; empty if they cannot be measured.
    """
    calls = (CudaPages if expandable(environment) else CudaCalls).open(device)
    if calls is None:
        return {}
    with calls:
        return measure_calls(calls)


def expandable(environment: str) -> bool:
    """True if settings of torch's allocator enable expandable segments."""
    return "expandable_segments:true" in environment.replace(" ", "").lower()


def measure_calls(calls: DeviceCalls, clock: Callable[[], int] = time.perf_counter_ns) -> dict[str, float]:
    """As :func:`device_costs`; empty if the device has too little free memory or refuses it."""
    if calls.free_bytes() < _ROOM * LARGE_BYTES:
        return {}
    calls.synchronize()
    rows = [(_pair(calls, SMALL_BYTES, clock), _pair(calls, LARGE_BYTES, clock)) for _ in range(_ROUNDS + 1)]
    found: dict[str, list[float]] = {name: [] for name in ("device_malloc", "device_free")}
    found |= {f"{name}_mib": [] for name in tuple(found)}
    for small, large in rows[1:]:  # the first includes the driver's one-time setup
        if small is None or large is None:
            return {}
        for name, at_small, at_large in zip(("device_malloc", "device_free"), small, large, strict=True):
            each_mib = max(at_large - at_small, 0) / ((LARGE_BYTES - SMALL_BYTES) / _MIB)
            found[f"{name}_mib"].append(each_mib)
            found[name].append(max(at_small - each_mib * SMALL_BYTES / _MIB, 0.0))
    waits = []
    for _ in range(_ROUNDS):
        start = clock()
        calls.synchronize()
        waits.append(float(clock() - start))
    return flat({**found, "device_sync": waits})


def _pair(calls: DeviceCalls, size: int, clock: Callable[[], int]) -> tuple[int, int] | None:
    """Nanoseconds to allocate and to free ``size`` bytes; ``None`` if the device refused."""
    start = clock()
    address = calls.malloc(size)
    took = clock() - start
    if not address:
        return None
    start = clock()
    calls.free(address)
    return took, clock() - start


class CudaCalls:
    """The CUDA runtime's calls on one device, through the library that torch has loaded.

    A context manager that makes the device the thread's current one.
    """

    def __init__(self, runtime: ctypes.CDLL, device: int) -> None:
        self._runtime = runtime
        self._device = device
        self._before = ctypes.c_int(device)

    @classmethod
    def open(cls, device: str) -> CudaCalls | None:
        """For a torch device string; ``None`` if torch uses no CUDA device or the library is not found."""
        torch = sys.modules.get("torch")
        if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
            return None
        major = str(torch.version.cuda or "").partition(".")[0]
        try:
            runtime = ctypes.CDLL(f"libcudart.so.{major}")
            runtime.cudaMalloc.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t)
            runtime.cudaFree.argtypes = (ctypes.c_void_p,)
            runtime.cudaMemGetInfo.argtypes = (ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
            runtime.cudaGetDevice.argtypes = (ctypes.POINTER(ctypes.c_int),)
            runtime.cudaSetDevice.argtypes = (ctypes.c_int,)
            runtime.cudaDeviceSynchronize.argtypes = runtime.cudaGetLastError.argtypes = ()
        except (OSError, AttributeError):  # linked statically, or under another name
            return None
        _, _, index = device.partition(":")
        return cls(runtime, int(index or 0))

    def __enter__(self) -> CudaCalls:
        self._runtime.cudaGetDevice(ctypes.byref(self._before))
        self._runtime.cudaSetDevice(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.cudaSetDevice(self._before.value)

    def free_bytes(self) -> int:
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        if self._runtime.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(total)):
            return 0
        return left.value

    def malloc(self, size: int) -> int:
        address = ctypes.c_void_p()
        if self._runtime.cudaMalloc(ctypes.byref(address), size):
            self._runtime.cudaGetLastError()  # otherwise torch's next call would raise it
            return 0
        return address.value or 0

    def free(self, address: int) -> None:
        self._runtime.cudaFree(ctypes.c_void_p(address))

    def synchronize(self) -> None:
        self._runtime.cudaDeviceSynchronize()


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Wanted(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_NUMBER, _SIZE = ctypes.c_ulonglong, ctypes.c_size_t
_PAGE_CALLS = {
    "cuMemAddressReserve": (ctypes.POINTER(_NUMBER), _SIZE, _SIZE, _NUMBER, _NUMBER),
    "cuMemAddressFree": (_NUMBER, _SIZE),
    "cuMemCreate": (ctypes.POINTER(_NUMBER), _SIZE, ctypes.POINTER(_Wanted), _NUMBER),
    "cuMemMap": (_NUMBER, _SIZE, _SIZE, _NUMBER, _NUMBER),
    "cuMemSetAccess": (_NUMBER, _SIZE, ctypes.POINTER(_Access), _SIZE),
    "cuMemUnmap": (_NUMBER, _SIZE),
    "cuMemRelease": (_NUMBER,),
}
#: Values of the driver's enumerations, as torch uses them: pinned memory, on a device, shareable by a file
#: descriptor, readable and writable.
_PINNED, _ON_DEVICE, _BY_DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3


class CudaPages(CudaCalls):
    """The driver's calls for pages of memory, as torch makes them for expandable segments.

    Pages are created, mapped consecutively and made accessible with one call. To free memory, each page is unmapped
    and released. The address range is reserved once, like a segment's, and holds one piece of memory at a time.
    """

    def __init__(self, runtime: ctypes.CDLL, device: int, driver: ctypes.CDLL) -> None:
        super().__init__(runtime, device)
        self._driver = driver
        self._range = 0
        self._pages: list[tuple[int, int, int]] = []

    @classmethod
    def open(cls, device: str) -> CudaPages | None:
        plain = CudaCalls.open(device)
        if plain is None:
            return None
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            for name, arguments in _PAGE_CALLS.items():
                getattr(driver, name).argtypes = arguments
        except (OSError, AttributeError):  # a driver without these calls
            return None
        return cls(plain._runtime, plain._device, driver)

    def __enter__(self) -> CudaPages:
        super().__enter__()
        self.free_bytes()  # a call of the runtime creates the context
        start = _NUMBER()
        if not self._driver.cuMemAddressReserve(ctypes.byref(start), LARGE_BYTES, 0, 0, 0):
            self._range = start.value
        return self

    def __exit__(self, *_: object) -> None:
        if self._range:
            self._driver.cuMemAddressFree(self._range, LARGE_BYTES)
        super().__exit__()

    def malloc(self, size: int) -> int:
        if not self._range:
            return 0
        there = _Location(_ON_DEVICE, self._device)
        wanted = _Wanted(_PINNED, _BY_DESCRIPTOR, there)
        access = _Access(there, _READ_WRITE)
        page = _SMALL_PAGE if size <= _SMALL_PAGE else _LARGE_PAGE
        for start in range(self._range, self._range + size, page):
            handle = _NUMBER()
            if self._driver.cuMemCreate(ctypes.byref(handle), page, ctypes.byref(wanted), 0):
                return self._refused()
            self._pages.append((start, page, handle.value))
        if any(self._driver.cuMemMap(start, page, 0, handle, 0) for start, page, handle in self._pages):
            return self._refused()
        if self._driver.cuMemSetAccess(self._range, size, ctypes.byref(access), 1):
            return self._refused()
        return self._range

    def free(self, address: int) -> None:
        """:meth:`DeviceCalls.free`; torch waits for its stream first."""
        del address
        self.synchronize()
        for start, page, handle in self._pages:
            self._driver.cuMemUnmap(start, page)
            self._driver.cuMemRelease(handle)
        self._pages.clear()

    def _refused(self) -> int:
        """Free all pages; unmapping unmapped pages does nothing."""
        self.free(self._range)
        return 0
