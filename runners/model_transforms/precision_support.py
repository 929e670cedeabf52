"""Whether a precision can run: by device, compute capability and installed packages."""

from __future__ import annotations

import importlib.util

from latfix.settings import Precision

#: Least compute capability with hardware products in a format.
_LEAST: dict[str, tuple[int, int]] = {"tf32": (8, 0), "int8_dynamic": (8, 0), "fp8_dynamic": (8, 9)}
#: Precisions that torchao provides on a GPU.
_BY_TORCHAO = ("int8_dynamic", "int8_weight_only", "fp8_dynamic")

Capability = tuple[int, int]


def device_capability(device: str) -> Capability | None:
    """Compute capability of a CUDA device, e.g. (9, 0); ``None`` for the CPU."""
    if device == "cpu":
        return None
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return major, minor


def torchao_missing() -> str:
    """Why torchao cannot be used; empty if it is installed."""
    if importlib.util.find_spec("torchao") is not None:
        return ""
    gain = "it may compute in 0.6 of the time; a guess, not measured"
    return f"needs torchao, which is not installed ({gain}); pip install 'latfix[quantization]'"


def by_torchao(weight: object) -> bool:
    """True if a weight is one of torchao's tensors."""
    return type(weight).__module__.partition(".")[0] == "torchao"


def uses_torchao(precision: Precision, device: str) -> bool:
    """True if torchao makes the layers of this precision on a device."""
    return device != "cpu" and precision in _BY_TORCHAO


def unsupported(precision: Precision, device: str, capability: Capability | None) -> str:
    """Why a precision cannot run on a device, in one line; empty if it can.

    :param device: ``cpu`` or a CUDA device.
    :param capability: the device's; ``None`` if unknown, which excludes nothing.
    """
    if device == "cpu":
        if precision == "fp16":
            return "half precision is computed on GPUs only; on a CPU it is emulated, unlike bf16"
        needed = {"tf32": "8.0", "fp8_dynamic": "8.9"}.get(precision)
        return f"its products need a GPU of compute capability {needed} or later" if needed else ""
    least = _LEAST.get(precision)
    if least is not None and capability is not None and capability < least:
        found, needed = (".".join(map(str, pair)) for pair in (capability, least))
        return f"this GPU has compute capability {found}; its products need {needed} or later"
    return torchao_missing() if precision in _BY_TORCHAO else ""
