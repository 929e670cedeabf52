"""A linear layer with int8 weights and bfloat16 activations."""

from __future__ import annotations

import torch

#: Rows up to which the packed product is faster. Measured with torch 2.13 on one core of an EPYC with AVX512-BF16,
#: layers of 160 to 4096: 1.2 to 6 times as fast as bfloat16 for one row, equal at about 12.
FEW_ROWS = 10
#: torch's kernel reads 16 inputs at a time, and past the end of a row of another length: wrong numbers or a crash.
STEP = 16


class Int8WeightLinear(torch.nn.Module):
    """``nn.Linear`` with int8 weights and one scale per output; inputs and outputs are bfloat16.

    Weights are rounded symmetrically to 255 levels per row; activations are not quantized, so their outliers cost no
    accuracy. Few rows (token by token) use torch's packed kernel, which reads a quarter of the bytes; many rows use
    the same weights in bfloat16, for which the packed kernel is slower.

    The packed kernel also takes float32, at 2 to 100 times the time of a plain product; it is not used.

    :raises ValueError: ``in_features`` is no multiple of 16.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    wide: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        if linear.in_features % STEP:
            raise ValueError(f"found {linear.in_features} inputs; expected a multiple of {STEP}")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        exact = linear.weight.detach().float()
        scale = (exact.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127).bfloat16()
        rounded = (exact / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8).contiguous()
        self.register_buffer("weight", rounded)
        self.register_buffer("scale", scale)
        self.register_buffer("wide", (rounded.float() * scale.float()[:, None]).bfloat16())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T + bias`` for ``x`` of shape (..., in_features)."""
        if x.numel() > FEW_ROWS * self.in_features:
            return torch.nn.functional.linear(x, self.wide, self.bias)
        rows = x.reshape(-1, self.in_features).contiguous()
        product = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        if self.bias is not None:
            product = product + self.bias
        return product.view(*x.shape[:-1], self.out_features)
