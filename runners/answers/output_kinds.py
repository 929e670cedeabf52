"""The kind of an output, inferred from its name, its shapes and its values unless it is declared."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from latfix.config.model_output_rules import Kind
from latfix.runners.answers.named_outputs import Array

#: Words in an output's name; the first match decides. Conclusive sizes and values take precedence.
_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"logit|prob|score|class|cls|softmax|confidence", re.IGNORECASE), "scores"),
    (re.compile(r"embed|hidden|feature|vector|pool|represent|encod", re.IGNORECASE), "vectors"),
    (
        re.compile(r"box|coord|locat|offset|delta|landmark|keypoint|pose|regress|value|price", re.IGNORECASE),
        "numbers",
    ),
    (re.compile(r"image|picture|frame|pixel|depth|mask", re.IGNORECASE), "images"),
)
_SEQUENCES = re.compile(r"token|ids$|sequence|text", re.IGNORECASE)
#: Channels of pictures, and their minimum height and width.
_CHANNELS, _LEAST_SIDE = (1, 3, 4), 16
#: Tolerance of a sum, or a length, of 1.
_ONE = 1e-2
#: From this share of different texts on, they are generated rather than chosen from a few labels.
_WRITTEN = 0.5


def kind_of(name: str, values: Sequence[Array]) -> tuple[Kind, str]:
    """The kind of one output, and the reason for it.

    :param values: the output in answers to different requests.
    """
    types = {array.dtype.kind for array in values}
    if not types <= set("f"):
        return _of_labels(name, values)
    if all(array.size <= 1 for array in values):
        return "numbers", "single numbers"
    rows = [bare(array, 2) for array in values]
    dimensions = max(array.ndim for array in rows)
    if dimensions <= 2 and all(map(sum_to_one, rows)):
        return ("scores" if dimensions <= 1 else "steps"), "rows that sum to 1"
    for pattern, kind in _NAMES:
        if pattern.search(name.rpartition(".")[2]):
            return (_classes(rows) if kind == "scores" else kind), f"the name {name!r}"
    if all(map(_of_unit_length, values)):
        return "vectors", "rows of length 1"
    return _by_shape(values, rows)


def bare(array: Array, least: int) -> Array:
    """The array without leading dimensions of 1, such as a batch of one, but with at least ``least`` dimensions."""
    while array.ndim > least and array.shape[0] == 1:
        array = array[0]
    return array


def sum_to_one(array: Array) -> bool:
    """True if each row along the last axis is a distribution."""
    if array.ndim == 0 or array.shape[-1] < 2 or not np.isfinite(array).all():
        return False
    return bool((array >= -_ONE).all() and (np.abs(array.sum(-1) - 1.0) < _ONE).all())


def _of_labels(name: str, values: Sequence[Array]) -> tuple[Kind, str]:
    if all(array.dtype.kind == "U" for array in values):
        texts = [str(array) for array in values]
        written = len(set(texts)) > _WRITTEN * len(texts) and any(len(text) > 1 for text in texts)
        return ("steps", "texts that differ") if written else ("ids", "texts that recur")
    if all(array.dtype.name == "uint8" and _is_picture(array) for array in values):
        return "images", "bytes in the shape of a picture"
    rows = [bare(array, 1) for array in values]
    if all(array.ndim == 1 and array.dtype.kind in "iu" for array in rows):
        if len({len(array) for array in rows}) > 1:
            return "steps", "rows of whole numbers of different lengths"
        if _SEQUENCES.search(name):
            return "steps", f"the name {name!r}"
    return "ids", "whole numbers or labels"


def _classes(rows: Sequence[Array]) -> Kind:
    """Classes of a request, or of its steps; numbers if rows differ in length, as one number for each detection."""
    if len({array.shape[-1:] for array in rows} - {()}) > 1:
        return "numbers"
    return "steps" if max(array.ndim for array in rows) > 1 else "scores"


def _of_unit_length(array: Array) -> bool:
    return array.ndim >= 1 and bool((np.abs(np.linalg.norm(array, axis=-1) - 1.0) < _ONE).all())


def _by_shape(values: Sequence[Array], rows: Sequence[Array]) -> tuple[Kind, str]:
    first = f"the shape {values[0].shape}"
    if all(map(_is_picture, values)):
        return "images", f"{first}, that of a picture"
    dimensions = max(array.ndim for array in rows)
    if dimensions > 2:
        return "vectors", first
    if all(len({array.shape[axis] for array in rows if array.ndim == 2}) > 1 for axis in (0, 1)) and all(
        min(array.shape, default=0) >= _LEAST_SIDE for array in rows
    ):
        return "images", f"{first}, and others of another height and width"
    if dimensions == 2 and rows[0].shape[-1:] == (4,):
        return "numbers", f"{first}, that of boxes"
    found = _classes(rows)
    return found, "rows of any length" if found == "numbers" else first


def _is_picture(array: Array) -> bool:
    array = bare(array, 3)
    shape = array.shape
    if array.ndim != 3:
        return False
    return (shape[0] in _CHANNELS and min(shape[1:]) >= _LEAST_SIDE) or (
        shape[2] in _CHANNELS and min(shape[:2]) >= _LEAST_SIDE
    )
