"""Synthetic traffic has the requested properties, and the same seed gives the same traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.traffic.synthesize import KINDS, FeatureSpec, Kind, Synthesis, synthesize


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_everything(kind: Kind) -> None:
    features = [FeatureSpec.parse("a=lognormal(4.3,0.8,8,512)"), FeatureSpec.parse("b=uniform(0.5,1.5)")]

    def make(seed: int) -> Any:
        return synthesize(Synthesis(kind=kind, rate=50, duration_s=20, seed=seed), features)

    one, same, other = make(5), make(5), make(6)
    assert one.arrival_ns.tolist() == same.arrival_ns.tolist()
    assert one.features["a"].tolist() == same.features["a"].tolist()
    assert one.arrival_ns.tolist() != other.arrival_ns.tolist()
    assert one.metadata["synthesis"]["seed"] == 5
    assert np.all(np.diff(one.arrival_ns) >= 0)
    assert one.arrival_ns[0] >= 0
    assert one.arrival_ns[-1] <= 20 * 10**9


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_rate_is_the_requested_one(kind: Kind) -> None:
    traffic = synthesize(Synthesis(kind=kind, rate=100, duration_s=2000, seed=1))
    assert len(traffic) / 2000 == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gamma_gaps_vary_as_requested(cv: float) -> None:
    gaps = np.diff(synthesize(Synthesis(kind="gamma", rate=100, duration_s=600, cv=cv, seed=2)).arrival_ns)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.02 + cv * 0.05)


@pytest.mark.parametrize("cv", [1e-17, 1e-154, 1e-300, 5e-324])
def test_gamma_gaps_that_vary_by_less_than_a_float_shows_are_constant(cv: float) -> None:
    """The shape of their distribution, 1 / cv², is more than a float holds."""
    made = [synthesize(Synthesis(kind="gamma", rate=40.0, duration_s=5.0, cv=value)) for value in (0.0, cv)]
    assert made[0].arrival_ns.tolist() == made[1].arrival_ns.tolist()


def test_a_periodic_rate_swings_as_requested() -> None:
    process = Synthesis(kind="periodic", rate=200, duration_s=600, period_s=10, amplitude=0.6, seed=3)
    phase = synthesize(process).arrival_ns / 1e10 % 1
    counts, _ = np.histogram(phase, 4, range=(0, 1))
    share = counts / counts.sum()
    # the mean of a sine over its first half is 2/pi of its amplitude
    assert share[0] + share[1] == pytest.approx(0.5 * (1 + 0.6 * 2 / np.pi), abs=0.02)


def test_nothing_arrives_between_bursts_of_the_highest_factor() -> None:
    process = Synthesis(kind="bursts", rate=100, duration_s=300, burst_on_s=1, burst_off_s=4, burst_factor=5, seed=3)
    gaps = np.diff(synthesize(process).arrival_ns) / 1e9
    assert 30 < np.count_nonzero(gaps > 0.2) < 100
    assert gaps[gaps < 0.2].mean() == pytest.approx(1 / 500, rel=0.1)


def test_features_follow_their_distributions() -> None:
    texts = ("a=lognormal(4.3,0.8,8,512)", "b=uniform(1,6)", "c=uniform(0.0,1.0)", "d=constant(7)", "e=constant(.5)")
    process = Synthesis(kind="poisson", rate=200, duration_s=100, seed=1)
    traffic = synthesize(process, [FeatureSpec.parse(text) for text in texts])
    a, b, c, d, e = (traffic.features[name] for name in "abcde")
    assert a.dtype == b.dtype == d.dtype == np.int64
    assert (a.min(), a.max()) == (8, 512)
    assert np.median(a) == pytest.approx(np.exp(4.3), rel=0.03)
    assert set(b.tolist()) == {1, 2, 3, 4, 5, 6}
    assert c.dtype == np.float64
    assert c.mean() == pytest.approx(0.5, abs=0.01)
    assert set(d.tolist()) == {7}
    assert set(e.tolist()) == {0.5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a=",
        "a=normal(1,2)",
        "a=lognormal(1,2)",
        "a=lognormal(1,2,3,x)",
        "a=lognormal(1,-2,3,4)",
        "a=lognormal(1e9,1,3,4)",
        "a=lognormal(1,2,9,3)",
        "a=uniform(2,1)",
        "a=uniform(1)",
        "a=uniform(nan,1)",
        "a=uniform(1,1e300)",
        "a=constant()",
        "a=constant(x)",
        "a=constant(1",
        "1a=constant(1)",
        "id=constant(1)",
    ],
)
def test_a_feature_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--feature: found"):
        FeatureSpec.parse(text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rate", 0),
        ("rate", float("nan")),
        ("rate", 1e12),
        ("duration_s", -1),
        ("duration_s", float("inf")),
        ("duration_s", 1e10),
        ("cv", -1),
        ("cv", float("nan")),
        ("burst_on_s", 0),
        ("burst_off_s", -1),
        ("burst_factor", 5.5),
        ("burst_factor", 0.5),
        ("period_s", 0),
        ("amplitude", 0),
        ("amplitude", 1.5),
        ("seed", -1),
        ("kind", "weekly"),
    ],
)
def test_parameters_out_of_range_name_their_option(option: str, value: object) -> None:
    parameters: dict[str, Any] = {"kind": "bursts", "rate": 10.0, "duration_s": 10.0, option: value}
    name = option.removesuffix("_s").replace("_", "-")
    with pytest.raises(InputError, match=f"--{name}: found"):
        Synthesis(**parameters)


def test_no_arrival_and_features_twice_are_refused() -> None:
    with pytest.raises(InputError, match="no arrival"):
        synthesize(Synthesis(kind="poisson", rate=1e-6, duration_s=1))
    one = FeatureSpec.parse("a=constant(1)")
    with pytest.raises(InputError, match="each feature once"):
        synthesize(Synthesis(kind="poisson", rate=10, duration_s=10), [one, one])
