"""Distances of each kind: none of an output from itself, none for what changes nothing, and bounds that reject."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from latfix.config.model_output_rules import Kind
from latfix.runners.answers.distance_bounds import (
    BOUNDS,
    Apart,
    Measure,
    apart,
    deviation_of,
    edits,
    measure_of,
    similarity,
)

_RNG = np.random.default_rng(3)
_SHAPES: dict[Kind, tuple[int, ...]] = {
    "scores": (12,),
    "steps": (40, 12),
    "vectors": (64,),
    "numbers": (9, 4),
    "images": (3, 24, 24),
}


def _drawn(kind: Kind) -> Any:
    return 3.0 * _RNG.normal(size=_SHAPES[kind])


def _judged(kind: Kind, a: Any, b: Any) -> Apart:
    return apart(measure_of(kind, [a]), a, b)


@pytest.mark.parametrize("kind", _SHAPES)
def test_an_output_is_itself_and_rounding_changes_nothing(kind: Kind) -> None:
    output = _drawn(kind)
    own = _judged(kind, output, output.copy())
    assert own.agreement == 1.0 and own.distance == pytest.approx(0.0, abs=1e-7) and own.same
    rounded = _judged(kind, output, output.astype(np.float32))
    assert rounded.agreement == 1.0 and rounded.same and 0 < (rounded.distance or 0) < 1e-5


@pytest.mark.parametrize("kind", _SHAPES)
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_numbers_that_are_30_percent_off_do_not_agree(kind: Kind, factor: float) -> None:
    output = _drawn(kind)
    off = _judged(kind, output, factor * output)
    assert off.agreement < 0.1 and (off.distance or 0) > BOUNDS[kind]


@pytest.mark.parametrize("kind", _SHAPES)
def test_distance_grows_with_the_error(kind: Kind) -> None:
    output, noise = _drawn(kind), _RNG.normal(size=_SHAPES[kind])
    distances = [_judged(kind, output, output + size * noise).distance or 0.0 for size in (0.0, 1e-3, 1e-2, 0.1, 1.0)]
    assert distances == sorted(distances) and distances[-1] > distances[1] > 0


@pytest.mark.parametrize("kind", BOUNDS)
def test_missing_values_do_not_agree(kind: Kind) -> None:
    output = _RNG.integers(0, 9, 5) if kind == "ids" else _drawn(kind)
    other = output[:0] if output.ndim == 1 else output[..., :-1]
    assert _judged(kind, output, other).agreement < 1.0
    if kind != "ids":
        lost = output.copy()
        lost.flat[0] = np.nan
        assert _judged(kind, output, lost) == Apart(0.0, None, broken=True)


@pytest.mark.parametrize("kind", BOUNDS)
def test_an_output_with_missing_values_is_itself(kind: Kind) -> None:
    """Such as a depth map that is NaN where nothing was measured, or the mean of no tokens."""
    output = _drawn("numbers" if kind == "ids" else kind)
    output.flat[0], output.flat[1] = np.nan, np.inf
    own = _judged(kind, output, output.copy())
    assert own.agreement == 1.0 and own.same
    other = output.copy()
    other.flat[1] = -np.inf
    assert kind in ("scores", "steps", "numbers") or _judged(kind, output, other).agreement == 0.0


def test_shares_with_missing_rows_are_themselves() -> None:
    shares = np.array([[0.2, 0.8], [np.nan, np.nan]])
    assert apart(Measure(kind="steps", form="distributions"), shares, shares.copy()).same


def test_a_declared_kind_holds_for_whole_numbers() -> None:
    counts = np.array([200, 100], dtype=np.uint8)
    assert _judged("numbers", counts, counts + np.uint8(1)).agreement == 1.0
    assert _judged("numbers", counts, counts[::-1].copy()).agreement == 0.0
    assert _judged("numbers", counts, counts[:1]).agreement == 0.5
    assert _judged("scores", counts, counts + np.uint8(1)).agreement == 1.0
    assert _judged("ids", counts, counts + np.uint8(1)).agreement == 0.0
    assert measure_of("scores", [np.array("None"), counts]).scale > 1, "an output that some answers lack"


def test_a_sure_binary_decision_raises_no_warning() -> None:
    assert _judged("scores", np.array([-1e4]), np.array([1e4])).agreement == 0.0


def test_scores_agree_by_their_largest_entry_and_their_distribution() -> None:
    first = np.array([4.0, 1.0, 0.0])
    assert _judged("scores", first, np.array([4.2, 1.1, 0.1])).agreement == 1.0
    assert _judged("scores", first, first + 100.0).agreement == 1.0, "a constant changes no distribution"
    assert _judged("scores", first, np.array([1.0, 4.0, 0.0])).agreement == 0.0
    assert _judged("scores", first, np.array([1.2, 1.0, 0.9])).agreement == 0.0, "the same class, hardly"
    sure, unsure = np.array([0.9, 0.1]), np.array([0.6, 0.4])
    found = _judged("scores", sure, unsure)
    assert found.agreement == 0.0 and found.distance == pytest.approx(0.3)
    assert _judged("scores", sure, np.array([0.8, 0.2])).agreement == 1.0
    tags = np.array([0.9, 0.8, 0.0])  # each for itself
    assert _judged("scores", tags, np.array([0.9, 0.3, 0.0])).distance == pytest.approx(0.5)


def test_a_tie_that_noise_decides_is_no_other_class() -> None:
    tie, other = np.array([2.0, 2.0 - 1e-6, -1.0]), np.array([2.0 - 1e-6, 2.0, -1.0])
    assert _judged("scores", tie, other).same
    near, far = np.array([0.52, 0.48]), np.array([0.48, 0.52])
    assert apart(Measure(kind="scores", form="distributions"), near, far).agreement == 0.0
    assert apart(Measure(kind="scores", form="distributions", varies=0.03), near, far).agreement == 1.0


def test_masked_scores_are_left_out() -> None:
    masked = np.array([1.0, -np.inf, 3.0])
    assert _judged("scores", masked, np.array([1.0, -np.inf, 3.01])).agreement == 1.0
    assert _judged("scores", masked, np.array([3.0, -np.inf, 1.0])).agreement == 0.0


def test_one_step_of_many_is_no_whole_failure() -> None:
    steps = _drawn("steps")
    changed = steps.copy()
    changed[7] = np.roll(changed[7], 5)
    assert _judged("steps", steps, changed).agreement == pytest.approx(39 / 40)
    assert _judged("steps", steps, np.delete(steps, 7, axis=0)).agreement == pytest.approx(39 / 40)
    assert _judged("steps", steps[None], np.delete(steps, 7, axis=0)[None]).agreement == pytest.approx(39 / 40)
    assert _judged("steps", np.array([[1, 2, 3]]), np.array([[1, 3]])).agreement == pytest.approx(2 / 3)
    assert _judged("steps", np.array("Invoice 17"), np.array("Invoice17")).agreement == pytest.approx(0.9)
    assert _judged("ids", np.array("Invoice 17"), np.array("Invoice17")).agreement == 0.0


@pytest.mark.parametrize(
    ("a", "b", "least"),
    [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("abc", "abc", 0), ("ab", "ba", 2)],
)
def test_edits(a: str, b: str, least: int) -> None:
    one, other = (np.array(list(text), dtype=str) for text in (a, b))
    assert edits(one, other) == edits(other, one) == least


def test_edits_are_those_of_the_plain_recursion() -> None:
    def plain(a: list[int], b: list[int]) -> int:
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            last, row[0] = row[0], i
            for j, y in enumerate(b, 1):
                last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
        return row[-1]

    for _ in range(200):
        a, b = (_RNG.integers(0, 4, _RNG.integers(0, 12)) for _ in range(2))
        assert edits(a, b) == plain(a.tolist(), b.tolist())


def test_very_long_sequences_are_compared_place_by_place() -> None:
    a = np.arange(5000)
    assert similarity(a, a) == 1.0 and similarity(a, a[:4000]) == 0.8


def test_vectors_agree_by_direction_and_length() -> None:
    first = np.array([3.0, 4.0])
    assert _judged("vectors", first, np.array([3.1, 4.0])).agreement == 1.0
    assert _judged("vectors", first, np.array([4.0, 3.0])).agreement == 0.0
    longer = _judged("vectors", first, 1.2 * first)
    assert longer.agreement == 0.0 and longer.distance == pytest.approx(0.2)
    assert _judged("vectors", np.stack([first, first]), np.stack([first, -first])).agreement == 0.5


def test_a_field_with_a_large_mean_is_not_like_any_other() -> None:
    """Temperatures in kelvin, say: as plain directions all of them are the same."""
    field, other = (280.0 + 15.0 * _RNG.normal(size=(5, 12, 12)) for _ in range(2))
    assert _judged("vectors", field, other).agreement == 0.0
    assert _judged("vectors", field, field + _RNG.normal(size=field.shape)).agreement == 1.0
    assert _judged("vectors", field, field + 15.0).agreement == 0.0


def test_one_box_of_many_is_no_whole_failure() -> None:
    boxes = 200.0 * _RNG.random((10, 4))
    assert _judged("numbers", boxes, np.delete(1.001 * boxes, 3, axis=0)).agreement == pytest.approx(0.9)
    assert _judged("numbers", boxes, np.delete(1.5 * boxes, 3, axis=0)).agreement < 0.2
    assert _judged("numbers", boxes, boxes[:0]).agreement == 0.0
    scores = np.linspace(0.9, 0.1, 9)
    assert _judged("numbers", scores, scores[:-1]).agreement == pytest.approx(8 / 9)


def test_numbers_agree_within_2_percent_of_themselves() -> None:
    values = np.array([10.0, 20.0, 1e-9])
    found = _judged("numbers", values, np.array([10.1, 22.0, 1e-3]))
    assert found.agreement == pytest.approx(2 / 3), "next to zero the others at its place are the measure"
    assert found.distance == pytest.approx(0.1)
    nothing = np.array([np.nan, 1.0])
    assert _judged("numbers", nothing, nothing).agreement == 1.0
    assert _judged("numbers", nothing, np.array([0.0, 1.0])).agreement == 0.0


def test_images_agree_by_their_noise() -> None:
    image = _RNG.random((3, 32, 32))
    noise = _RNG.normal(size=image.shape)
    near, far = (_judged("images", image, image + size * noise) for size in (0.01, 0.1))
    assert near.agreement == 1.0 and far.agreement == 0.0
    assert near.distance == pytest.approx(0.01, rel=0.1), "40 dB"
    pixels = _RNG.integers(0, 256, (32, 32, 3)).astype(np.uint8)
    assert _judged("images", pixels, 255 - pixels).agreement == 0.0


def test_the_bound_follows_from_the_originals_variation() -> None:
    assert Measure(kind="numbers").bound == BOUNDS["numbers"]
    varying = Measure(kind="numbers", varies=0.015)
    assert varying.bound == 0.03 and varying.noise == BOUNDS["numbers"]
    assert apart(varying, np.array([1.0]), np.array([1.025])).agreement == 1.0


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
def test_raw_deviation(expected: Any, got: Any, deviation: float) -> None:
    assert deviation_of(expected, got) == pytest.approx(deviation, rel=1e-4)
