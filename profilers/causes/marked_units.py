"""Units with a mark that may or may not cost time, and the threshold from which they are slow by it."""

from __future__ import annotations

from functools import partial

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.profilers.causes.cause import Left
from latfix.profilers.evidence.units import Evidence

#: Marked units must be slow more often than unmarked ones by this many standard errors.
_ERRORS = 4.0


def slow_by_mark(evidence: Evidence, left: Left, unit: str, marked: Bools, name: str) -> Ints:
    """On-CPU nanoseconds of marked units beyond their inputs' need, if they are slow more often than unmarked ones.

    Zeros if all units are marked, because then the cost is unknown.

    :param name: of the mark, under which the run's threshold is stored.
    """
    excess = left.cpu_excess(unit)
    least = evidence.norms.of(f"{name}.{unit}", partial(_slow_from, evidence, unit, marked, excess))
    return np.where(marked & (excess > least), excess, 0)


def _slow_from(evidence: Evidence, unit: str, marked: Bools, excess: Ints) -> float:
    """Nanoseconds beyond the model from which a marked unit is slow by its mark; infinite if none is."""
    model, worked = evidence.expected.models[unit], evidence.units[unit].wall > 0
    with_mark, without = excess[worked & marked], excess[worked & ~marked]
    if not len(without):
        return np.inf
    least = model.clearly_slow_ns(float(np.median(without)))
    chance = (np.count_nonzero(without > least) + 1) / (len(without) + 2)
    expected = chance * len(with_mark)
    found = np.count_nonzero(with_mark > least)
    return least if found > expected + _ERRORS * np.sqrt(expected * (1 - chance) + 1) else np.inf
