"""The reference: what a quiet, typical request takes, stage by stage."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from latfix.profilers.evidence.work_model import Bools, Ints


def quiet_median(values: Ints, quiet: Bools) -> int:
    """Median over quiet requests, in whole nanoseconds; zero where there are none."""
    chosen = values[quiet]
    return int(np.median(chosen)) if len(chosen) else 0


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
