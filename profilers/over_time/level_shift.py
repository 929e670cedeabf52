"""Detection of a stretch of time in which a series was higher than in the rest.

Makes no assumption on the distribution: it tests how often a value inside exceeds one outside (Mann and Whitney,
1947), so a series that is always uneven has no such stretch, even with a long tail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats, ranks

#: Number of windows that stretches consist of; least number and share of values inside and outside.
_WINDOWS, _LEAST, _LEAST_SHARE = 24, 4, 0.1
#: Least probability that a value inside exceeds one outside, and its least distance from one half in standard errors.
_SUPERIOR, _SIGNIFICANT = 0.85, 3.2
#: Least ratio of the mean inside to the mean outside.
_HIGHER = 1.5


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a series.

    :param first: index of its first value; ``last`` is exclusive.
    :param inside: mean of its values; ``outside`` of the others.
    """

    first: int
    last: int
    inside: float
    outside: float


def raised_stretch(values: Floats) -> Stretch | None:
    """The clearest stretch in which a series was higher, or ``None``."""
    n = len(values)
    if n < 2 * _LEAST:
        return None
    edges = np.unique(np.linspace(0, n, min(n, _WINDOWS) + 1).astype(np.int64))
    running = np.concatenate([[0.0], np.cumsum(ranks(values))])[edges]
    first, last = np.triu_indices(len(edges), 1)
    inside = (edges[last] - edges[first]).astype(np.float64)
    outside = n - inside
    fits = np.minimum(inside, outside) >= max(_LEAST, _LEAST_SHARE * n)
    if not fits.any():
        return None
    first, last, inside, outside = first[fits], last[fits], inside[fits], outside[fits]
    wins = running[last] - running[first] - inside * (inside + 1) / 2
    spread = np.sqrt(inside * outside * (n + 1) / 12)
    score = (wins - inside * outside / 2) / spread
    best = int(np.argmax(score))
    superior = float(wins[best] / (inside[best] * outside[best]))
    if score[best] < _SIGNIFICANT or superior < _SUPERIOR:
        return None
    chosen = slice(int(edges[first[best]]), int(edges[last[best]]))
    within = float(np.mean(values[chosen]))
    rest = (float(values.sum()) - within * inside[best]) / outside[best]
    if within < _HIGHER * rest:
        return None
    return Stretch(chosen.start, chosen.stop, within, rest)
