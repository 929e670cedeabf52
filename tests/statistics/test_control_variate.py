"""The control variate: what it removes, what it keeps, and that it favors no arm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.statistics.control_variate import fit_control
from latfix.statistics.decision import Rule
from latfix.statistics.score_bounds import between

RNG = np.random.default_rng


def test_drift_that_follows_the_control_is_removed() -> None:
    rng = RNG(1)
    drift = rng.normal(0, 0.2, 12)
    ratio = 0.1 + 1.5 * drift + rng.normal(0, 0.01, 12)

    control = fit_control(ratio, drift)

    assert control.slope == pytest.approx(1.5, abs=0.1) and control.fitted == 1 and control.wider >= 1
    assert (ratio - control.shifts).mean() == pytest.approx(0.1, abs=0.02)
    assert (ratio - control.shifts).std() < 0.1 * ratio.std()


@pytest.mark.parametrize(
    ("ratio", "drift"),
    [
        (RNG(2).normal(0, 1, 5), RNG(2).normal(0, 1, 5)),  # too few rounds
        (RNG(2).normal(0, 1, 12), -RNG(2).normal(0, 1, 12)),  # a slower machine makes nothing faster
        (RNG(2).normal(0, 1, 12), np.zeros(12)),
        (RNG(2).normal(0, 1, 12), np.full(12, math.nan)),
    ],
)
def test_nothing_is_removed(ratio: np.ndarray, drift: np.ndarray) -> None:
    control = fit_control(ratio, drift)
    assert not control.shifts.any() and (control.fitted, control.wider) == (0, 1.0)


def test_a_round_without_a_control_is_unchanged() -> None:
    drift = RNG(3).normal(0, 0.2, 12)
    drift[4] = math.nan
    control = fit_control(np.nan_to_num(drift, nan=0.3), drift)
    assert control.shifts[4] == 0 and control.slope == pytest.approx(1)


def test_a_control_that_is_not_zero_on_average_removes_nothing() -> None:
    """A sleep added to HEAD: quiet turns show a larger ratio than the contended replays."""
    rng = RNG(7)
    drift = -0.2 + rng.normal(0, 0.038, 9)
    ratio = math.log(1.38) + 0.8 * (drift + 0.2) + rng.normal(0, 0.01, 9)
    control = fit_control(ratio, drift)
    assert not control.shifts.any() and control.fitted == 0

    base = [rng.lognormal(2, 0.3, 60) for _ in range(9)]
    new = [each * math.exp(by) for each, by in zip(base, ratio, strict=True)]
    found = arm_ratios(base, new, seed=0, replicates=50, control=drift)["p50"]
    assert found.value == pytest.approx(math.exp(ratio.mean())) and not found.corrected
    assert found.bounds[0] > 1.1


def test_the_correction_stays_within_the_plain_interval() -> None:
    rng = RNG(8)
    for _ in range(500):
        drift = rng.normal(rng.normal(0, 0.05), 0.1, 8)
        ratio = rng.normal(0, 2) * drift + rng.normal(0, 0.1, 8)
        mean, half = between(ratio, 0.05)
        assert abs((ratio - fit_control(ratio, drift).shifts).mean() - mean) <= half + 1e-12


def test_choosing_between_plain_and_corrected_costs_few_errors() -> None:
    rng, called = RNG(9), 0
    for _ in range(3000):
        drift = rng.normal(0, 0.1, 8)
        ratio = drift + rng.normal(0, 0.02, 8)
        control = fit_control(ratio, drift)
        mean, half = between(ratio - control.shifts, 0.05 * control.level, fitted=control.fitted)
        called += abs(mean) > half * control.wider
    assert called / 3000 < 0.07


def _rounds(seed: int, count: int = 12, n: int = 60) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """A service and itself on a machine that drifts by 20 % from replay to replay, and the measured compute."""
    rng = RNG(seed)
    work, speed = rng.lognormal(0, 0.5, n), rng.normal(0, 0.2, (2, count))
    arms = [[work * np.exp(arm[k]) * rng.lognormal(0, 0.05, n) for k in range(count)] for arm in speed]
    return arms[0], arms[1], speed[1] - speed[0] + rng.normal(0, 0.02, count)


def test_bounds_are_narrower_with_the_control_and_hold_the_truth() -> None:
    base, new, drift = _rounds(4)
    for key in ("mean", "p50", "p95"):
        plain = arm_ratios(base, new, seed=0, replicates=50)[key]
        controlled = arm_ratios(base, new, seed=0, replicates=50, control=drift)[key]
        widths = [math.log(each.bounds[1] / each.bounds[0]) for each in (plain, controlled)]
        assert widths[1] < 0.5 * widths[0]
        assert controlled.bounds[0] < 1 < controlled.bounds[1]


@pytest.mark.slow
def test_a_service_differs_from_itself_no_more_often_than_promised() -> None:
    rule, called = Rule(level=0.05), dict.fromkeys(("mean", "p50", "p99"), 0)
    for seed in range(200):
        base, new, drift = _rounds(seed, count=8, n=40)
        for key, found in arm_ratios(base, new, seed=0, keys=list(called), rule=rule, control=drift).items():
            called[key] += not found.bounds[0] <= 1 <= found.bounds[1]
    assert max(called.values()) <= 18  # 10 are expected at 5 %; more than 18 in 1 of 200


def test_fitting_costs_a_degree_of_freedom() -> None:
    each = RNG(5).normal(0, 1, 8)
    assert between(each, 0.01, fitted=1)[1] > between(each, 0.01)[1]
