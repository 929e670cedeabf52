"""When two outputs agree, and how far apart their numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from latfix.runners.calls.output_agreement import agree, deviation_of, difference, flatten


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


def test_how_far_apart_numbers_are() -> None:
    first = [flatten(torch.tensor([1.0, -4.0])), flatten("a"), None, flatten(torch.zeros(2))]
    second = [flatten(torch.tensor([1.0, -3.9])), flatten("b"), flatten(1), flatten(torch.zeros(2))]
    found = difference(first, second)
    assert (found.compared, found.agreeing, found.broken) == (3, 2, 0)
    assert found.deviation == pytest.approx(0.025)
    # A number next to zero is measured by the others at its place.
    near = difference([flatten(2.0), flatten(1e-9)], [flatten(2.0), flatten(0.01)])
    assert near.deviation == pytest.approx(0.005)


@pytest.mark.parametrize("answer", [None, flatten(torch.tensor([float("nan"), 1.0]))])
def test_an_answer_that_broke_is_counted(answer: Any) -> None:
    found = difference([flatten(torch.tensor([2.0, 1.0]))], [answer])
    assert (found.agreeing if answer is None else 0, found.broken, found.deviation) == (0, 1, None)


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
