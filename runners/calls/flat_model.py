"""A model as exporters take it: tensors in a row, in and out."""

from __future__ import annotations

from typing import Any

import torch

from latfix.runners.calls.model_call import call_model
from latfix.runners.calls.tensor_tree import flatten, unflatten


class FlatModel(torch.nn.Module):
    """A model that takes and returns tensors in a row, which is all that an exported graph knows."""

    def __init__(self, model: torch.nn.Module, shape: Any) -> None:
        super().__init__()
        self.model = model
        self._shape = shape

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The model's outputs, flattened."""
        return tuple(flatten(call_model(self.model, unflatten(self._shape, tensors)))[0])
