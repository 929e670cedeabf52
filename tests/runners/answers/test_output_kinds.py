"""The kind of an output, and the reason for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latfix.runners.answers.output_kinds import kind_of

_RNG = np.random.default_rng(0)


def _probabilities(*shape: int) -> Any:
    raised = np.exp(_RNG.normal(size=shape))
    return raised / raised.sum(-1, keepdims=True)


def _unit(*shape: int) -> Any:
    values = _RNG.normal(size=shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "one", "other", "kind"),
    [
        ("", _probabilities(10), _probabilities(10), "scores"),
        ("", _probabilities(7, 10), _probabilities(9, 10), "steps"),
        ("", _RNG.normal(size=5), _RNG.normal(size=5), "scores"),
        ("", _RNG.normal(size=(7, 5)), _RNG.normal(size=(9, 5)), "steps"),
        ("", _unit(64), _unit(64), "vectors"),
        ("embedding", _RNG.normal(size=64), _RNG.normal(size=64), "vectors"),
        ("a.last_hidden_state", _RNG.normal(size=(7, 64)), _RNG.normal(size=(9, 64)), "vectors"),
        ("", _RNG.normal(size=(6, 4)), _RNG.normal(size=(6, 4)), "numbers"),
        ("", np.array(0.5), _RNG.normal(size=(5, 4)), "steps"),
        ("boxes", _RNG.normal(size=(6, 5)), _RNG.normal(size=(3, 5)), "numbers"),
        ("", np.array(0.3), np.array(2.0), "numbers"),
        ("", np.array([0.3]), np.array([2.0]), "numbers"),
        ("", _RNG.normal(size=3), _RNG.normal(size=4), "numbers"),
        ("", _RNG.random((3, 32, 40)), _RNG.random((3, 32, 40)), "images"),
        ("", np.zeros((32, 40, 3), np.uint8), np.zeros((32, 40, 3), np.uint8), "images"),
        # A batch of one that the model kept is no dimension of the answer's.
        ("", _probabilities(1, 7, 10), _probabilities(1, 9, 10), "steps"),
        ("", _RNG.normal(size=(1, 7, 5)), _RNG.normal(size=(1, 9, 5)), "steps"),
        ("", _RNG.normal(size=(1, 6, 4)), _RNG.normal(size=(1, 3, 4)), "numbers"),
        ("", _RNG.random((1, 3, 32, 40)), _RNG.random((1, 3, 32, 40)), "images"),
        ("", np.array([[1, 2, 3]]), np.array([[4, 5]]), "steps"),
        # Of what was found there is a score each, and no class among them.
        ("scores", _RNG.random(3), _RNG.random(5), "numbers"),
        ("", _RNG.random((64, 8, 8)), _RNG.random((64, 8, 8)), "vectors"),
        # Classes are the same ones in each answer.
        ("", _RNG.random((64, 80)), _RNG.random((70, 96)), "images"),
        ("", _RNG.random((64, 80)), _RNG.random((70, 80)), "steps"),
        ("", _RNG.random((64, 80)), _RNG.random((64, 96)), "numbers"),
        ("", _RNG.random((64, 8)), _RNG.random((70, 9)), "numbers"),
        ("label", np.array(3), np.array(4), "ids"),
        ("top", np.array([1, 2, 3]), np.array([4, 5, 6]), "ids"),
        ("tokens", np.array([1, 2, 3]), np.array([4, 5, 6]), "steps"),
        ("", np.array([1, 2, 3]), np.array([4, 5]), "steps"),
        ("", np.array("invoice 7"), np.array("page 12"), "steps"),
        ("", np.array("cat"), np.array("cat"), "ids"),
        ("", np.array([True]), np.array([False]), "ids"),
    ],
)
def test_kinds(name: str, one: Any, other: Any, kind: str) -> None:
    found, reason = kind_of(name, [one.astype(np.float32) if one.dtype.kind == "f" else one, other])
    assert found == kind and reason
