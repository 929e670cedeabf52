"""What is usual in a run: figures that are learned once and hold for all of it.

A large record is attributed piece by piece. Medians, models and prices must then be the run's, not each piece's,
or the pieces' ledgers would count from different references.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from latfix.arrays import Bools, Ints

T = TypeVar("T")


class Norms:
    """Figures by name; each is computed where it is first asked for, and kept."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, name: str, learn: Callable[[], T]) -> T:
        """The figure called ``name``; ``learn`` computes it if nothing has yet."""
        if name not in self._known:
            self._known[name] = learn()
        return cast(T, self._known[name])

    def copied(self) -> Norms:
        """What is known so far; what the copy learns stays its own."""
        copy = Norms()
        copy._known.update(self._known)
        return copy

    def __contains__(self, name: str) -> bool:
        return name in self._known


def whole_median(values: Ints) -> int:
    """Median in whole nanoseconds; zero of none."""
    return int(np.median(values)) if len(values) else 0


def quiet_median(values: Ints, quiet: Bools) -> int:
    """Median over quiet requests, in whole nanoseconds; zero where there are none."""
    return whole_median(values[quiet])


@dataclass(slots=True)
class Reference:
    """Reference nanoseconds, added up while the ledger is made: each claim's, each remainder's.

    A stage's reference is the sum of the quiet medians of its parts, so that a request's excess over it is
    the sum of the excesses of the parts and nothing is left over.
    """

    stages: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, stage: str, ns: int) -> int:
        """Count ``ns`` to a stage; returns it."""
        self.stages[stage] += ns
        return ns

    @property
    def total_ns(self) -> int:
        """The latency of a quiet, typical request."""
        return sum(self.stages.values())
