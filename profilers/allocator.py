"""State of the allocators: glibc's heap on the host, PyTorch's caching allocator on CUDA."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

Reading = dict[str, float]

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def host_heap_reader() -> Callable[[], Reading] | None:
    """A reader of glibc's ``mallinfo2``; ``None`` where the C library has none (glibc before 2.33, musl)."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Mallinfo2
    function.argtypes = ()

    def read() -> Reading:
        info = function()
        return {
            "malloc.arena_bytes": info.arena,
            "malloc.used_bytes": info.uordblks,
            "malloc.free_bytes": info.fordblks,
            "malloc.mmapped_bytes": info.hblkhd,
            "malloc.trimmable_bytes": info.keepcost,
            "malloc.free_chunks": info.ordblks,
        }

    return read


_CUDA_KEYS = {
    "allocated_bytes.all.current": "cuda.allocated_bytes",
    "reserved_bytes.all.current": "cuda.reserved_bytes",
    "inactive_split_bytes.all.current": "cuda.inactive_split_bytes",
    "num_alloc_retries": "cuda.alloc_retries",
    "num_ooms": "cuda.ooms",
    "num_device_alloc": "cuda.device_allocs",
    "num_device_free": "cuda.device_frees",
    "num_sync_all_streams": "cuda.sync_all_streams",
}


def cuda_reader(device: str) -> Callable[[], Reading] | None:
    """A reader of ``torch.cuda.memory_stats`` for ``device``; ``None`` where torch uses no CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return None

    def read() -> Reading:
        stats = torch.cuda.memory_stats(device)
        return {series: float(stats[key]) for key, series in _CUDA_KEYS.items() if key in stats}

    return read
