"""Length and padding: which requests are alike enough to share a batch, and what of a batch is padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats

#: A member's length lies within this factor of the head's, or within this many elements, so that padding
#: stays bounded.
LENGTH_RATIO = 1.5
LENGTH_SLACK = 16


def alike(length: int, head: int) -> bool:
    """Whether a request may join the batch of ``head``.

    :param length: elements in all of its inputs; ``head`` likewise.
    """
    longer, shorter = max(length, head), min(length, head)
    return longer <= shorter * LENGTH_RATIO or longer - shorter <= LENGTH_SLACK


def padded_elements(batches: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """Elements of each batch as padded, in the measure of its members' own elements.

    An adapter's ``collate`` may add tensors of its own (masks, lengths). What batches of one, which hold no
    padding, carry more than their member brought is taken for that, and divided out.

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


def padding_share(batches: Mapping[str, npt.NDArray[Any]]) -> float:
    """The share of all batches that is padding, from 0 to 1."""
    padded = float(padded_elements(batches).sum())
    return 1.0 - float(batches["real_elements"].sum()) / padded if padded else 0.0
