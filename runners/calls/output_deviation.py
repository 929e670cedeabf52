"""How far a converted model's answers are from the original's, and the order of what both are called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

#: The largest deviation from the original's answers, as a share of the largest number among them: what another
#: order of summation in float32 explains, and no more.
MOST_DEVIATION = 1e-3


def as_called(batch: Any) -> Any:
    """A batch as the model's ``forward`` gets it (:func:`latfix.runners.calls.model_call.call_model`)."""
    if isinstance(batch, dict):
        return batch
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def in_order(names: Any) -> str:
    """A structure with the order of its names, which a comparison of dicts leaves out."""
    return repr(names)


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
