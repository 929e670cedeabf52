"""Answers with an exaggerated deviation, and the bound on a loss that follows from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from latfix.runners.answers.exaggeration import exaggerated, narrowed
from latfix.runners.measure.accuracy_guard import paired_loss, too_few_to_tell
from latfix.statistics.decision import Interval


@pytest.mark.parametrize(
    ("before", "after", "larger"),
    [
        ([1.0, 2.0], [1.5, 2.0 - 0.25], [3.0, 1.0]),
        ([{"a": np.array([1.0])}], [{"a": np.array([2.0])}], [{"a": np.array([5.0])}]),
        ([(torch.tensor([1.0]), [0.5])], [(torch.tensor([0.0]), [1.0])], [(torch.tensor([-3.0]), [2.5])]),
        ([[0.0, 0.0, 1.0]], [[0.0, 0.0, 1.5]], [[0.0, 0.0, 3.0]]),
    ],
    ids=["numbers", "arrays", "tensors", "zeros that stay"],
)
def test_the_deviation_grows_and_the_structure_stays(before: list[Any], after: list[Any], larger: list[Any]) -> None:
    found = exaggerated(before, after, 4.0)
    assert found == larger and [type(each) for each in found or ()] == [type(each) for each in after]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, 2], [1, 2]),
        (["a"], ["a"]),
        ([{"class": 1, "scores": 0.1}], [{"class": 1, "scores": 0.2}]),
        ([np.zeros(2)], [np.ones(3)]),
        ([[1.0]], [[1.0, 2.0]]),
        ([None], [1.0]),
        ([0.25] * 9 + [0.5], [0.25] * 9 + [0.75]),
        ([[0.0, 1.0]], [[0.0, 1.0]]),
        ([torch.ones(2)], [torch.full((2,), 2.0, device="meta")]),
        ([torch.ones(2).to_sparse()], [torch.full((2,), 2.0).to_sparse()]),
        ([], []),
    ],
    ids=[
        "integers",
        "texts",
        "labels",
        "shapes",
        "lengths",
        "failed",
        "rounded",
        "one-hot",
        "device",
        "sparse",
        "none",
    ],
)
def test_answers_that_jump_show_nothing_in_between(before: list[Any], after: list[Any]) -> None:
    assert exaggerated(before, after, 4.0) is None


def test_a_bound_is_never_below_the_loss_that_was_seen() -> None:
    loss = Interval(value=0.01, lo=-0.02, hi=0.05)
    most = Interval(value=0.0, lo=-0.01, hi=0.02)
    assert narrowed(loss, [1.0], [1.1], lambda _: most) == Interval(value=0.01, lo=-0.02, hi=0.01)
    assert narrowed(loss, [1.0], [1.1], lambda _: None) == loss
    assert narrowed(loss, [1], [1], lambda _: most) == loss


@pytest.mark.parametrize("shape", [1.0, 2.0], ids=["uniform", "separated"])
@pytest.mark.parametrize("loss", [0.002, 0.01, 0.03])
def test_the_bound_covers_the_true_loss(loss: float, shape: float) -> None:
    """A request is lost if its answer deviates by more than its margin: 200 samples of 128 requests.

    The share of margins below m grows like m ** shape; 1 is the least for which the bound is meant.
    """
    rng = np.random.default_rng(3)
    covered = decided = 0
    for _ in range(200):
        margin = rng.random(128) ** (1 / shape)
        away = loss ** (1 / shape)

        def score(answers: list[Any], margin: Any = margin) -> float:
            return float(np.mean(np.array(answers) < margin))

        before, after = [0.0] * 128, [away] * 128
        found = paired_loss(score, before, after, seconds=0.05)
        assert found is not None
        loss_of = partial(paired_loss, score, before, seconds=0.05)
        bound = narrowed(found, before, after, loss_of)
        covered += loss <= bound.hi
        decided += not too_few_to_tell(bound, 0.01)
    assert covered >= 180
    if loss == 0.002:
        assert decided >= 150, "without it, 128 requests decide nothing"
