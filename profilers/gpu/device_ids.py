"""Which of NVML's devices is one of torch's."""

from __future__ import annotations

import os


def device_index(device: str) -> int | None:
    """The number in ``cuda:1``, 0 for ``cuda``; ``None`` for another device."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def device_uuid(index: int) -> str:
    """The id by which NVML finds torch's device ``index``; empty where torch does not tell.

    Numbers differ: ``CUDA_VISIBLE_DEVICES`` picks and orders devices for torch, and NVML sees all.
    """
    import torch

    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith("MIG-"):
        return visible[index]  # torch tells that of the whole device
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else ""
