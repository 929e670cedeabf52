"""Linear layers of a model on a GPU in eight bits, by torchao: int8 or fp8 weights, activations as they come or not.

A layer stays a ``nn.Linear``; its weight becomes a tensor of torchao's, whose product quantizes the activations and
picks the kernel. Without a compiler that is many small kernels; what it saves shows only compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from latfix.runners.model_transforms.precision_support import Capability, by_torchao
from latfix.settings import Precision

#: cuBLAS multiplies int8 of more than 16 rows only: torch's product raises for fewer, and outside of the compiler
#: torchao multiplies in float32 then and says nothing.
_LEAST_ROWS = 32
#: Inputs and outputs of a layer that the int8 and fp8 products take are multiples of this; torchao leaves other
#: layers as they are (fp8) or multiplies them on the host (int8).
STEP = 16
#: Generations of GPUs on which torch's fp8 product takes one scale a row; the others take one scale a tensor.
_SCALES_BY_ROW = (9, 10)


class FewRowsLinear(torch.nn.Linear):
    """``nn.Linear`` that fills its input up to the rows that an int8 product needs; its answer is without them.

    Rows of zeros change no other row: activations are quantized row by row.
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
    """Whether the product of this precision takes a layer's sizes."""
    if precision == "int8_weight_only":
        return True
    # Some versions of torchao leave layers of 16 inputs, too: too small to gain anything.
    return layer.in_features % STEP == 0 and layer.out_features % STEP == 0 and layer.in_features > STEP


def quantize_layers(layers: Iterable[torch.nn.Linear], precision: Precision, capability: Capability | None) -> None:
    """Quantize layers in place.

    :param layers: each once, on the device that they run on, with sizes that fit (:func:`fits`); for ``fp8_dynamic``
        in bfloat16.
    :param capability: of that device.
    :raises ImportError: torchao is missing, or too old.
    :raises RuntimeError: torchao left a layer as it was.
    """
    from torchao.quantization import quantize_

    config = _config(precision, capability)
    for layer in layers:
        # The transformation of these configurations changes the layer itself, so that all who hold it see it.
        quantize_(layer, config, filter_fn=_every)
        if not by_torchao(layer.weight):
            sizes = f"{layer.in_features} × {layer.out_features}"
            raise RuntimeError(f"torchao left a linear layer of {sizes} as it was")
        if precision == "int8_dynamic":
            layer.__class__ = FewRowsLinear


def _config(precision: Precision, capability: Capability | None) -> Any:
    """What torchao is asked for. Its own compiler settings are left out: they hold for the whole process, and in
    some versions change what float32 products of all other models are computed in."""
    from torchao import quantization

    if precision == "int8_dynamic":
        return quantization.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    if precision == "int8_weight_only":
        return quantization.Int8WeightOnlyConfig(set_inductor_config=False)
    by_row = capability is not None and capability[0] in _SCALES_BY_ROW
    scales = quantization.PerRow() if by_row else quantization.PerTensor()
    return quantization.Float8DynamicActivationFloat8WeightConfig(granularity=scales, set_inductor_config=False)


def _every(module: torch.nn.Module, name: str) -> bool:
    del module, name
    return True
