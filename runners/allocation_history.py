"""Recording of a process's allocations on its CUDA device, by torch's allocator itself."""

from __future__ import annotations

from pathlib import Path

from latfix.profilers.device_counters import NATIVE, allocator_backend

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
    return ""


def end_history(file: Path) -> None:
    """Write what was recorded, and stop recording.

    :raises OSError: it cannot be written.
    """
    import torch

    torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]
    torch.cuda.memory._record_memory_history(None)
