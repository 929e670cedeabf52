"""First uses of a value of a feature, such as an input size, that a service behind an address answered slowly.

A kernel is tuned, a graph traced or a file read once for each value. The client sees only that the first request with
a value took longer than later ones with the same. Only first uses after a request that was not slow tell this: others
may have met the same slow stretch of the service.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Ints
from latfix.profilers.evidence.work_model import STANDARD

#: A use is slow if it takes longer than other uses of its value by this share of a typical request, and by so many
#: standard deviations of them.
_LONGER, _DEVIATIONS = 0.5, 4.0
#: Least number of values; the least share of their first uses that is slow; standard deviations beyond chance.
_LEAST, _MOST, _BEYOND_CHANCE = 5, 0.5, 3.0


def slow_first_uses(
    columns: Sequence[npt.NDArray[Any]], at: Ints, took: Ints, judged: Bools, *, longer: float = _LONGER
) -> Bools:
    """``(n,)`` True for first uses of the feature whose first uses cost most, if they are slow.

    :param columns: features, ``(n,)`` each.
    :param at: ``(n,)`` when each request came; ``took`` its service, nanoseconds.
    :param judged: ``(n,)`` False for warm-up and failed requests: theirs count as uses only.
    :param longer: a slow use takes longer than others of its value by at least this share of a typical one.
    """
    order = np.argsort(at, kind="stable")
    best, most = np.zeros(len(at), dtype=bool), 0.0
    for column in columns:
        texts = column.astype(str) if column.dtype == object else column
        first, beyond = _beyond_later(
            np.unique(texts[order], return_inverse=True)[1], took[order], judged[order], longer
        )
        if (cost := float(beyond.sum())) > most:
            best, most = np.zeros(len(at), dtype=bool), cost
            best[order[first]] = True
    return best & judged


def _beyond_later(value: Ints, took: Ints, judged: Bools, longer: float) -> tuple[Ints, Ints]:
    """Places of first uses, in order of arrival, and by how much those with later uses exceed them, if they do."""
    _, first = np.unique(value, return_index=True)
    later = judged.copy()
    later[first] = False
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not later.any():
        return none
    rows = np.flatnonzero(later)
    rows = rows[np.lexsort((took[rows], value[rows]))]
    known, begin, count = np.unique(value[rows], return_index=True, return_counts=True)
    usual = np.full(len(first), -1, np.int64)
    usual[known] = took[rows[begin + count // 2]]
    beyond = took - usual[value]
    scatter = float(np.median(np.abs(beyond[later])))
    slow = beyond > max(longer * float(np.median(took[later])), _DEVIATIONS * STANDARD * scatter)
    before = np.maximum.accumulate(np.where(later, np.arange(len(took)), -1))[first]
    tested = first[judged[first] & (usual >= 0) & ~((before >= 0) & slow[before])]
    chance, many = float(np.mean(slow[later])), len(tested)
    expected = many * chance + _BEYOND_CHANCE * math.sqrt(many * chance * (1 - chance))
    if many < _LEAST or np.count_nonzero(slow[tested]) <= max(_MOST * many, expected):
        return none
    return first, np.maximum(beyond[tested], 0)
