"""Which load to replay next: the one that narrows the answer most per second of replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from latfix.capacity.load_crossing import LoadErrors

Kind = Literal["grid", "largest", "knee"]

#: A simulation is trusted up to this factor beyond the replayed loads.
_FARTHEST = 4.0
#: Step down if nothing is known of lower loads, or no load meets the limit; and the least step down.
_LOWER, _LEAST_LOWER = 1 / 2, 1 / 1.5
#: A crossing is searched this far below the lowest of the first loads.
LOWEST = 1 / 16
#: Quantiles of the crossing that are candidates; the median halves the uncertainty.
_CANDIDATES = (0.16, 0.5, 0.84)


def next_load(
    errors: LoadErrors | None,
    replayed: Sequence[float],
    limit: float | None,
    cost_s: Callable[[float], float],
    *,
    first: float,
    guess: float | None = None,
) -> float | None:
    """The next load, as a multiple of the recorded rate; ``None`` if no lower one is worth a replay.

    Candidates are the median of the predicted crossing (of the knee, without a limit) and the ends of its middle two
    thirds. The best one removes most of the error's variance at the median, per second of replay.

    :param errors: ``None`` if every replay was ended early or failed.
    :param guess: the crossing as simulated from those.
    :param replayed: at least one.
    :param limit: seconds.
    :param cost_s: returns the seconds that a replay of a load takes.
    :param first: the lowest requested load.
    """
    lowest, highest = min(replayed) / _FARTHEST, max(replayed) * _FARTHEST
    if errors is None:
        lower = min(replayed) * _LOWER
        if guess is not None:
            lower = min(max(guess, lowest), min(replayed) * _LEAST_LOWER)
        return lower if lower >= first * LOWEST else None
    draws = errors.wanted(limit)
    if math.isinf(np.quantile(draws, 0.5, method="nearest")):
        lowest = min(replayed) * _LOWER
    bounded = np.clip(draws, math.log(lowest), math.log(highest))
    some = np.quantile(bounded, _CANDIDATES, method="nearest").tolist()
    if math.exp(some[1]) < first * LOWEST:
        return None
    middle = some[1]
    return math.exp(max(some, key=lambda load: errors.gain(load, middle) / cost_s(math.exp(load))))
