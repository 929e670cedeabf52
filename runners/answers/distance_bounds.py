"""Distance and agreement of two outputs of one kind.

A distance is 0 for equal outputs. Each kind has a bound beyond which two outputs do not agree:

scores, steps
    total variation of the two distributions; for logits, the larger of this and the root mean squared difference as a
    share of their spread (at least half of the usual spread).
vectors
    the larger of the chord of the angle between them (the root of 2 - 2 cosine), and the distance of the ratio of
    their norms from 1. numbers the difference as a share of the number, or of a tenth of the usual size if the number
    is close to zero. images root mean squared error as a share of the range (10^(-PSNR/20)). ids equal or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import ne
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.config.model_output_rules import Kind
from latfix.runners.answers.named_outputs import Array, outputs_of
from latfix.runners.answers.output_kinds import bare, sum_to_one

#: Maximum distance at which outputs agree. Images: 30 dB. Vectors: a cosine of 0.989.
BOUNDS: Mapping[Kind, float] = {
    "scores": 0.2,
    "steps": 0.2,
    "vectors": 0.15,
    "numbers": 0.02,
    "images": 10 ** (-30 / 20),
    "ids": 0.0,
}
#: Distance that another order of summation in float32 explains.
ROUNDING = 1e-3
#: Margin on the largest observed variation: the maximum over a few answers is not that over all.
_VARIES_MORE = 2.0
#: Minimum size that a number counts as, as a share of the usual size.
_NEXT_TO_ZERO = 0.1
#: Minimum spread that logits count as, as a share of the usual spread: if none stands out, they are as small as
#: noise.
_UNDECIDED = 0.5
#: Sequences longer than this are compared place by place.
_LONGEST_EDITED = 4096


@dataclass(frozen=True, slots=True)
class Apart:
    """How two outputs differ.

    :param agreement: share of the output that agrees; 1 or 0 for a single decision.
    :param distance: the largest one; ``None`` if there are no numbers to compare.
    :param broken: the second has NaN or infinity in place of numbers.
    :param same: they differ by no more than the original does from itself.
    """

    agreement: float
    distance: float | None
    broken: bool = False
    same: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How an output is judged.

    :param scale: usual size: root mean square of numbers, spread of logits, norm of vectors, range of images.
    :param form: of scores and steps: ``distributions``, ``shares`` (each between 0 and 1) or ``logits``.
    :param varies: largest distance between the original's own answers, alone and in a batch or on other threads.
    """

    kind: Kind
    scale: float = 1.0
    form: str = "logits"
    varies: float = 0.0

    @property
    def bound(self) -> float:
        """Maximum distance at which outputs agree."""
        return max(BOUNDS[self.kind], _VARIES_MORE * self.varies)

    @property
    def noise(self) -> float:
        """Maximum distance at which outputs count as the same, even if their decisions differ."""
        return min(max(ROUNDING, _VARIES_MORE * self.varies), BOUNDS[self.kind])


def measure_of(kind: Kind, values: Sequence[Array]) -> Measure:
    """The measure of an output, from answers of the original."""
    numbers = [array for array in values if array.dtype.kind in "fiub" and array.size]
    floats = [_finite(array) for array in numbers]
    if not floats or kind == "ids":
        return Measure(kind=kind)
    if kind == "images":
        low, high = min(each.min() for each in floats), max(each.max() for each in floats)
        return Measure(kind=kind, scale=float(high - low) or 1.0)
    if kind in ("scores", "steps"):
        spreads = [float(each.std(-1).mean()) for each in floats if each.ndim]
        return Measure(kind=kind, scale=float(np.median(spreads or [1.0])) or 1.0, form=_form(numbers))
    if kind == "vectors":
        norms = np.concatenate([np.linalg.norm(_rows(each, each), axis=-1) for each in floats])
        return Measure(kind=kind, scale=float(np.median(norms)) or 1.0)
    squares = sum(float((each**2).sum()) for each in floats)
    return Measure(kind=kind, scale=float(np.sqrt(squares / sum(each.size for each in floats))) or 1.0)


def apart(measure: Measure, a: Array, b: Array) -> Apart:
    """How ``b`` differs from the reference ``a``."""
    types = {a.dtype.kind, b.dtype.kind}
    if "f" not in types and (measure.kind in ("ids", "steps") or not types <= set("iub")):
        return _labels_apart(measure.kind, a, b)
    if not types <= set("fiub"):
        return Apart(0.0, None)
    a, b = a.astype(np.float64), b.astype(np.float64)
    broken = a.shape == b.shape and bool((np.isfinite(a) & ~np.isfinite(b)).any())
    if broken or (a.shape == b.shape and bool((np.isnan(a) & ~np.isnan(b)).any())):
        return Apart(0.0, None, broken)
    steps = bare(a, 2), bare(b, 2)
    if measure.kind == "steps" and steps[0].ndim == steps[1].ndim == 2 and len(steps[0]) != len(steps[1]):
        return Apart(similarity(*(each.argmax(-1) for each in steps)), None)
    if measure.kind == "numbers" and a.ndim == b.ndim > 0 and len(a) != len(b) and a.shape[1:] == b.shape[1:]:
        return Apart(similarity(a, b, partial(_unlike, measure)), None)
    if a.shape != b.shape:
        return Apart(0.0, None)
    if not a.size:
        return Apart(1.0, 0.0, same=True)
    if measure.kind != "numbers" and not (measure.kind in ("scores", "steps") and measure.form == "logits"):
        # Pixels without a depth are NaN, for example. Numbers are compared one by one, and logits may be masked.
        gone = ~np.isfinite(a)
        if (gone & (a != b) & ~(np.isnan(a) & np.isnan(b))).any():
            return Apart(0.0, None)
        a, b = np.where(gone, 0.0, a), np.where(gone, 0.0, b)
    agrees, distance = _DISTANCES[measure.kind](measure, a, b)
    same = distance <= measure.noise
    agrees = same | (agrees & (distance <= measure.bound))
    return Apart(float(agrees.mean()), float(distance.max()), same=bool(same.all()))


def _unlike(measure: Measure, a: Array, b: Array) -> Array:
    """By row of ``b``, True if any of its numbers differs from ``a``."""
    near = np.abs(b - a) <= measure.bound * np.maximum(np.abs(a), _NEXT_TO_ZERO * measure.scale)
    return np.asarray(~near.all(axis=tuple(range(1, near.ndim))))


def _labels_apart(kind: Kind, a: Array, b: Array) -> Apart:
    if kind == "steps" and a.ndim == b.ndim == 0:
        a, b = (np.array(list(str(text)), dtype=str) for text in (a, b))
    a, b = bare(a, 1), bare(b, 1)
    if kind == "steps" and a.ndim == b.ndim == 1:
        agreement = similarity(a, b)
    elif a.shape != b.shape:
        agreement = 0.0
    else:
        agreement = float(np.mean(a == b)) if a.size else 1.0
    return Apart(agreement, None, same=agreement == 1.0)


def similarity(a: Array, b: Array, unlike: Callable[[Any, Array], Array] = ne) -> float:
    """1 minus the edit distance (Levenshtein, 1966) of two sequences over the length of the longer one.

    :param unlike: takes one item of ``a``, or as many as ``b`` has, and ``b``; True for each item of ``b`` that
        differs.
    """
    longest = max(len(a), len(b))
    if not longest:
        return 1.0
    if longest > _LONGEST_EDITED:
        shared = min(len(a), len(b))
        return float(np.sum(~unlike(a[:shared], b[:shared]))) / longest
    return 1.0 - edits(a, b, unlike) / longest


def edits(a: Array, b: Array, unlike: Callable[[Any, Array], Array] = ne) -> int:
    """Minimum number of insertions, deletions and substitutions that lead from one sequence to the other."""
    places = np.arange(len(b) + 1)
    row = places.copy()
    for item in a:
        ahead = np.empty_like(row)
        ahead[0] = row[0] + 1
        ahead[1:] = np.minimum(row[1:] + 1, row[:-1] + unlike(item, b))
        # All insertions at once, from left to right.
        row = np.minimum.accumulate(ahead - places) + places
    return int(row[-1])


def _form(values: Sequence[Array]) -> str:
    if all(map(sum_to_one, values)):
        return "distributions"
    within = all(bool(((array >= 0) & (array <= 1)).all()) for array in values)
    return "shares" if within else "logits"


def _scores(measure: Measure, a: Floats, b: Floats) -> tuple[Array, Array]:
    """By row: True if the same entry is the largest, and the distance of the distributions."""
    if a.ndim == 0 or a.shape[-1] == 1:  # a binary decision
        one = np.atleast_1d(a), np.atleast_1d(b)
        p, q = one if measure.form != "logits" else (0.5 + 0.5 * np.tanh(each / 2) for each in one)
        return (p >= 0.5)[..., 0] == (q >= 0.5)[..., 0], np.abs(p - q)[..., 0]
    same = _filled(a).argmax(-1) == _filled(b).argmax(-1)
    if measure.form == "distributions":
        return np.atleast_1d(same), np.atleast_1d(0.5 * np.abs(a - b).sum(-1))
    if measure.form == "shares":
        return np.atleast_1d(same), np.atleast_1d(np.abs(a - b).max(-1))
    variation = 0.5 * np.abs(_softmax(a) - _softmax(b)).sum(-1)
    usable = np.isfinite(a)
    difference = np.where(usable, np.subtract(b, a, where=usable, out=np.zeros_like(a)), 0.0)
    count = np.maximum(usable.sum(-1, keepdims=True), 1)
    # A constant that is added to all logits does not change the distribution.
    difference = np.where(usable, difference - difference.sum(-1, keepdims=True) / count, 0.0)
    centered = np.where(usable, a, 0.0)
    centered = np.where(usable, centered - centered.sum(-1, keepdims=True) / count, 0.0)
    spread = np.sqrt((centered**2).sum(-1) / count[..., 0])
    apart = np.sqrt((difference**2).sum(-1) / count[..., 0]) / np.maximum(spread, _UNDECIDED * measure.scale)
    return np.atleast_1d(same), np.atleast_1d(np.maximum(variation, apart))


def _vectors(measure: Measure, a: Floats, b: Floats) -> tuple[Array, Array]:
    a, b = _rows(a, a), _rows(b, a)
    least = _NEXT_TO_ZERO * measure.scale
    first, second = (np.linalg.norm(each, axis=-1) for each in (a, b))
    cosine = (a * b).sum(-1) / np.maximum(first * second, np.finfo(np.float64).tiny)
    # A vector close to zero has no direction: use the difference itself.
    chord = np.where(
        np.minimum(first, second) >= least,
        np.sqrt(np.clip(2.0 - 2.0 * cosine, 0.0, None)),
        np.linalg.norm(a - b, axis=-1) / max(least, np.finfo(np.float64).tiny),
    )
    distance = np.maximum(chord, np.abs(second - first) / np.maximum(first, least))
    return np.ones_like(distance, dtype=bool), distance


def _numbers(measure: Measure, a: Floats, b: Floats) -> tuple[Array, Array]:
    usable = np.isfinite(a)
    difference = np.abs(np.subtract(b, a, where=usable, out=np.zeros_like(a)))
    distance = difference / np.maximum(np.abs(np.where(usable, a, 0.0)), _NEXT_TO_ZERO * measure.scale)
    same = usable | (a == b) | (np.isnan(a) & np.isnan(b))
    return np.atleast_1d(same), np.atleast_1d(np.where(same, distance, np.inf))


def _images(measure: Measure, a: Floats, b: Floats) -> tuple[Array, Array]:
    distance = np.array([float(np.sqrt(np.mean((a - b) ** 2))) / measure.scale])
    return np.ones(1, dtype=bool), distance


def _same(_: Measure, a: Floats, b: Floats) -> tuple[Array, Array]:
    same = np.atleast_1d(a == b)
    return same, np.where(same, 0.0, 1.0)


_DISTANCES: Mapping[Kind, Callable[[Measure, Floats, Floats], tuple[Array, Array]]] = {
    "scores": _scores,
    "steps": _scores,
    "vectors": _vectors,
    "numbers": _numbers,
    "images": _images,
    "ids": _same,
}


def _finite(array: Array) -> Floats:
    return np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _filled(array: Floats) -> Floats:
    """NaN and infinity replaced by minus infinity, so that they are never the largest."""
    return np.where(np.isfinite(array), array, -np.inf)


def _rows(array: Floats, reference: Floats) -> Floats:
    """Vectors along the last axis; an array of more than two dimensions is one vector, minus the reference's mean.

    Without that, any two fields with a large mean would point in the same direction.
    """
    array, reference = bare(array, 2), bare(reference, 2)
    if array.ndim == 2:
        return array
    middle = reference.mean() if array.ndim > 2 else 0.0
    return np.asarray(array - middle, dtype=np.float64).reshape(1, -1)


def _softmax(array: Floats) -> Floats:
    usable = _filled(array)
    highest = usable.max(-1, keepdims=True)
    raised = np.exp(usable - np.where(np.isfinite(highest), highest, 0.0))
    total = raised.sum(-1, keepdims=True)
    return np.asarray(raised / np.where(total > 0, total, 1.0), dtype=np.float64)


def deviation_of(expected: Any, got: Any) -> float:
    """Largest difference of the floats of two outputs, as a share of the largest number in the same tensor.

    Infinite if the outputs differ in structure, shape, positions of NaN or infinity, texts or integers.
    """
    first, second = outputs_of(expected), outputs_of(got)
    if [output.name for output in first] != [output.name for output in second]:
        return math.inf
    return max((_deviation(a.values, b.values) for a, b in zip(first, second, strict=True)), default=0.0)


def _deviation(a: Array, b: Array) -> float:
    if a.shape != b.shape:
        return math.inf
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return math.inf
    largest = float(np.abs(a[finite]).max(initial=0.0))
    apart = float(np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0.0))
    return apart / (largest or 1.0)
