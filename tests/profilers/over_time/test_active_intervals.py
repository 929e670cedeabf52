"""Activity of a cause: its stretches, or 'throughout' if chance explains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from latfix.profilers.over_time.active_intervals import activity
from latfix.results.diagnosis import Activity

Floats = npt.NDArray[np.float64]
Strikes = Callable[[np.random.Generator, Floats], npt.NDArray[Any]]
LENGTH = 60.0


def observe(strikes: Strikes, *, seed: int = 0, n: int = 1600) -> Activity:
    """A cause that costs ``strikes(rng, seconds)`` ms at random arrivals over a minute."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, LENGTH, n))
    own = np.asarray(strikes(rng, at) * 1e6).astype(np.int64)
    return activity(own, (at * 1e9).astype(np.int64), start_s=0.0, end_s=LENGTH, seed=seed)


@pytest.mark.parametrize(
    "strikes",
    [
        lambda rng, at: 25.0 * (rng.random(len(at)) < 0.02),
        lambda rng, at: rng.lognormal(0, 2, len(at)) * (rng.random(len(at)) < 0.2),
        lambda rng, at: rng.normal(0, 1, len(at)),
    ],
    ids=["rare pauses", "heavy-tailed", "noise of both signs"],
)
def test_a_steady_cause_is_active_throughout(strikes: Strikes) -> None:
    found = [observe(strikes, seed=seed) for seed in range(20)]
    assert sum(entry.throughout for entry in found) >= 19
    whole = next(entry for entry in found if entry.throughout)
    assert whole.intervals_s == ((0.0, LENGTH),) and whole.period_s is None


def test_stretches_have_their_times() -> None:
    def strikes(rng: np.random.Generator, at: Floats) -> npt.NDArray[Any]:
        inside = ((at > 12.4) & (at < 18.9)) | ((at > 31.0) & (at < 35.2))
        return 10.0 * inside * (rng.random(len(at)) < 0.3)

    for seed in range(4):
        found = observe(strikes, seed=seed)
        assert not found.throughout
        flat = [end for interval in found.intervals_s for end in interval]
        assert flat == pytest.approx([12.4, 18.9, 31.0, 35.2], abs=0.8)
        assert found.text.startswith("active 1") and found.text.endswith("% of the time)")


def test_a_weak_cause_throughout_is_not_reduced_to_its_strongest_stretch() -> None:
    def strikes(rng: np.random.Generator, at: Floats) -> npt.NDArray[Any]:
        return 0.4 + 8.0 * ((at > 20.0) & (at < 26.0)) + 0.1 * rng.random(len(at))

    found = observe(strikes)
    assert found.throughout and found.text.startswith("throughout, strongest 20.")


def test_a_rhythm_has_its_period_and_duty() -> None:
    found = observe(lambda rng, at: 10.0 * (at % 1.0 < 0.3) * (rng.random(len(at)) < 0.8))
    assert found.throughout and found.period_s == pytest.approx(1.0, rel=0.01)
    assert found.duty == pytest.approx(0.3, abs=0.1)
    assert found.to_json()["period_s"] == found.period_s


def test_strikes_in_rhythmic_traffic_are_no_rhythm_of_the_cause() -> None:
    rng = np.random.default_rng(2)
    at = np.sort(rng.integers(0, 60, 1600) + 0.2 * rng.random(1600))
    own = (25e6 * (rng.random(1600) < 0.3)).astype(np.int64)
    found = activity(own, (at * 1e9).astype(np.int64), start_s=0.0, end_s=LENGTH)
    assert found.period_s is None and found.throughout


def test_irregular_bursts_come_and_go_throughout() -> None:
    def strikes(rng: np.random.Generator, at: Floats) -> npt.NDArray[Any]:
        cost = np.zeros(len(at))
        for first in rng.integers(0, len(at) - 8, 24):
            cost[first : first + 8] = 10.0
        return cost

    found = observe(strikes)
    assert found.throughout and "on and off" in found.text and found.period_s is None


def test_members_of_one_batch_are_one_strike() -> None:
    # GIVEN batches of eight, each struck as a whole at random
    steady = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        at = np.repeat(np.sort(rng.uniform(0, LENGTH, 250)), 8)
        own = np.repeat(rng.random(250) < 0.08, 8) * 20_000_000
        found = activity(own, (at * 1e9).astype(np.int64), start_s=0.0, end_s=LENGTH, seed=seed)
        steady += found.text == "throughout"
    assert steady >= 9


def test_few_moments_are_listed() -> None:
    once = observe(lambda _rng, at: 40.0 * (np.arange(len(at)) == 800))
    assert not once.throughout and once.text.startswith("once, at ") and len(once.intervals_s) == 1
    begin, end = once.intervals_s[0]
    assert end - begin == pytest.approx(0.040)
    thrice = observe(lambda _rng, at: 40.0 * np.isin(np.arange(len(at)), [10, 700, 1500]))
    assert thrice.text.startswith("3 times, at ") and len(thrice.intervals_s) == 3


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_few_requests(n: int) -> None:
    never = {"throughout": False, "intervals_s": [], "text": "never"}
    assert observe(lambda _rng, at: np.zeros(len(at)), n=n).to_json() == never
    found = observe(lambda _rng, at: np.ones(len(at)), n=n)
    assert all(0.0 <= a <= b <= LENGTH + 1 for a, b in found.intervals_s) and bool(found.intervals_s) == bool(n)


def test_many_requests_are_summed_up_first() -> None:
    found = observe(lambda rng, at: 25.0 * (rng.random(len(at)) < 0.02) * (at > 20) * (at < 30), n=200_000)
    assert [end for interval in found.intervals_s for end in interval] == pytest.approx([20.0, 30.0], abs=0.1)


def test_a_cause_that_lasts_longer_than_its_period_is_never_off() -> None:
    """Waits of seconds in a backlog, seen at batches that begin every 0.5 s."""
    assert observe(lambda _, at: 2_000.0 * (at % 0.5 < 0.15)).period_s is None
    assert observe(lambda _, at: 100.0 * (at % 0.5 < 0.15)).period_s == pytest.approx(0.5, rel=0.01)
