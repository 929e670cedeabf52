"""A model as exporters take it, and how far a converted model's answers are from the original's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from latfix.runners.calls.model_call import call_model
from latfix.runners.calls.tensor_tree import flatten, unflatten

#: The largest deviation from the original's answers, as a share of the largest number among them: what another
#: order of summation in float32 explains, and no more.
MOST_DEVIATION = 1e-3


def deviation_of(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """The largest difference of two answers as a share of the largest number of the first; infinite where they
    differ in shape, in what is no number, or in anything that is not a float."""
    if len(expected) != len(got):
        return float("inf")
    return max((_deviation(a, b) for a, b in zip(expected, got, strict=True)), default=0.0)


def _deviation(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b.to(a.dtype)) else float("inf")
    first, second = a.double(), b.double()
    finite = torch.isfinite(first)
    if not torch.equal(finite, torch.isfinite(second)) or not torch.equal(
        torch.nan_to_num(first[~finite], nan=0.5), torch.nan_to_num(second[~finite], nan=0.5)
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(first[finite].abs().max())
    return float((first[finite] - second[finite]).abs().max()) / largest if largest > 0 else float(second.abs().max())


class FlatModel(torch.nn.Module):
    """A model that takes and returns tensors in a row, which is all that an exported graph knows."""

    def __init__(self, model: torch.nn.Module, shape: Any) -> None:
        super().__init__()
        self.model = model
        self._shape = shape

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The model's outputs, flattened."""
        return tuple(flatten(call_model(self.model, unflatten(self._shape, tensors)))[0])
