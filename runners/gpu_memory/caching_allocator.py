"""torch's caching allocator on a CUDA device: its settings, limit, initial reservation and state.

All calls of torch are in :class:`DeviceAllocator`.

Serving does not use ``torch.cuda.MemPool``: while a thread allocates to a pool, the allocator assumes a graph capture
and does not release cached memory when the device is full, so a stall becomes an error. A pool with ``use_on_oom`` is
used only after that stall. And the default pool already reuses memory of a worker's stream only on that stream, which
is what a separate pool would be for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latfix.profilers.gpu.alloc_conf import allocator_conf
from latfix.profilers.gpu.allocator_counters import COUNTING, NATIVE, AllocatorCounters, from_nested
from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.gpu_memory.batch_memory import PeakMemory

_MIB = 1 << 20
#: The largest request of the allocator's small pool, which has separate segments.
_SMALL = _MIB
#: One part in this many of a reservation is for small requests.
_SMALL_SHARE = 16
_MOST_SMALL_MIB = 64


def standing_conf(settings: RunnerSettings) -> str:
    """The settings of torch's allocator with which a runner's process starts."""
    return allocator_conf({**os.environ, **settings.env})


class DeviceAllocator:
    """torch's caching allocator of one device, and the device's free memory.

    :param device: a torch device string with a number.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._device, self._cuda = device, torch.cuda

    def stats(self) -> Mapping[str, Any]:
        """Like ``torch.cuda.memory_stats_as_nested_dict``; empty if the allocator counts nothing."""
        return self._cuda.memory_stats_as_nested_dict(self._device) if self.backend() in COUNTING else {}

    def reset_peaks(self) -> None:
        """Reset the peaks."""
        if self.backend() in COUNTING:
            self._cuda.reset_peak_memory_stats(self._device)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        left, total = self._cuda.mem_get_info(self._device)
        return int(left), int(total)

    def share(self) -> float:
        """The share of the device's memory that this process may take; 1 if unknown."""
        if self.backend() not in COUNTING or not hasattr(self._cuda, "get_per_process_memory_fraction"):
            return 1.0  # this version of torch does not report it
        return float(self._cuda.get_per_process_memory_fraction(self._device))

    def set_share(self, share: float) -> None:
        """Limit the share."""
        self._cuda.set_per_process_memory_fraction(share, self._device)

    def settings(self) -> Mapping[str, Any]:
        """The effective settings, by the allocator's own names; empty if it does not report them."""
        if self.backend() != NATIVE:  # other allocators have none of these, and refuse a snapshot
            return {}
        found = self._cuda.memory._snapshot(self._device).get("allocator_settings", {})
        return {str(name): value for name, value in found.items() if isinstance(value, bool | int | float | str)}

    def backend(self) -> str:
        """``native`` or the name of another allocator."""
        return str(self._cuda.get_allocator_backend())


def allocator_of(device: str) -> DeviceAllocator | None:
    """The allocator of a torch device string; ``None`` if it is no CUDA device, or torch does not use it yet."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    return DeviceAllocator(device)


def allocators_of(devices: Iterable[str]) -> dict[str, DeviceAllocator]:
    """The allocators of torch devices, by device, in order; none for the CPU."""
    found = {device: allocator_of(device) for device in dict.fromkeys(devices)}
    return {device: allocator for device, allocator in found.items() if allocator is not None}


def limit_memory(share: float, allocators: Mapping[str, DeviceAllocator]) -> list[str]:
    """Apply ``device_memory_share`` to each device; returns a line for each setting that could not be applied."""
    if not share:
        return []
    if not allocators:
        return [f"device_memory_share = {share:g}: the model is not on a CUDA device"]
    for allocator in allocators.values():
        allocator.set_share(share)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A worker's reservation.

    :param wanted_bytes: requested; ``got_bytes``: by how much the allocator's reserved memory grew.
    :param note: why it got less, in one line; empty if it did not.
    """

    wanted_bytes: int
    got_bytes: int = 0
    note: str = ""


def reserve(
    mebibytes: int, allocator: DeviceAllocator, allocate: Callable[[int], object], refused: type[BaseException]
) -> Reserved:
    """Allocate and free device memory, so that the allocator keeps it for requests on the same stream.

    Most of it is one block, for large requests; a part is segments of the pool for small ones.

    :param allocate: allocates a block of that many bytes on the stream that will use it, or raises ``refused``.
    """
    small = min(max(mebibytes // _SMALL_SHARE, 1), _MOST_SMALL_MIB)
    wanted = mebibytes * _MIB
    before = _reserved(allocator)
    try:
        blocks = [allocate(_SMALL) for _ in range(small)]
        if mebibytes > small:
            blocks.append(allocate(wanted - small * _SMALL))
    except refused:
        left, _ = allocator.memory()
        note = f"reserve_mb = {mebibytes}: the device refused it; {left // _MIB} MiB were free"
        return Reserved(wanted_bytes=wanted, got_bytes=max(_reserved(allocator) - before, 0), note=note)
    del blocks
    return Reserved(wanted_bytes=wanted, got_bytes=max(_reserved(allocator) - before, 0))


def reserve_on_stream(mebibytes: int, device: str, stream: Any) -> Reserved:
    """:func:`reserve` on a CUDA stream."""
    import torch

    def allocate(size: int) -> object:
        return torch.empty(size, dtype=torch.uint8, device=device)

    with torch.cuda.stream(stream):
        return reserve(mebibytes, DeviceAllocator(device), allocate, torch.cuda.OutOfMemoryError)


def _reserved(allocator: DeviceAllocator) -> int:
    counters = from_nested(allocator.stats())
    return 0 if counters is None else counters.reserved_bytes


class DeviceFacts:
    """A run's facts about its devices' memory, read at its begin and end, for the fixes.

    Create it before the workers run: memory beyond that held now is attributed to them.

    :param allocators: of the workers' devices, the first worker's first; empty on the CPU, where there are no facts.
    """

    def __init__(self, allocators: Mapping[str, DeviceAllocator]) -> None:
        self._allocators = allocators
        self._first = self._read()
        self._begun: dict[str, AllocatorCounters] = {}
        self._peaks: PeakMemory | None = None

    def begin(self, peaks: PeakMemory | None = None) -> None:
        """Call before the first measured request.

        :param peaks: resets the first device's peaks with each batch from now on.
        """
        for allocator in self._allocators.values():
            allocator.reset_peaks()
        if peaks is not None:
            peaks.forget()
        self._peaks = peaks
        self._begun = self._read()

    def note(self) -> str:
        """Why a device's memory is not reported, in one line; empty if it is, or without a device."""
        backends = {allocator.backend() for allocator in self._allocators.values()} - set(COUNTING)
        if not backends:
            return ""
        names = ", ".join(sorted(backends))
        return f"device memory: not read, because its allocator ({names}) does not count"

    def end(self, workers: Sequence[tuple[str, Reserved | None]]) -> dict[str, Any]:
        """The facts, for ``device_memory`` in ``run.json``; empty without a device or without counters.

        :param workers: the device of each, and its reservation there.
        :returns: facts of the first device; with several, those of the others by name in ``others``.
        """
        found = {}
        for device, allocator in self._allocators.items():
            reserved = [taken for on, taken in workers if on == device]
            if known := self._of(device, allocator, reserved):
                found[device] = known
        if not found:
            return {}
        first, *others = found
        return found[first] | ({"others": {device: found[device] for device in others}} if others else {})

    def _of(self, device: str, allocator: DeviceAllocator, reserved: Sequence[Reserved | None]) -> dict[str, Any]:
        stats, begun = allocator.stats(), self._begun.get(device)
        now = from_nested(stats)
        if now is None or begun is None:
            return {}
        left, total = allocator.memory()
        first = self._first.get(device, begun)
        is_first = device == next(iter(self._allocators))
        in_use, held = self._peaks.highest() if self._peaks is not None and is_first else (0, 0)
        taken = [each for each in reserved if each is not None]
        return {
            "total_bytes": total,
            "left_bytes": left,
            "reserved_start_bytes": first.reserved_bytes,
            "reserved_end_bytes": now.reserved_bytes,
            "reserved_peak_bytes": max(stats["reserved_bytes"]["all"]["peak"], held),
            "allocated_start_bytes": first.allocated_bytes,
            "allocated_peak_bytes": max(stats["allocated_bytes"]["all"]["peak"], in_use),
            "retries": now.retries - begun.retries,
            "allocs": now.allocs - begun.allocs,
            "frees": now.frees - begun.frees,
            "share": allocator.share(),
            "settings": dict(allocator.settings()),
            "backend": allocator.backend(),
            "workers": len(reserved),
            "wanted_bytes": sum(each.wanted_bytes for each in taken),
            "reserved_ahead_bytes": sum(each.got_bytes for each in taken),
        }

    def _read(self) -> dict[str, AllocatorCounters]:
        read = {device: from_nested(allocator.stats()) for device, allocator in self._allocators.items()}
        return {device: counters for device, counters in read.items() if counters is not None}
