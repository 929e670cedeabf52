"""Choices below the model: which kernel attention runs, and how images lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latfix.runners.calls.tensor_tree import map_plain
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
    weights = [p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous(memory_format=last)]
    for weight in weights:  # not by Module.to, which asks the same of weights of five dimensions and fails
        weight.data = weight.data.contiguous(memory_format=last)

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        images = tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=last) if images else tensor

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return map_plain(args, laid_out), map_plain(kwargs, laid_out)

    model.register_forward_pre_hook(enter, with_kwargs=True)
    return len(weights)
