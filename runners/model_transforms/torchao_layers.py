"""8-bit linear layers on a GPU by torchao: int8 or fp8 weights, with or without quantized activations.

A layer stays an ``nn.Linear``; its weight becomes one of torchao's tensors, whose product quantizes the activations
and picks the kernel. Uncompiled, that is many small kernels, so the gain shows only when compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from latfix.runners.model_transforms.precision_support import Capability, by_torchao
from latfix.settings import Precision

#: cuBLAS multiplies int8 only for more than 16 rows: torch's product raises for fewer, and uncompiled torchao
#: silently multiplies in float32.
_LEAST_ROWS = 32
#: The int8 and fp8 products take layers whose inputs and outputs are multiples of this; torchao leaves others
#: unmodified (fp8) or multiplies them on the host (int8).
STEP = 16
#: Generations of GPUs on which torch's fp8 product takes one scale per row; others take one scale per tensor.
_SCALES_BY_ROW = (9, 10)


class FewRowsLinear(torch.nn.Linear):
    """``nn.Linear`` that pads its input to the number of rows that an int8 product needs, and drops them after it.

    Rows of zeros change no other row, because activations are quantized per row.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input @ weight.T + bias`` for ``input`` of shape (..., in_features)."""
        rows = input.numel() // self.in_features
        if rows >= _LEAST_ROWS:
            return torch.nn.functional.linear(input, self.weight, self.bias)
        flat = input.reshape(rows, self.in_features)
        filled = torch.nn.functional.pad(flat, (0, 0, 0, _LEAST_ROWS - rows))
        product = torch.nn.functional.linear(filled, self.weight, self.bias)[:rows]
        return product.reshape(*input.shape[:-1], self.out_features)


def fits(layer: torch.nn.Linear, precision: Precision) -> bool:
    """True if the product of this precision takes a layer's sizes."""
    if precision == "int8_weight_only":
        return True
    # Some versions of torchao also leave layers of 16 inputs unmodified; they are too small to gain anything.
    return layer.in_features % STEP == 0 and layer.out_features % STEP == 0 and layer.in_features > STEP


def quantize_layers(layers: Iterable[torch.nn.Linear], precision: Precision, capability: Capability | None) -> None:
    """Quantize layers in place.

    :param layers: without duplicates, on their device, with sizes that fit (:func:`fits`); for ``fp8_dynamic`` in
        bfloat16.
    :param capability: compute capability of that device.
    :raises ImportError: torchao is missing or too old.
    :raises RuntimeError: torchao did not change a layer.
    """
    from torchao.quantization import quantize_

    config = _config(precision, capability)
    for layer in layers:
        # These configurations change the layer object itself, so every module that refers to it is changed.
        quantize_(layer, config, filter_fn=lambda *_: True)
        if not by_torchao(layer.weight):
            sizes = f"{layer.in_features} × {layer.out_features}"
            raise RuntimeError(f"torchao did not change a linear layer of {sizes}")
        if precision == "int8_dynamic":
            layer.__class__ = FewRowsLinear


def _config(precision: Precision, capability: Capability | None) -> Any:
    """torchao's configuration, without its compiler settings: those apply to the whole process, and in some versions
    change the precision of float32 products in all other models."""
    from torchao import quantization

    if precision == "int8_dynamic":
        return quantization.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    if precision == "int8_weight_only":
        return quantization.Int8WeightOnlyConfig(set_inductor_config=False)
    by_row = capability is not None and capability[0] in _SCALES_BY_ROW
    scales = quantization.PerRow() if by_row else quantization.PerTensor()
    return quantization.Float8DynamicActivationFloat8WeightConfig(granularity=scales, set_inductor_config=False)
