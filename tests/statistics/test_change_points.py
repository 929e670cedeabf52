"""Where a rate changes: found where it does, left whole where it does not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from latfix.statistics.change_points import MOST_VALUES, rate_changes


@pytest.mark.slow
def test_a_steady_rate_is_not_cut() -> None:
    cut = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        cut += len(rate_changes((rng.random(800) < 0.03).astype(float), seed=seed)) > 2
    assert cut <= 2


def test_an_episode_is_cut_out_where_it_is() -> None:
    rng = np.random.default_rng(3)
    rate = np.full(1000, 0.02)
    rate[400:480] = 0.6
    edges = rate_changes((rng.random(1000) < rate).astype(float), seed=0)
    assert len(edges) == 4
    assert edges[1] == pytest.approx(400, abs=6) and edges[2] == pytest.approx(480, abs=6)


def test_the_cheapest_cuts_are_the_best_of_all() -> None:
    # GIVEN a series so short that every pair of cuts can be tried
    values = (np.random.default_rng(5).random(60) < np.where(np.arange(60) // 15 == 2, 0.9, 0.1)).astype(float)

    def cost(edges: tuple[int, ...]) -> float:
        parts = [values[a:b] for a, b in itertools.pairwise(edges)]
        return -sum(float(part.sum() * np.log(part.mean())) for part in parts if part.sum() > 0)

    n = len(values)
    best = min(((0, a, b, n) for a in range(1, n) for b in range(a + 1, n)), key=cost)
    # THEN the dynamic program agrees
    assert tuple(rate_changes(values, seed=0).tolist()) == best


@pytest.mark.parametrize("values", [[], [1.0], [0.0] * 50, [2.0] * 50])
def test_nothing_to_cut(values: list[float]) -> None:
    assert rate_changes(np.array(values), seed=0).tolist() == [0, len(values)]


def test_too_many_values_are_refused() -> None:
    with pytest.raises(ValueError, match="sum neighbors up first"):
        rate_changes(np.ones(MOST_VALUES + 1), seed=0)
