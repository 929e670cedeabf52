"""The kernel of attention, and the memory layout of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latfix.runners.calls.tensor_tree import map_plain
from latfix.settings import Attention

if TYPE_CHECKING:
    import torch


def choose_attention(attention: Attention) -> None:
    """Restrict ``scaled_dot_product_attention`` to the requested kernel, in the whole process.

    With ``flash``, a call whose inputs it cannot run fails; there is no fallback. ``default`` keeps the choice of the
    adapter or program.
    """
    if attention == "default":
        return
    import torch

    # The switches are named after CUDA, but those of math and flash also apply to the CPU.
    torch.backends.cuda.enable_math_sdp(attention == "math")
    torch.backends.cuda.enable_flash_sdp(attention == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def in_channels_last(model: torch.nn.Module) -> int:
    """Convert a model's four-dimensional weights, and its input images, to channels last.

    :returns: how many weights were converted.
    """
    import torch

    last = torch.channels_last
    weights = [p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous(memory_format=last)]
    for weight in weights:  # Module.to would fail on weights of five dimensions
        weight.data = weight.data.contiguous(memory_format=last)

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        images = tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=last) if images else tensor

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return map_plain(args, laid_out), map_plain(kwargs, laid_out)

    model.register_forward_pre_hook(enter, with_kwargs=True)
    return len(weights)
