"""Choices below the model: which kernel attention runs, and how images lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latfix.settings import Attention

if TYPE_CHECKING:
    import torch


def choose_attention(attention: Attention) -> None:
    """Have ``scaled_dot_product_attention`` choose among the kernels that are asked for, in the whole process.

    With ``flash`` alone, a call whose inputs it cannot run fails instead of running something else. ``default``
    leaves what the adapter or the program has chosen.
    """
    if attention == "default":
        return
    import torch

    # The switches are named after CUDA; those of math and flash hold on the CPU, too.
    torch.backends.cuda.enable_math_sdp(attention == "math")
    torch.backends.cuda.enable_flash_sdp(attention == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def in_channels_last(model: torch.nn.Module) -> int:
    """Lay out a model's four-dimensional weights, and the images that it is given, with channels last.

    :returns: how many weights lay otherwise before.
    """
    import torch

    last = torch.channels_last
    changed = sum(p.dim() == 4 and not p.is_contiguous(memory_format=last) for p in model.parameters())
    model.to(memory_format=last)  # type: ignore[call-overload]

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return _laid_out(args), _laid_out(kwargs)

    model.register_forward_pre_hook(enter, with_kwargs=True)
    return changed


def _laid_out(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        images = value.dim() == 4 and value.is_floating_point()
        return value.contiguous(memory_format=torch.channels_last) if images else value
    if type(value) in (tuple, list):
        return type(value)(_laid_out(item) for item in value)
    if type(value) is dict:
        return {key: _laid_out(item) for key, item in value.items()}
    return value
