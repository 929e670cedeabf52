"""Change points of a rate: times at which intermittent events become more, or less, frequent.

A series of counts (or of fractions of a full event) over equal numbers of opportunities is cut into stretches of
constant rate. The cost of a stretch is the negative Poisson log likelihood at its own rate, the optimum over
all cuts comes from pruned dynamic programming (PELT; Killick, Fearnhead and Eckley, JASA 107, 2012), and the
price of a cut is the gain of the best cut of the same values in random order, so that a steady rate is not cut.
"""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats, Ints

#: Longest series; sum up neighbors of a longer one first.
MOST_VALUES = 2_000
_SHUFFLES = 99
_QUANTILE = 0.98
_LENGTHS = 1.3


def rate_changes(values: Floats, *, seed: int) -> Ints:
    """Edges of the stretches of constant rate, including 0 and ``len(values)``.

    :param values: ``(n,)`` nonnegative, in order of time; at most :data:`MOST_VALUES`.
    :param seed: of the random orders.
    :raises ValueError: there are too many values.
    """
    n = len(values)
    if n > MOST_VALUES:
        raise ValueError(f"found {n} values; expected at most {MOST_VALUES}: sum neighbors up first")
    whole = np.array([0, n], dtype=np.int64)
    if n < 4 or np.ptp(values) <= 0:
        return whole
    price = _price(values, np.random.default_rng(seed))
    return _cheapest_cuts(values, price)


def _worth(total: Floats, count: Floats) -> Floats:
    """Poisson log likelihood of stretches at their own rates, up to a term that all cuts share."""
    return np.where(total > 0, total * np.log(np.maximum(total, 1e-300) / np.maximum(count, 1.0)), 0.0)


def _price(values: Floats, rng: np.random.Generator) -> float:
    """The least gain of a change: exceeded by the best change of a random order in few cases."""
    n = len(values)
    lengths = np.unique(np.rint(_LENGTHS ** np.arange(np.log(n) / np.log(_LENGTHS))).astype(np.int64))
    lengths = lengths[lengths < n]
    total = float(values.sum())
    whole = float(_worth(np.array([total]), np.array([float(n)]))[0])
    running = np.zeros((_SHUFFLES, n + 1))
    running[:, 1:] = np.cumsum([rng.permutation(values) for _ in range(_SHUFFLES)], axis=1)

    def gained(inside: Floats, size: Floats) -> Floats:
        outside = np.maximum(total - inside, 0.0)
        return np.asarray((_worth(inside, size) + _worth(outside, n - size)).max(axis=1) - whole)

    # The gain of a stretch of fixed length is convex in its sum, so an extreme sum gains most.
    within = [running[:, length:] - running[:, :-length] for length in lengths.tolist()]
    extremes = np.stack([end for inside in within for end in (inside.max(axis=1), inside.min(axis=1))], axis=1)
    stretch = np.quantile(gained(extremes, np.repeat(lengths, 2).astype(np.float64)), _QUANTILE)
    edge = np.quantile(gained(running[:, 1:n], np.arange(1, n, dtype=np.float64)), _QUANTILE)
    return max(float(stretch) / 2, float(edge))


def _cheapest_cuts(values: Floats, price: float) -> Ints:
    n = len(values)
    running = np.concatenate([[0.0], np.cumsum(values)])
    cost = np.full(n + 1, np.inf)
    cost[0] = -price
    previous = np.zeros(n + 1, np.int64)
    starts, ends = np.zeros(1, np.int64), np.arange(n + 1)
    for end in range(1, n + 1):
        total = running[end] - running[starts]
        # As _worth, in fewer steps: this line runs for each value.
        through = cost[starts] - total * np.log(np.maximum(total, 1e-300) / (end - starts))
        best = int(np.argmin(through))
        cost[end], previous[end] = through[best] + price, starts[best]
        starts = np.concatenate([starts[through <= cost[end]], ends[end : end + 1]])
    edges = [n]
    while edges[-1] > 0:
        edges.append(int(previous[edges[-1]]))
    return np.array(edges[::-1], dtype=np.int64)


def rising_level(values: Floats) -> Floats:
    """The least-squares level that never falls (pool adjacent violators; Barlow et al., 1972).

    Not from SciPy, which takes a second to import.
    """
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            count = counts[-2] + counts[-1]
            mean = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            del means[-1], counts[-1]
            means[-1], counts[-1] = mean, count
    return np.repeat(np.array(means, dtype=np.float64), counts)
