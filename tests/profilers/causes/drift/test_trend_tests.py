"""Trends of window medians: slopes, rising levels, and waves that are not a trend."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from latfix.profilers.causes.drift.trend_tests import (
    best_step,
    rise_probability,
    squares_left,
    theil_sen,
)
from latfix.statistics.change_points import rising_level


def test_the_slope_of_a_line_with_outliers() -> None:
    rng = np.random.default_rng(0)
    times = np.linspace(0, 60, 40)
    values = 3.0 * times + rng.normal(0, 5, 40)
    values[::8] += 400.0
    slope = theil_sen(times, values)
    assert slope.value == pytest.approx(3.0, rel=0.1)
    assert slope.low < 3.0 < slope.high and slope.low > 2.0


def test_a_slow_wave_widens_the_interval_of_its_slope() -> None:
    times = np.linspace(0, 60, 40)
    wave = np.sin(times / 60 * 2 * np.pi * 1.5)
    shuffled = np.random.default_rng(0).permutation(wave)
    of_wave, of_noise = theil_sen(times, wave), theil_sen(times, shuffled)
    assert of_wave.high - of_wave.low > 1.3 * (of_noise.high - of_noise.low)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0]])
def test_too_few_values_have_no_slope(values: list[float]) -> None:
    slope = theil_sen(np.arange(len(values), dtype=float), np.array(values))
    assert slope.value == 0.0 and slope.low == -np.inf and slope.high == np.inf


def test_the_rising_level_is_the_best_of_all_that_rise() -> None:
    values = np.array([3.0, 1.0, 2.0, 2.0, 5.0, 4.0, 6.0])
    level = rising_level(values)
    assert (np.diff(level) >= 0).all() and level.sum() == pytest.approx(values.sum())
    least = float(((values - level) ** 2).sum())
    rng = np.random.default_rng(1)
    for _ in range(200):
        other = np.sort(level + rng.normal(0, 0.3, len(level)))
        assert float(((values - other) ** 2).sum()) >= least


def test_a_rise_is_unlikely_by_chance_and_a_fall_or_an_episode_is_not() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(0, 0.2, 40)
    position = np.arange(40)
    assert rise_probability(position / 10 + noise) < 0.001
    assert rise_probability((position >= 20) + noise) < 0.03
    assert rise_probability(-position / 10 + noise) > 0.5
    assert rise_probability(((position >= 15) & (position < 25)) + noise) > 0.1
    assert rise_probability(noise[:5]) == 1.0


def test_false_positives_are_as_rare_as_the_level() -> None:
    draws = [rise_probability(np.random.default_rng(seed).normal(0, 1, 40)) <= 0.05 for seed in range(200)]
    assert sum(draws) <= 18  # 10 expected


def test_the_best_step_is_the_best_of_all() -> None:
    rng = np.random.default_rng(4)
    values = np.where(np.arange(30) >= 19, 3.0, 0.0) + rng.normal(0, 0.4, 30)
    at, rest = best_step(values)
    tried = [float(((values[:k] - values[:k].mean()) ** 2).sum() + values[k:].var() * (30 - k)) for k in range(1, 30)]
    assert at == 19 and rest == pytest.approx(min(tried))


def test_squares_left_by_a_line() -> None:
    by = np.arange(10, dtype=float)
    assert squares_left(2 * by + 1, by) == pytest.approx(0.0, abs=1e-9)
    assert squares_left(by, np.ones(10)) == pytest.approx(float(((by - 4.5) ** 2).sum()))
    assert all(a <= b for a, b in itertools.pairwise(rising_level(by)))
