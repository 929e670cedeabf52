"""The curve of a simulation over load and pace."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from latfix.capacity.latency_curve import LatencyCurve, latency_curve, mean_curve, pace_of


def mm1(load: float, slower: float = 1.0) -> float:
    """p99 of M/M/1 with a service rate of 100, at a recorded rate of 50."""
    rate, service = 50 * load, 100 / slower
    return math.log(100) / max(service - rate, 0.5)


@pytest.fixture(scope="module")
def curve() -> LatencyCurve:
    def simulated(load: float) -> npt.NDArray[np.float64]:
        return np.array([mm1(load) * factor for factor in (0.9, 1.0, 1.1)])

    return latency_curve(simulated, 1.0, 0.2)


def test_it_follows_the_simulation(curve: LatencyCurve) -> None:
    for load in (0.3, 0.8, 1.2, 1.6):
        assert math.exp(curve.percentile(math.log(load))) == pytest.approx(mm1(load), rel=0.05)
    assert (np.diff(curve.level) >= 0).all() and (np.diff(curve.load) > 0).all()
    assert curve.noise == pytest.approx(0.1, abs=0.02)
    assert curve.slope(math.log(1.8)) > 4 * curve.slope(math.log(0.3))


def test_one_curve_covers_slower_services(curve: LatencyCurve) -> None:
    for slower in (0.8, 1.1, 1.3):
        assert math.exp(curve.percentile(0.0, math.log(slower))) == pytest.approx(mm1(1.0, slower), rel=0.05)
        measured = math.log(mm1(1.2, slower))
        assert curve.pace(math.log(1.2), measured) == pytest.approx(math.log(slower), abs=0.03)


def test_headroom_is_the_pace_that_reaches_the_limit(curve: LatencyCurve) -> None:
    load, slower = curve.headroom(math.log(0.2))
    assert (np.diff(load) > 0).all() and (np.diff(slower) <= 0).all()
    for at in (0.5, 1.0, 1.5):
        pace = math.exp(np.interp(math.log(at), load, slower))
        assert mm1(at, pace) == pytest.approx(0.2, rel=0.06)


def test_the_mean_of_curves(curve: LatencyCurve) -> None:
    higher = LatencyCurve(load=curve.load, level=curve.level + 0.2, noise=curve.noise)
    assert mean_curve([curve, higher]).percentile(0.0) == pytest.approx(curve.percentile(0.0) + 0.1)


def test_an_unreachable_value_has_the_pace_of_the_end() -> None:
    loads = np.linspace(-0.5, 0.5, 11)
    assert pace_of(0.0, loads, 2 * loads, 99.0) == pytest.approx(0.5)
    assert pace_of(0.0, loads, 2 * loads, -99.0) == pytest.approx(-0.5)
