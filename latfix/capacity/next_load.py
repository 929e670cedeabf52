"""Which load to replay next: where a replay narrows the answer most for the time that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from latfix.capacity.load_crossing import LoadErrors

Kind = Literal["grid", "largest", "knee"]

#: A simulation is followed so far beyond the loads that were replayed, by a factor.
_FARTHEST = 4.0
#: Where nothing is known of lower loads, or no load is seen to meet the limit; and the least step down.
_LOWER, _LEAST_LOWER = 1 / 2, 1 / 1.5
#: How far below the lowest of the first loads a crossing is looked for.
LOWEST = 1 / 16
#: Quantiles of the crossing that are candidates: its middle halves what is known of it.
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
    """The load, as a multiple of the recorded rate; ``None`` where no lower one is worth a replay.

    Candidates lie in the middle of the predicted crossing (of the knee, without a limit) and at the ends of its
    middle two thirds. Taken is the one whose replay takes most of the variance of the error at the middle away, for
    each second that it costs.

    :param errors: ``None`` where every replay was ended early, or failed.
    :param guess: where the crossing lies as simulated from those.
    :param replayed: at least one.
    :param limit: seconds.
    :param cost_s: seconds that a replay of a load takes.
    :param first: the lowest load that was asked for.
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
