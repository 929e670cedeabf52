"""Maps torch's devices to NVML's."""

from __future__ import annotations

import os


def device_index(device: str) -> int | None:
    """The number in ``cuda:1``, 0 for ``cuda``; ``None`` for other devices."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def device_uuid(index: int) -> str:
    """NVML's id of torch's device ``index``; empty if torch does not report it.

    Numbers differ: ``CUDA_VISIBLE_DEVICES`` selects and orders devices for torch, and NVML sees all.
    """
    import torch

    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith("MIG-"):
        return visible[index]  # torch reports the id of the whole device
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else ""
