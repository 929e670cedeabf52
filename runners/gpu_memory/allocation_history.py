"""Records a process's allocations on its CUDA device, with torch's allocator."""

from __future__ import annotations

from pathlib import Path

from latfix.profilers.gpu.allocator_counters import NATIVE, allocator_backend, cuda_counters

#: Number of allocations and frees to keep, the latest ones; each takes about a hundred bytes.
MOST_ENTRIES = 400_000


def begin_history(device: str) -> str:
    """Start recording in this process; returns the reason if that is impossible, otherwise an empty string."""
    if not device.startswith("cuda"):
        return "the model is not on a CUDA device"
    backend = allocator_backend(device)
    if backend != NATIVE:
        return f"the device's memory is managed by {backend or 'no allocator yet'}, which records no history"
    import torch

    # Without contexts no stacks are kept, but stacks="all" would still set up the unwinding of C++ stacks.
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=MOST_ENTRIES)
    _before.update(_retries())
    return ""


def end_history(file: Path) -> dict[int, int]:
    """Stop recording and write the history.

    :returns: by device number, how often all cached memory was released because the device was full. The history does
        not distinguish these releases from others.
    :raises OSError: the file cannot be written.
    """
    import torch

    torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]
    torch.cuda.memory._record_memory_history(None)
    return {number: retries - _before.get(number, 0) for number, retries in _retries().items()}


#: Retries at :func:`begin_history` by device number; there is one history per process.
_before: dict[int, int] = {}


def _retries() -> dict[int, int]:
    import torch

    read = {number: cuda_counters(f"cuda:{number}") for number in range(torch.cuda.device_count())}
    found = {number: counters() for number, counters in read.items() if counters is not None}
    return {number: now.retries for number, now in found.items() if now is not None}
