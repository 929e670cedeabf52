"""Looks after every round: levels that add up to one, when to stop, and how much more data would decide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from latfix.statistics.decision import LEVEL, RatioEstimate
from latfix.statistics.distributions import normal_quantile, student_t
from latfix.statistics.group_sequential import FIRST_LOOK, look_level, needed, prospect, stop


def _estimate(value: float, spread: float, rounds: int, level: float = LEVEL, **more: Any) -> RatioEstimate:
    """As a comparison of so many rounds would give it, by Student's t alone."""
    half = student_t(1 - level, rounds - 1) * spread / math.sqrt(rounds) if rounds > 1 else 1.0
    bounds = (value * math.exp(-half), value * math.exp(half))
    return RatioEstimate(
        value=value, lo=value, hi=value, decision=bounds, level=level, rounds=rounds, spread=spread, **more
    )


def test_a_single_look_has_the_whole_level() -> None:
    assert look_level(1, 1) == pytest.approx(LEVEL, rel=1e-3)
    assert look_level(3, 3) == pytest.approx(LEVEL, rel=1e-3)
    assert look_level(5, 12, last=True) == pytest.approx(LEVEL, rel=1e-3)
    assert look_level(2, 2, level=0.05) == pytest.approx(0.05, rel=1e-3)


def test_the_first_look_has_its_share() -> None:
    assert look_level(5, 12) == pytest.approx(LEVEL * (5 / 12) ** 2, rel=5e-3)
    assert look_level(5, 6) == pytest.approx(LEVEL * (5 / 6) ** 2, rel=5e-3)


def test_the_spent_level_grows_with_the_square_of_the_rounds() -> None:
    """On sums of normal increments, for which the levels are computed."""
    most, level = 9, 0.05
    levels = [look_level(k, most, level=level) for k in range(FIRST_LOOK, most + 1)]
    bounds = np.array([normal_quantile(1 - each) for each in levels])
    sums = np.cumsum(np.random.default_rng(1).normal(size=(200_000, most)), axis=1)[:, FIRST_LOOK - 1 :]
    crossed = np.abs(sums) / np.sqrt(np.arange(FIRST_LOOK, most + 1)) > bounds
    so_far = np.maximum.accumulate(crossed, axis=1).mean(axis=0)
    spent = [level * (k / most) ** 2 for k in range(FIRST_LOOK, most + 1)]
    assert so_far.tolist() == pytest.approx(spent, abs=0.0015)


def test_looking_every_round_with_student_s_t_keeps_the_error_rate() -> None:
    most, level = 12, 0.05
    rounds = np.random.default_rng(2).normal(size=(40_000, most))
    wrong = np.zeros(len(rounds), dtype=bool)
    naive = np.zeros(len(rounds), dtype=bool)
    for k in range(FIRST_LOOK, most + 1):
        seen = rounds[:, :k]
        t = np.abs(seen.mean(axis=1)) / (seen.std(axis=1, ddof=1) / math.sqrt(k))
        wrong |= t > student_t(1 - look_level(k, most, level=level), k - 1)
        naive |= t > student_t(1 - level, k - 1)
    assert wrong.mean() < 1.25 * level
    assert naive.mean() > 2 * level


def test_the_last_look_may_use_the_remaining_level() -> None:
    assert look_level(7, 12) < look_level(7, 12, last=True) < LEVEL


@pytest.mark.parametrize(
    ("value", "spread", "rounds", "most", "reason"),
    [
        (0.25, 0.1, 5, 12, "decided"),
        (1.9, 0.05, 5, 12, "decided"),
        (1.0, 0.01, 6, 12, "decided"),  # no difference
        (0.25, 0.005, 4, 12, None),  # four restarts carry no claim while there is time for more
        (0.25, 0.005, 2, 2, "decided"),
        (0.9, 0.08, 5, 12, None),
        (0.9, 0.2, 12, 12, "budget"),
        (1.005, 0.2, 6, 12, "no prospect"),
        (1.005, 0.2, 4, 12, None),  # too early to give up
    ],
)
def test_when_a_comparison_ends(value: float, spread: float, rounds: int, most: int, reason: str | None) -> None:
    level = look_level(rounds, most) if rounds >= min(FIRST_LOOK, most) else LEVEL
    assert stop(_estimate(value, spread, rounds, level), most) == reason


def test_a_prospect_matches_simulated_continuations() -> None:
    spread, now, most = 0.06, 6, 12
    estimate = _estimate(0.93, spread, now)
    half = student_t(1 - LEVEL, most - 1) * spread / math.sqrt(most)
    rng = np.random.default_rng(3)
    # The true ratio given the present one, under a flat prior, and the rounds to come given that.
    truth = rng.normal(math.log(0.93), spread / math.sqrt(now), 100_000)
    last = (now * math.log(0.93) + (most - now) * rng.normal(truth, spread / math.sqrt(most - now))) / most
    assert prospect(estimate, most) == pytest.approx(float(np.mean(np.abs(last) > half)), abs=0.01)
    assert prospect(_estimate(1.0, 0.01, 6), 12) > 0.9  # that there is no difference will be shown
    assert prospect(_estimate(0.93, math.nan, 6), 12) == prospect(estimate, 6) == 0.0


def test_how_many_more_rounds_would_decide() -> None:
    spread = 0.06
    need = needed(_estimate(0.93, spread, 6), 1800)
    assert need is not None
    total = 6 + need.rounds
    distance = abs(math.log(0.93))
    assert student_t(1 - LEVEL, total - 1) * spread / math.sqrt(total) < distance
    assert student_t(1 - LEVEL, total - 2) * spread / math.sqrt(total - 1) >= distance
    assert need.requests == 300 * need.rounds


def test_more_rounds_are_needed_near_a_limit_and_none_help_on_it() -> None:
    estimate = _estimate(0.9, 0.05, 5)
    far, near, there = (needed(estimate, 500, limit=limit) for limit in (1.2, 0.95, 0.9))
    assert far is not None and near is not None and there is None
    assert far.rounds < near.rounds
    assert needed(_estimate(0.9, math.nan, 5), 500) is None
