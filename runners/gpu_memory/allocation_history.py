"""Recording of a process's allocations on its CUDA device, by torch's allocator itself."""

from __future__ import annotations

from pathlib import Path

from latfix.profilers.gpu.allocator_counters import NATIVE, allocator_backend, cuda_counters

#: Allocations and frees that are kept, the latest of them; each takes about a hundred bytes.
MOST_ENTRIES = 400_000


def begin_history(device: str) -> str:
    """Start recording in this process; why that cannot be, in one clause, or empty."""
    if not device.startswith("cuda"):
        return "the model is not on a CUDA device"
    backend = allocator_backend(device)
    if backend != NATIVE:
        return f"the device's memory is managed by {backend or 'nobody yet'}, which records no history"
    import torch

    # Without contexts no stacks are kept; "all" would set up the unwinding of those of C++ all the same.
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=MOST_ENTRIES)
    _before.update(_retries())
    return ""


def end_history(file: Path) -> dict[int, int]:
    """Write what was recorded, and stop recording.

    :returns: by the number of each device how often all cached memory was given back since the begin because it had
        no more: memory that is given back for other reasons looks the same in the history.
    :raises OSError: it cannot be written.
    """
    import torch

    torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]
    torch.cuda.memory._record_memory_history(None)
    return {number: retries - _before.get(number, 0) for number, retries in _retries().items()}


#: What :func:`begin_history` found; there is one history a process.
_before: dict[int, int] = {}


def _retries() -> dict[int, int]:
    import torch

    read = {number: cuda_counters(f"cuda:{number}") for number in range(torch.cuda.device_count())}
    found = {number: counters() for number, counters in read.items() if counters is not None}
    return {number: now.retries for number, now in found.items() if now is not None}
