"""The change of a batch's time, fitted to the same batches computed both ways."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.forecast.batch_cost import BatchCost, columns, fit_cost

NAN = float("nan")
LENGTHS = [10, 40, 80, 160, 320, 640]
SINGLES = [columns(1, length, length, ()) for length in LENGTHS]
BEFORE = [5e6 + 2e5 * length for length in LENGTHS]


def test_the_ratio_depends_on_the_batch() -> None:
    """Slower for short inputs, faster for long ones."""
    cost = fit_cost(SINGLES, BEFORE, [8e6 + 1e5 * length for length in LENGTHS])
    assert cost is not None
    for length in (20, 100, 500):
        wanted = (8e6 + 1e5 * length) / (5e6 + 2e5 * length)
        assert cost.ratio(columns(1, length, length, ())) == pytest.approx(wanted, rel=0.02)
    assert cost.least < cost.typical < 1.0 < cost.most


def test_ratios_exceed_the_observed_range_by_at_most_a_tenth() -> None:
    cost = fit_cost(SINGLES, BEFORE, [1e5 * length for length in LENGTHS])
    assert cost is not None
    assert cost.ratio(columns(1, 0.0, 0.0, ())) == pytest.approx(cost.least / 1.1)
    worse = fit_cost(SINGLES, BEFORE, [5e6 + 2e5 * length + 1e3 * length**2 for length in LENGTHS])
    assert worse is not None and worse.ratio(columns(1, 1e4, 1e4, ())) == pytest.approx(worse.most * 1.1)


def test_few_batches_give_one_ratio_for_all() -> None:
    cost = fit_cost(SINGLES[:2], [10.0, 20.0], [5.0, 16.0])
    assert cost == BatchCost(least=0.5, most=0.8, typical=0.65)
    assert cost.ratio(SINGLES[0]) == cost.ratio(columns(16, 1e6, 1e5, ())) == 0.65


def test_three_batches_distinguish_small_from_large() -> None:
    """Two workers: a single request takes longer on half of the cores, a full batch does not."""
    one, two, full = columns(1, 100, 100, ()), columns(2, 200, 100, ()), columns(8, 800, 100, ())
    cost = fit_cost([one, two, full], [10.0, 18.0, 60.0], [17.0, 26.0, 60.0])
    assert cost is not None
    assert cost.ratio(one) == pytest.approx(1.7, rel=0.1) and cost.ratio(full) == pytest.approx(1.0, rel=0.1)


def test_batches_that_failed_are_left_out() -> None:
    after = [NAN, *(0.5 * each for each in BEFORE[1:])]
    cost = fit_cost(SINGLES, [*BEFORE[:-1], NAN], after)
    assert cost is not None and (cost.least, cost.most) == (0.5, 0.5)
    assert fit_cost(SINGLES[:2], [NAN, 1.0], [1.0, NAN]) is None
    assert fit_cost([], [], []) is None


def test_a_cost_comes_back_from_the_journal() -> None:
    cost = fit_cost(SINGLES, BEFORE, [8e6 + 1e5 * length for length in LENGTHS])
    assert cost is not None
    for what in (*SINGLES, columns(4, 1e5, 1e4, ())):
        assert BatchCost.from_json(cost.to_json()).ratio(what) == cost.ratio(what)
    assert np.isfinite(cost.typical)
