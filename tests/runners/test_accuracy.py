"""When two outputs say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from latfix.runners.accuracy import agree, flatten


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([0.1, 0.9]), torch.tensor([0.2, 0.7]), True),
        (torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1]), False),
        (torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([[0.3, 0.5], [0.6, 0.1]]), True),
        (torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([[0.3, 0.5], [0.1, 0.6]]), False),
        (torch.tensor(1.0), torch.tensor(1.015), True),
        (torch.tensor(1.0), torch.tensor(1.05), False),
        (torch.tensor([2.0]), torch.tensor([2.5]), False),
        (1.0, 1.0, True),
        (3, 3, True),
        (3, 4, False),
        ("cat", "cat", True),
        ("cat", "dog", False),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (torch.tensor([1, 2]), torch.tensor([2, 1]), False),
        (torch.ones(2), torch.ones(3), False),
        ({"label": "a", "score": 0.5}, {"score": 0.501, "label": "a"}, True),
        ({"label": "a", "score": 0.5}, {"score": 0.501, "label": "b"}, False),
        ([1, 2], [1], False),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), True),
        (torch.tensor(float("nan")), torch.tensor(1.0), False),
        (torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0], dtype=torch.bfloat16), True),
    ],
)
def test_agreement(a: Any, b: Any, same: bool) -> None:
    assert agree(flatten(a), flatten(b)) is same
    assert agree(flatten(b), flatten(a)) is same


def test_flattening_keeps_the_order_of_keys() -> None:
    leaves = flatten({"b": (1, torch.tensor([2.0])), "a": "x"})
    assert [leaf.tolist() for leaf in leaves] == ["x", 1, [2.0]]
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
