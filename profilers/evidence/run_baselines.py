"""Norms of a run: figures that are learned once and hold for all of it.

A large record is attributed piece by piece. Medians, models and prices must be the run's, not each piece's, or the
pieces' ledgers would have different references.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from latfix.arrays import Bools, Ints

T = TypeVar("T")


class Norms:
    """Figures by name, each computed at its first use and cached."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, name: str, learn: Callable[[], T]) -> T:
        """The cached figure, or the result of ``learn``."""
        if name not in self._known:
            self._known[name] = learn()
        return cast(T, self._known[name])

    def copied(self) -> Norms:
        """A copy of the cached figures, independent of this one."""
        copy = Norms()
        copy._known.update(self._known)
        return copy

    def __contains__(self, name: str) -> bool:
        return name in self._known


def whole_median(values: Ints) -> int:
    """Median in whole nanoseconds; zero without values."""
    return int(np.median(values)) if len(values) else 0


def quiet_median(values: Ints, quiet: Bools) -> int:
    """Median over quiet requests in whole nanoseconds; zero without any."""
    return whole_median(values[quiet])
