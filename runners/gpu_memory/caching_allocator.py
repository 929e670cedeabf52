"""torch's caching allocator on a CUDA device: its settings, its limit, memory reserved at the start, and its state.

What touches torch is behind :class:`DeviceAllocator`; :class:`CudaAllocator` is the real one.

Why no ``torch.cuda.MemPool`` is wrapped around serving: while any thread allocates to a pool, the allocator takes a
capture to be under way, and gives no cached memory back when the device has no more: what would have been a stall is
an error. A pool with ``use_on_oom`` is asked only after that stall. And memory of the default pool that was taken on
a worker's stream is used again on that stream alone, which is what a pool of its own would be for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from latfix.profilers.gpu.alloc_conf import conf_text, read_conf
from latfix.profilers.gpu.allocator_counters import COUNTING, NATIVE, AllocatorCounters, from_nested
from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.gpu_memory.batch_memory import PeakMemory

#: The variable that torch reads its allocator's settings from, and the one that it read before 2.9. It still does
#: where the other is not set, and for what only CUDA has before the other.
ALLOC_CONF, OLDER_CONF = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
#: Names of what only CUDA has.
_OF_CUDA = frozenset(
    {
        "backend",
        "graph_capture_record_stream_reuse",
        "per_process_memory_fraction",
        "pinned_free_catch_all",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
        "throw_on_cudamalloc_oom",
    }
)
_MIB = 1 << 20
#: The largest request of the allocator's small pool, which has segments of its own.
_SMALL = _MIB
#: Of a reservation, the part for small requests.
_SMALL_SHARE = 16
_MOST_SMALL_MIB = 64


def allocator_conf(environment: Mapping[str, str]) -> str:
    """The settings of torch's allocator in an environment, by whichever variable each is read from; empty for its
    defaults."""
    now, older = environment.get(ALLOC_CONF), environment.get(OLDER_CONF)
    if now is None or older is None or now == older:
        return (older if now is None else now) or ""
    shared = {name: value for name, value in read_conf(now).items() if name not in _OF_CUDA}
    return conf_text(shared | {name: value for name, value in read_conf(older).items() if name in _OF_CUDA})


def conf_environment(conf: str) -> dict[str, str]:
    """The environment for settings of torch's allocator: in one variable alone, the other might win or be the only
    one that this version reads."""
    return {ALLOC_CONF: conf, OLDER_CONF: conf}


def standing_conf(settings: RunnerSettings) -> str:
    """The settings of torch's allocator that a runner's process is started with."""
    return allocator_conf({**os.environ, **settings.env})


class DeviceAllocator(Protocol):
    """The caching allocator of one device, and what is left beside it."""

    def stats(self) -> Mapping[str, Any]:
        """As ``torch.cuda.memory_stats_as_nested_dict``; empty where the allocator counts nothing."""

    def reset_peaks(self) -> None:
        """Peaks count from now on."""

    def memory(self) -> tuple[int, int]:
        """Bytes that the device has left, and in all."""

    def share(self) -> float:
        """The share of the device's memory that this process may take; 1 where that is unknown."""

    def set_share(self, share: float) -> None:
        """Limit it."""

    def settings(self) -> Mapping[str, Any]:
        """The settings in effect, by the allocator's own names; empty where it does not report them."""

    def backend(self) -> str:
        """``native``, or another allocator in its place."""


class CudaAllocator(DeviceAllocator):
    """torch's own.

    :param device: a torch device string with a number.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._device, self._cuda = device, torch.cuda

    def stats(self) -> Mapping[str, Any]:
        return self._cuda.memory_stats_as_nested_dict(self._device) if self.backend() in COUNTING else {}

    def reset_peaks(self) -> None:
        if self.backend() in COUNTING:
            self._cuda.reset_peak_memory_stats(self._device)

    def memory(self) -> tuple[int, int]:
        left, total = self._cuda.mem_get_info(self._device)
        return int(left), int(total)

    def share(self) -> float:
        if self.backend() not in COUNTING or not hasattr(self._cuda, "get_per_process_memory_fraction"):
            return 1.0  # a version of torch that does not tell
        return float(self._cuda.get_per_process_memory_fraction(self._device))

    def set_share(self, share: float) -> None:
        self._cuda.set_per_process_memory_fraction(share, self._device)

    def settings(self) -> Mapping[str, Any]:
        if self.backend() != NATIVE:  # another one has none of these, and refuses to be looked at
            return {}
        found = self._cuda.memory._snapshot(self._device).get("allocator_settings", {})
        return {str(name): value for name, value in found.items() if isinstance(value, bool | int | float | str)}

    def backend(self) -> str:
        return str(self._cuda.get_allocator_backend())


def allocator_of(device: str) -> DeviceAllocator | None:
    """The allocator of a torch device string; ``None`` where it is no CUDA device, or torch does not use it yet."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    return CudaAllocator(device)


class OnDevice(Protocol):
    """A model, or a worker."""

    @property
    def device(self) -> str:
        """A torch device string."""


def allocators_of(models: Iterable[OnDevice]) -> dict[str, DeviceAllocator]:
    """The allocators of the devices that models are on, by device, in their order; none on the host."""
    found = {device: allocator_of(device) for device in dict.fromkeys(model.device for model in models)}
    return {device: allocator for device, allocator in found.items() if allocator is not None}


def limit_memory(share: float, allocators: Mapping[str, DeviceAllocator]) -> list[str]:
    """Apply ``device_memory_share`` to each device, where there is one; what was not possible, one line each."""
    if not share:
        return []
    if not allocators:
        return [f"device_memory_share = {share:g}: the model is not on a CUDA device"]
    for allocator in allocators.values():
        allocator.set_share(share)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What a worker reserved.

    :param wanted_bytes: asked for; ``got_bytes`` by which the allocator's hold of the device grew.
    :param note: why it is less, in one line; empty where it is not.
    """

    wanted_bytes: int
    got_bytes: int = 0
    note: str = ""


def reserve(
    mebibytes: int, allocator: DeviceAllocator, allocate: Callable[[int], object], refused: type[BaseException]
) -> Reserved:
    """Take memory from the device and let it go: it stays with the allocator, for requests on the same stream.

    Most of it is one block, which large requests are cut from; a part is segments of the pool for small ones.

    :param allocate: a block of so many bytes on the stream that is to use them; ``refused`` is raised where there is
        none.
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
        note = f"reserve_mb = {mebibytes}: the device refused it, {left // _MIB} MiB were left"
        return Reserved(wanted_bytes=wanted, got_bytes=max(_reserved(allocator) - before, 0), note=note)
    del blocks
    return Reserved(wanted_bytes=wanted, got_bytes=max(_reserved(allocator) - before, 0))


def reserve_on_stream(mebibytes: int, device: str, stream: Any) -> Reserved:
    """:func:`reserve` on a CUDA stream."""
    import torch

    def allocate(size: int) -> object:
        return torch.empty(size, dtype=torch.uint8, device=device)

    with torch.cuda.stream(stream):
        return reserve(mebibytes, CudaAllocator(device), allocate, torch.cuda.OutOfMemoryError)


def _reserved(allocator: DeviceAllocator) -> int:
    counters = from_nested(allocator.stats())
    return 0 if counters is None else counters.reserved_bytes


class DeviceFacts:
    """What a run shows of its devices' memory, for the fixes: read where it begins and where it ends.

    :param allocators: of the workers' devices, that of the first worker first; none on the host, and then there are
        no facts. To be made before the workers run: what is held beyond what is held now is theirs.
    """

    def __init__(self, allocators: Mapping[str, DeviceAllocator]) -> None:
        self._allocators = allocators
        self._first = self._read()
        self._begun: dict[str, AllocatorCounters] = {}
        self._peaks: PeakMemory | None = None

    def begin(self, peaks: PeakMemory | None = None) -> None:
        """Before the first measured request.

        :param peaks: what resets the first device's peaks from now on, batch by batch.
        """
        for allocator in self._allocators.values():
            allocator.reset_peaks()
        if peaks is not None:
            peaks.forget()
        self._peaks = peaks
        self._begun = self._read()

    def note(self) -> str:
        """Why a device's memory is not reported, in one line; empty where it is, or without a device."""
        backends = {allocator.backend() for allocator in self._allocators.values()} - set(COUNTING)
        if not backends:
            return ""
        said = ", ".join(sorted(backends))
        return f"device memory: not read, it is managed by an allocator ({said}) that counts nothing"

    def end(self, workers: Sequence[tuple[str, Reserved | None]]) -> dict[str, Any]:
        """The facts, for ``device_memory`` of ``run.json``; empty without a device, or where nothing is counted.

        :param workers: the device of each, and what it reserved there.
        :returns: of the first device; with several, those of the others by name in ``others``.
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
