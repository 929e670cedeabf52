"""What the accuracy guard allows, and the interval that it decides on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latfix.runners.measure.accuracy_guard import judge, paired_loss, share_loss


def scored(score: float, **more: Any) -> dict[str, Any]:
    return {"score": score, "samples": 400, "deviation": 0.05, "broken": 0, **more}


@pytest.mark.parametrize(
    ("measured", "allowed"),
    [
        (scored(0.90, loss=0.0, loss_lo=-0.007, loss_hi=0.007), True),
        (scored(0.895, loss=0.005, loss_lo=-0.004, loss_hi=0.014), True),
        (scored(0.885, loss=0.015, loss_lo=0.005, loss_hi=0.018), False),  # beyond the limit
        (scored(0.898, loss=0.002, loss_lo=-0.03, loss_hi=0.034), None),  # too few requests
        (scored(0.898, loss=0.002, loss_lo=-0.03, loss_hi=0.034, same=True), True),  # but for rounding the same
        (scored(0.898, loss=0.002, loss_lo=-0.03, loss_hi=0.034, deviation=None), None),
        (scored(0.900, loss=0.0, loss_lo=-0.03, loss_hi=0.034, agreement=1.0), None),  # none of a few is not none
        (scored(0.900, loss=0.0, loss_lo=-0.01, loss_hi=0.014, agreement=1.0), True),
        (scored(0.900, loss=0.0, loss_lo=-0.03, loss_hi=0.034, agreement=0.99), None),
        (scored(0.92, loss=-0.02, loss_lo=-0.03, loss_hi=-0.01), True),  # better
        (scored(0.90, broken=3), False),
        (scored(0.895), True),  # nothing to pair with: the estimate decides
    ],
)
def test_the_rule(measured: dict[str, Any], allowed: bool | None) -> None:
    found, said = judge(measured, 0.90, 0.01)
    assert found is allowed, said
    assert "0.9 ->" in said and "limit 0.89" in said


@pytest.mark.parametrize(("score", "allowed"), [(0.89, True), (0.8899, False)])
def test_a_loss_at_the_limit_is_allowed(score: float, allowed: bool) -> None:
    """0.9 - 0.89 is 0.010000000000000009, and "0.89, limit 0.89" no reason to refuse."""
    assert judge(scored(score), 0.9, 0.01)[0] is allowed


def test_no_loss_at_all_is_judged_by_the_estimate() -> None:
    assert judge(scored(0.9, loss=0.0, loss_lo=-0.01, loss_hi=0.01), 0.9, 0.0)[0]
    assert not judge(scored(0.8999, loss=0.0001, loss_lo=-0.01, loss_hi=0.01), 0.9, 0.0)[0]


def test_answers_that_failed_are_the_reason_before_the_loss_that_they_are() -> None:
    allowed, said = judge(scored(0.0, broken=400, loss=1.0, loss_lo=0.99, loss_hi=1.0), 1.0, 0.01)
    assert allowed is False and said.startswith("400 answers failed or became NaN or infinite: accuracy 1 -> 0")


@pytest.mark.parametrize("max_drop", [0.0, 0.01])
def test_answers_that_could_not_be_compared_decide_nothing(max_drop: float) -> None:
    allowed, said = judge(scored(0.0, samples=0, loss=0.0, loss_lo=-1.0, loss_hi=1.0), 1.0, max_drop)
    assert allowed is None and said.startswith("no answer could be compared")


def test_the_figures_are_shown() -> None:
    measured = scored(0.88, loss=0.02, loss_lo=0.01, loss_hi=0.03, agreement=0.97)
    _, said = judge(measured, 0.90, 0.01)
    assert "loss 0.02 [0.01, 0.03]" in said and "97.0 % of the answers agree" in said and "deviation 0.05" in said


@pytest.mark.parametrize(("deviation", "shown"), [(0.05, False), (None, True)])
def test_with_a_score_of_its_own_agreement_is_not_shown(deviation: float | None, shown: bool) -> None:
    """Rankings of hundreds: "0.0 % agree" next to an equal score would only alarm."""
    _, said = judge(scored(0.90, kind="evaluate", agreement=0.0, deviation=deviation), 0.90, 0.01)
    assert ("of the answers" in said) is shown and ("deviation" in said) is not shown


@pytest.mark.parametrize(
    ("lost", "ends"), [([1.0] * 40, (0.91, 1.0)), ([-1.0] * 40, (-1.0, -0.91)), ([1.0], (-1, 1))]
)
def test_a_share_of_answers_is_lost_at_most_whole(lost: list[float], ends: tuple[float, float]) -> None:
    found = share_loss(lost)
    assert (found.lo, found.hi) == pytest.approx(ends, abs=0.01) and max(abs(found.lo), abs(found.hi)) == 1.0


def mean(answers: list[Any]) -> float:
    return float(np.mean(answers))


def test_a_loss_is_exact_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(0)
    original = rng.normal(5.0, 3.0, 300).tolist()
    new = (np.array(original) - rng.normal(0.1, 0.5, 300)).tolist()
    found = paired_loss(mean, original, new)
    assert found is not None
    assert found.value == pytest.approx(mean(original) - mean(new))
    assert found.lo < found.value < found.hi
    # Pairing leaves the spread of the differences alone: that of the answers is six times as large.
    assert found.hi - found.lo < 0.2


def test_a_sample_without_loss_does_not_exclude_one() -> None:
    """About three in n, which is what nothing in n leaves possible."""
    right = [1.0] * 270 + [0.0] * 30
    found = paired_loss(mean, right, right)
    assert found is not None and found.value == 0
    assert 2 / 300 < found.hi < 4 / 300


def test_few_requests_have_no_interval() -> None:
    assert paired_loss(mean, [1.0] * 5, [1.0] * 5) is None


def test_the_interval_covers_the_true_loss() -> None:
    """200 samples of 250 requests, of which 4 % are lost and 1 % gained: 95 % should cover it, 90 % must."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        kind = rng.choice(4, size=250, p=[0.80, 0.04, 0.01, 0.15])
        original = np.isin(kind, (0, 1)).astype(float).tolist()
        new = np.isin(kind, (0, 2)).astype(float).tolist()
        found = paired_loss(mean, original, new, seconds=0.02)
        assert found is not None
        covered += found.lo <= 0.03 <= found.hi
    assert covered >= 180


def test_a_slow_score_is_called_less_often() -> None:
    calls = 0

    def slow(answers: list[Any]) -> float:
        nonlocal calls
        calls += 1
        return mean(answers)

    paired_loss(slow, [1.0] * 100, [1.0] * 100, seconds=0.0)
    assert calls == 2 + 8
