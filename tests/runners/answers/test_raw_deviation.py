"""How far apart the numbers of two outputs are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from latfix.runners.answers.raw_deviation import deviation_of


@pytest.mark.parametrize(
    ("expected", "got", "deviation"),
    [
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.01])], 0.005),
        ([torch.tensor([1.0])], [torch.tensor([[1.0]])], float("inf")),
        ([torch.tensor([1])], [torch.tensor([1])], 0.0),
        ([torch.tensor([1])], [torch.tensor([2])], float("inf")),
        ([torch.tensor([float("nan"), 1.0])], [torch.tensor([float("nan"), 1.0])], 0.0),
        ([torch.tensor([float("nan"), 1.0])], [torch.tensor([0.0, 1.0])], float("inf")),
        ([torch.tensor([float("inf")])], [torch.tensor([float("-inf")])], float("inf")),
        ([torch.zeros(2)], [torch.tensor([0.0, 0.5])], 0.5),
        ([torch.tensor([1.0])], [torch.tensor([float("nan")])], float("inf")),
        (["a"], ["a"], 0.0),
        (["a"], ["b"], float("inf")),
        ([torch.ones(1)], [], float("inf")),
        ([], [], 0.0),
    ],
)
def test_answers_are_compared(expected: Any, got: Any, deviation: float) -> None:
    assert deviation_of(expected, got) == pytest.approx(deviation, rel=1e-4)
