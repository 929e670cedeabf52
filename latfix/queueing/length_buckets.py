"""Length and padding: which requests may share a batch, and how much of a batch is padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats

#: A member's length is within this factor of the head's, or within this many elements, which bounds padding.
LENGTH_RATIO = 1.5
LENGTH_SLACK = 16


def alike(length: int, head: int) -> bool:
    """True if a request may join the batch of ``head``.

    :param length: elements in all of its inputs; ``head`` likewise.
    """
    longer, shorter = max(length, head), min(length, head)
    return longer <= shorter * LENGTH_RATIO or longer - shorter <= LENGTH_SLACK


def padded_elements(batches: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """Padded size of each batch, in elements of its members.

    An adapter's ``collate`` may add tensors of its own (masks, lengths). Batches of one hold no padding, so their
    growth is attributed to such tensors and divided out.

    :param batches: columns of :data:`latfix.run_record.schema.BATCH_DTYPE`.
    """
    real = batches["real_elements"].astype(np.float64)
    padded = batches["padded_elements"].astype(np.float64)
    seen = (real > 0) & (padded > 0)
    alone = seen & (batches["size"] == 1)
    ratios = padded[alone] / real[alone] if alone.any() else padded[seen] / real[seen]
    added = 1.0
    if len(ratios):
        added = max(float(np.median(ratios) if alone.any() else ratios.min()), 1.0)
    return np.maximum(padded / added, real)


def padded_sides(requests: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """The two sides by which a batch's members are padded, ``(n, 2)``: width, and elements per width.

    A batch is padded to the largest of each, so images of other shapes hold more padding than sequences. The product
    is the request's elements.

    :param requests: columns of :data:`latfix.run_record.schema.REQUEST_DTYPE`.
    """
    elements = requests["input_elements"].astype(np.float64)
    width = np.maximum(requests["input_width"].astype(np.float64), 1.0)
    return np.column_stack([width, elements / width])


def padding_share(batches: Mapping[str, npt.NDArray[Any]]) -> float:
    """The share of all batches that is padding, from 0 to 1."""
    padded = float(padded_elements(batches).sum())
    return 1.0 - float(batches["real_elements"].sum()) / padded if padded else 0.0
