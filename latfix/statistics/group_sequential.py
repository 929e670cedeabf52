"""Looking at a comparison after every round, with the error rate of a single look.

Stopping at the first difference in twelve looks errs far more often than one look, so each look needs a stricter
level. The levels spend a given error rate over the rounds (Lan and DeMets, 1983) with the square of their share (Kim
and DeMets, 1987): an effect of a factor of two is detected at the first look, after five rounds, and nearly half of
the level remains for the last look, which detects small effects. How much an earlier look already covers is computed
for sums of normal increments (Armitage, McPherson and Rowe, 1969). The levels are then used with Student's t, which
makes 0.5 % of 12 looks 0.6 % (simulated; Jennison and Turnbull, 2000, chapter 11). Bounds at these levels hold at all
looks together (*repeated confidence intervals*, Jennison and Turnbull, 1989), so that stopping for "no difference" or
for "no prospect" costs no error. An always-valid sequence (Howard and others, 2021) would need no largest number of
rounds, but be wider; a budget implies a largest number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from latfix.arrays import Floats
from latfix.statistics.decision import LEVEL, RatioEstimate, judge
from latfix.statistics.distributions import student_t

#: Fewer restarts do not show their effect (:data:`latfix.statistics.score_bounds.FREE_OF_ALLOWANCE`).
FIRST_LOOK = 5
#: More rounds are not proposed: the effect is then too small to matter, or the machine too noisy.
MOST_PROPOSED = 200
_PROSPECT = 0.05
#: The spent share of the level grows with this power of the share of the rounds.
_SPENDING = 2.0
_GRID = 601
_REACH = 9.0

Reason = Literal["decided", "budget", "no prospect", "too late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """How much more data an undecided comparison needs, if further rounds resemble the past ones.

    :param rounds: more rounds, each a replay of both arms on fresh processes.
    :param requests: more requests, of each arm.
    """

    rounds: int
    requests: int


def look_level(rounds: int, most: int, *, last: bool = False, level: float = LEVEL) -> float:
    """The level for the decision bounds at the look after ``rounds`` of at most ``most`` rounds.

    :param last: no further look follows, so this one may use up the remaining level. The data must not determine
        this (the budget may, the ratio may not).
    :param level: error rate of all looks together.
    """
    looks = tuple(range(min(FIRST_LOOK, most), rounds + 1)) or (rounds,)
    shares = [min(look / most, 1.0) ** _SPENDING for look in looks]
    if last:
        shares[-1] = 1.0
    return _levels(looks, tuple(shares), level)[-1]


def prospect(estimate: RatioEstimate, most: int, *, smallest: float = 0.05) -> float:
    """The chance that a comparison is decided at the last of ``most`` rounds, if its trend continues.

    From the distribution of the last ratio given the present one, with a flat prior.
    """
    left = 1.0 - estimate.rounds / most
    if left <= 0 or not (math.isfinite(estimate.value) and math.isfinite(estimate.spread)) or estimate.value <= 0:
        return 0.0
    center = math.log(estimate.value)
    half = _half(estimate.spread, most, LEVEL)
    deviation = max(estimate.spread * math.sqrt(left / estimate.rounds), 1e-12)
    ahead = NormalDist(center, deviation)
    called = ahead.cdf(-half) + 1.0 - ahead.cdf(half)
    room = math.log1p(smallest) - half
    return called + (ahead.cdf(room) - ahead.cdf(-room) if room > 0 else 0.0)


def stop(estimate: RatioEstimate, most: int, *, smallest: float = 0.05) -> Reason | None:
    """Why a comparison ends here; ``None`` if another round is worth its time.

    :param estimate: with bounds at this look's level (:func:`look_level`).
    """
    if estimate.rounds >= min(FIRST_LOOK, most) and judge(estimate, smallest=smallest) != "undecided":
        return "decided"
    if estimate.rounds >= most:
        return "budget"
    if estimate.rounds >= FIRST_LOOK and prospect(estimate, most, smallest=smallest) < _PROSPECT:
        return "no prospect"
    return None


def needed(
    estimate: RatioEstimate, requests: int, *, limit: float | None = None, smallest: float = 0.05
) -> Need | None:
    """How many more rounds would decide a comparison; ``None`` if no sensible number would.

    :param requests: the number that ended in one arm, over all rounds.
    :param limit: the ratio that a gate compares with; ``None`` to detect a difference, or rule out one larger than
        ``smallest``.
    """
    if not (math.isfinite(estimate.value) and math.isfinite(estimate.spread)) or estimate.value <= 0:
        return None
    center = math.log(estimate.value)
    if limit is not None:
        distance = abs(center - math.log(limit)) if limit > 0 else math.inf
    else:
        distance = max(abs(center), min(math.log1p(smallest) - center, center - math.log1p(-smallest)))
    for rounds in range(max(estimate.rounds + 1, FIRST_LOOK), MOST_PROPOSED + 1):
        if _half(estimate.spread, rounds, estimate.level) < distance:
            more = rounds - estimate.rounds
            return Need(rounds=more, requests=math.ceil(requests / estimate.rounds * more))
    return None


def _half(spread: float, rounds: int, level: float) -> float:
    """About half of the width of the bounds after ``rounds`` rounds."""
    return student_t(1.0 - level, max(rounds - 1, 1)) * spread / math.sqrt(rounds)


@lru_cache(maxsize=256)
def _levels(looks: Sequence[int], shares: Sequence[float], level: float) -> tuple[float, ...]:
    """Nominal two-sided levels of looks after given rounds, which spend ``level`` times the shares.

    The density of sums of normal increments is followed on a grid; each look removes what lies beyond its bounds.
    """
    grid = np.linspace(-_REACH, _REACH, _GRID)
    step = float(grid[1] - grid[0])
    found: list[float] = []
    density: Floats | None = None
    at, spent = 0, 0.0
    for look, share in zip(looks, shares, strict=True):
        wide = grid * math.sqrt(look)  # a sum's scale grows with the root of the rounds
        if density is None:
            ahead = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi * look)
        else:
            near = wide[:, None] - (grid * math.sqrt(at))[None, :]
            kernel = np.exp(-(near**2) / (2 * (look - at))) / math.sqrt(2 * math.pi * (look - at))
            ahead = kernel @ density * step * math.sqrt(at)
        beyond = np.cumsum(ahead) * step * math.sqrt(look)  # from the left; the right is its mirror
        wanted = max(level * share - spent, 0.0) / 2
        k = int(np.searchsorted(beyond, wanted))
        # Between two points of the grid the logarithm of the tail is nearly straight.
        low, high = (max(float(beyond[max(j, 0)]), 1e-300) for j in (k - 1, k))
        part = (math.log(max(wanted, 1e-300)) - math.log(low)) / (math.log(high) - math.log(low)) if high > low else 0
        bound = -(float(grid[max(k - 1, 0)]) + min(max(part, 0.0), 1.0) * step + step / 2)
        found.append(max(2.0 * NormalDist().cdf(-bound), 1e-12))
        density, at = np.where(np.abs(grid) < bound, ahead, 0.0), look
        spent = level * share
    return tuple(found)
