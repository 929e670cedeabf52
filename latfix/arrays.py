"""Types of NumPy columns, ranks, places and groups in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def ranks(series: Floats | Ints) -> Floats:
    """Ranks from 1, ties averaged. Not from ``scipy.stats``, which takes over a second to import."""
    _, inverse, counts = np.unique(series, return_inverse=True, return_counts=True)
    upper = np.cumsum(counts)
    return np.asarray((upper - (counts - 1) / 2.0)[inverse], dtype=np.float64)


def places(wanted: Ints, ids: Ints) -> Ints:
    """For each wanted id its first place in ``ids``, in any order; -1 for an id that is not there."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, -1)


def groups_of(keys: npt.NDArray[Any]) -> list[Ints]:
    """The positions of each key, in order of the keys; each group ascending."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else []
