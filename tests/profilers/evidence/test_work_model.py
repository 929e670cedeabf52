"""The model of work: monotone, robust to faults, out of fold, and constant without informative features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.evidence.work_model import fit_work_model, folds_of, nonnegative_least_squares


def test_least_squares_finds_nonnegative_coefficients() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((200, 4))
    truth = np.array([2.0, 0.0, 0.5, 3.0])
    assert nonnegative_least_squares(x, x @ truth, np.ones(200)) == pytest.approx(truth, abs=1e-5)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_least_squares_is_optimal(seed: int) -> None:
    # At the optimum no change of a coefficient that keeps it nonnegative is an improvement.
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((30, 5)), rng.standard_normal(30)
    b = nonnegative_least_squares(x, y, np.ones(30))
    gradient = x.T @ (y - x @ b)
    assert (b >= 0).all()
    assert (gradient <= 1e-5).all()
    assert np.abs(gradient[b > 0]).max(initial=0.0) < 1e-5


def test_faults_do_not_move_the_model() -> None:
    rng = np.random.default_rng(1)
    length = rng.integers(10, 500, 1000).astype(np.float64)
    truth = 1e6 + 2e4 * length
    time = truth * (1 + 0.01 * rng.standard_normal(1000))
    time[rng.random(1000) < 0.15] += 5e7
    design = np.column_stack([np.ones(1000), length, length**2])
    model = fit_work_model(design, time, np.ones(1000, dtype=bool))
    assert model.accepted
    assert np.abs(model.predict(design, folds_of(len(design))) / truth - 1).max() < 0.02


def test_each_block_is_predicted_by_a_fit_that_did_not_see_it() -> None:
    rng = np.random.default_rng(2)
    length = rng.integers(10, 500, 600).astype(np.float64)
    design = np.column_stack([np.ones(600), length])
    time = 1e6 + 2e4 * length
    first = fit_work_model(design, time, np.ones(600, dtype=bool))
    changed = np.where(folds_of(600) == 0, time * (1 + 0.02 * rng.random(600)), time)
    second = fit_work_model(design, changed, np.ones(600, dtype=bool))
    assert second.coefficients[0] == pytest.approx(first.coefficients[0])
    assert second.coefficients[1] != pytest.approx(first.coefficients[1], rel=1e-6)


def test_too_few_or_unrelated_samples_are_refused() -> None:
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(500), rng.random(500)])
    noise = 1e6 * (1 + rng.random(500))
    assert not fit_work_model(design, noise, np.ones(500, dtype=bool)).accepted
    few = fit_work_model(design[:10], 1e6 * design[:10, 1], np.ones(10, dtype=bool))
    assert not few.accepted
    assert (few.predict(design[:10], folds_of(10)) == few.typical).all()


def test_few_samples_are_accepted_if_they_explain_much() -> None:
    rng = np.random.default_rng(5)
    size = rng.integers(1, 9, 20).astype(np.float64)
    design = np.column_stack([np.ones(20), size])
    assert fit_work_model(design, 2e8 * size * (1 + 0.03 * rng.random(20)), np.ones(20, dtype=bool)).accepted
    refused = [
        fit_work_model(design, 1e8 * (1 + rng.random(20)), np.ones(20, dtype=bool)).accepted for _ in range(50)
    ]
    assert not any(refused)


@pytest.mark.parametrize("kind", ["step", "slope"])
def test_age_is_not_attributed_to_inputs(kind: str) -> None:
    # GIVEN work that takes longer from mid-run on, or ever longer, for the same inputs
    rng = np.random.default_rng(4)
    age = np.arange(1200) / 1200
    length = rng.integers(10, 500, 1200).astype(np.float64)
    truth = 4e6 + 1e4 * length
    older = np.where(age > 0.5, 5e6, 0.0) if kind == "step" else 6e6 * age
    design = np.column_stack([np.ones(1200), length, length**2])
    model = fit_work_model(design, truth * (1 + 0.01 * rng.standard_normal(1200)) + older, np.ones(1200, dtype=bool))
    # THEN the model predicts a young service's time in every block of the run
    assert model.accepted
    share = model.predict(design, folds_of(len(design))) / truth
    assert np.median(share[:300]) > 0.97 and np.quantile(np.abs(share - 1), 0.9) < 0.12


def test_episodes_are_not_attributed_to_age() -> None:
    rng = np.random.default_rng(5)
    length = rng.integers(10, 500, 1200).astype(np.float64)
    truth = 4e6 + 1e4 * length
    age = np.arange(1200) / 1200
    slow = np.where((age > 0.3) & (age < 0.4), 5e6, 0.0)
    design = np.column_stack([np.ones(1200), length])
    model = fit_work_model(design, truth + slow, np.ones(1200, dtype=bool))
    assert np.abs(model.predict(design, folds_of(len(design))) / truth - 1).max() < 0.03
