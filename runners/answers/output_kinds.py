"""What kind of output an answer holds: as declared, otherwise told from its name, its shapes and its values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from latfix.config.model_output_rules import Kind
from latfix.runners.answers.named_outputs import Array

#: Words in an output's name, the first match decides. Sizes and values say more, and go before, where they decide.
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
#: Channels of pictures, and the least height and width of one.
_CHANNELS, _LEAST_SIDE = (1, 3, 4), 16
#: How near a sum, or a length, must be to 1.
_ONE = 1e-2
#: From this share of different texts on they are written, not chosen from a few labels.
_WRITTEN = 0.5


def kind_of(name: str, values: Sequence[Array]) -> tuple[Kind, str]:
    """The kind of one output, and what told it.

    :param values: the output in some answers to different requests.
    """
    types = {array.dtype.kind for array in values}
    dimensions = max(array.ndim for array in values)
    if not types <= set("f"):
        return _of_labels(name, values, dimensions)
    if all(array.size <= 1 for array in values):
        return "numbers", "single numbers"
    if dimensions <= 2 and all(map(sum_to_one, values)):
        return _classes(dimensions), "rows that sum to 1"
    for pattern, kind in _NAMES:
        if pattern.search(name.rpartition(".")[2]):
            return (_classes(dimensions) if kind == "scores" else kind), f"the name {name!r}"
    if all(map(_of_unit_length, values)):
        return "vectors", "rows of length 1"
    return _by_shape(values, dimensions)


def sum_to_one(array: Array) -> bool:
    """True if each row along the last axis is a distribution."""
    if array.ndim == 0 or array.shape[-1] < 2 or not np.isfinite(array).all():
        return False
    return bool((array >= -_ONE).all() and (np.abs(array.sum(-1) - 1.0) < _ONE).all())


def _of_labels(name: str, values: Sequence[Array], dimensions: int) -> tuple[Kind, str]:
    if all(array.dtype.kind == "U" for array in values):
        texts = [str(array) for array in values]
        written = len(set(texts)) > _WRITTEN * len(texts) and any(len(text) > 1 for text in texts)
        return ("steps", "texts that differ") if written else ("ids", "texts that recur")
    if all(array.dtype.name == "uint8" and _is_picture(array) for array in values):
        return "images", "bytes in the shape of a picture"
    if dimensions == 1 and all(array.dtype.kind in "iu" for array in values):
        if len({len(array) for array in values}) > 1:
            return "steps", "rows of whole numbers of different lengths"
        if _SEQUENCES.search(name):
            return "steps", f"the name {name!r}"
    return "ids", "whole numbers or labels"


def _classes(dimensions: int) -> Kind:
    return "scores" if dimensions <= 1 else "steps"


def _of_unit_length(array: Array) -> bool:
    return array.ndim >= 1 and bool((np.abs(np.linalg.norm(array, axis=-1) - 1.0) < _ONE).all())


def _by_shape(values: Sequence[Array], dimensions: int) -> tuple[Kind, str]:
    first = f"the shape {values[0].shape}"
    if all(map(_is_picture, values)):
        return "images", f"{first}, that of a picture"
    if dimensions > 2:
        return "vectors", first
    if dimensions == 2:
        return ("numbers", f"{first}, that of boxes") if values[0].shape[-1] == 4 else ("steps", first)
    return ("scores", first) if len({array.shape for array in values}) == 1 else ("numbers", "rows of any length")


def _is_picture(array: Array) -> bool:
    shape = array.shape
    if array.ndim != 3:
        return False
    return (shape[0] in _CHANNELS and min(shape[1:]) >= _LEAST_SIDE) or (
        shape[2] in _CHANNELS and min(shape[:2]) >= _LEAST_SIDE
    )
