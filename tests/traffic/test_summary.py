"""The shape of traffic: figures against known processes, and the word for each kind over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from latfix.errors import InputError
from latfix.traffic.heavy_tails import hill_index
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.summary import describe, nice_step, seconds_text
from latfix.traffic.synthesize import Synthesis, synthesize
from tests.traffic.io.test_reader import shared_file

SEEDS = range(6)


def traffic_of(gaps_s: npt.ArrayLike) -> Traffic:
    arrival = np.concatenate([[0.0], np.cumsum(gaps_s)])
    return Traffic.plain(np.rint(arrival * 1e9).astype(np.int64))


def poisson(rate: float, duration: float) -> Callable[[int], Traffic]:
    return lambda seed: synthesize(Synthesis(kind="poisson", rate=rate, duration_s=duration, seed=seed))


def gamma(cv: float, duration: float = 60) -> Callable[[int], Traffic]:
    return lambda seed: synthesize(Synthesis(kind="gamma", rate=50, duration_s=duration, cv=cv, seed=seed))


def bursts(on: float, off: float, factor: float, rate: float = 30) -> Callable[[int], Traffic]:
    more = {"burst_on_s": on, "burst_off_s": off, "burst_factor": factor}
    return lambda seed: synthesize(Synthesis(kind="bursts", rate=rate, duration_s=120, seed=seed, **more))


def periodic(period: float, amplitude: float) -> Callable[[int], Traffic]:
    more = {"period_s": period, "amplitude": amplitude}
    return lambda seed: synthesize(Synthesis(kind="periodic", rate=40, duration_s=90, seed=seed, **more))


def pareto(alpha: float, n: int) -> Callable[[int], Traffic]:
    return lambda seed: traffic_of(0.01 * (1 - np.random.default_rng(seed).random(n)) ** (-1 / alpha))


def lomax(alpha: float, n: int) -> Callable[[int], Traffic]:
    return lambda seed: traffic_of(0.01 * np.random.default_rng(seed).pareto(alpha, n))


KINDS: dict[str, tuple[str, Callable[[int], Traffic]]] = {
    "poisson": ("steady", poisson(50, 60)),
    "few poisson": ("steady", poisson(5, 40)),
    "many poisson": ("steady", poisson(200, 150)),
    "constant": ("steady", gamma(0)),
    "more regular than poisson": ("steady", gamma(0.3)),
    "gamma gaps": ("bursty", gamma(3)),
    "silence between bursts": ("bursty", bursts(1, 4, 5)),
    "some between bursts": ("bursty", bursts(1, 4, 4)),
    "short bursts": ("bursty", bursts(0.3, 2.7, 9)),
    "long bursts": ("bursty", bursts(5, 15, 3)),
    "slow sine": ("periodic", periodic(15, 0.8)),
    "fast sine": ("periodic", periodic(0.5, 0.8)),
    "shallow sine": ("periodic", periodic(7.3, 0.5)),
    "pareto 1.2": ("long-tailed", pareto(1.2, 1000)),
    "pareto 1.5": ("long-tailed", pareto(1.5, 3000)),
    "lomax 1.5": ("long-tailed", lomax(1.5, 3000)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_kind_of_traffic_is_classified(name: str, seed: int) -> None:
    expected, make = KINDS[name]
    shape = describe(make(seed))
    assert shape.kind == expected, shape.reason
    assert any(character.isdigit() for character in shape.reason)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("poisson", "at random (Poisson-like)"),
        ("few poisson", "at random (Poisson-like)"),
        ("constant", "more evenly than at random"),
        ("more regular than poisson", "more evenly than at random"),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_steady_traffic_is_random_or_more_even(name: str, words: str, seed: int) -> None:
    assert describe(KINDS[name][1](seed)).reason.startswith(f"Requests arrive {words}: gap coefficient of variation ")


def test_a_period_is_found_to_a_hundredth() -> None:
    for seed in SEEDS:
        period = describe(periodic(7.3, 0.8)(seed)).period
        assert period is not None
        assert period.seconds == pytest.approx(7.3, rel=0.01)
        assert period.strength > 0.9
        assert period.amplitude == pytest.approx(0.8, abs=0.1)


def test_a_strict_beat_of_simultaneous_requests_is_a_period_and_three_cycles_are_none() -> None:
    gaps = np.zeros(4000)
    gaps[::10] = 3.0
    period = describe(traffic_of(gaps)).period
    assert period is not None
    assert period.seconds == pytest.approx(3.0, rel=0.001)
    process = Synthesis(kind="periodic", rate=40, duration_s=90, period_s=30, seed=1)
    assert describe(synthesize(process)).period is None


def test_dispersion_is_one_for_poisson_and_zero_for_a_metronome() -> None:
    for entry in describe(poisson(100, 100)(1)).dispersion:
        assert entry.index == pytest.approx(1.0, abs=4 * math.sqrt(2 / entry.windows))
    assert max(entry.index for entry in describe(gamma(0)(0)).dispersion) < 0.3


def test_dispersion_of_gamma_gaps_approaches_the_squared_variation() -> None:
    indices = [entry.index for entry in describe(gamma(2, 600)(3)).dispersion]
    assert 3 < indices[-2] < 5
    assert indices[0] < indices[2]


def test_hill_finds_the_index_of_pareto_values() -> None:
    for alpha in (0.8, 1.5, 3.0):
        values = np.random.default_rng(4).pareto(alpha, 40_000) + 1
        assert hill_index(values) == pytest.approx(alpha, rel=0.1)


def test_gap_figures_of_a_known_sequence() -> None:
    shape = describe(traffic_of([1.0, 0.0, 3.0, 4.0]))
    assert (shape.count, shape.span_s, shape.mean_rate) == (5, 8.0, 0.5)
    assert shape.gaps is not None
    assert (shape.gaps.mean_s, shape.gaps.max_s, shape.gaps.zero_share) == (2.0, 4.0, 0.25)
    assert shape.gaps.cv == pytest.approx(math.sqrt(2.5) / 2)
    assert sum(shape.gaps.histogram) == 3
    assert shape.grid_s == 1.0


def test_the_rate_over_time_counts_every_request_of_whole_windows() -> None:
    shape = describe(poisson(50, 60)(2))
    whole = shape.rate.window_s * len(shape.rate.rates)
    counted = sum(rate * shape.rate.window_s for rate in shape.rate.rates)
    assert counted == pytest.approx(50 * whole, rel=0.1)
    assert shape.peak_rate == max(shape.rate.rates)
    assert 20 <= len(shape.rate.rates) <= 120


def test_features_sessions_priorities_and_deadlines_are_summarized(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"arrival_s": i, "tokens": i, "lang": "de" if i % 4 else "en", "session": f"s{i % 3}", "priority": "high"}
        | ({"deadline_ms": 100.0} if i % 2 else {})
        for i in range(101)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    shape = describe(read_traffic(path))
    tokens, lang = shape.features
    assert (tokens.numbers["min"], tokens.numbers["p50"], tokens.numbers["max"]) == (0, 50, 100)
    assert tokens.numbers["p95"] == pytest.approx(95)
    assert (lang.distinct, lang.top) == (2, (("de", 75), ("en", 26)))
    assert (shape.sessions, shape.session_requests) == (3, 101)
    assert shape.priorities == {"high": 101}
    assert (shape.deadlines, shape.deadline_ms["p50"]) == (50, 100.0)


@pytest.mark.parametrize("gaps", [[], [0.0], [0.0] * 200, [1e-9] * 60, [1e8, 1e-9], [5.0]])
def test_awkward_traffic_has_a_shape_too(gaps: list[float]) -> None:
    shape = describe(traffic_of(gaps))
    assert shape.kind in ("steady", "bursty", "periodic", "long-tailed")
    text = json.dumps(shape.to_json(), allow_nan=False)
    assert json.loads(text)["count"] == len(gaps) + 1
    with pytest.raises(InputError, match="no requests"):
        describe(Traffic.plain(np.array([], dtype=np.int64)))


@pytest.mark.parametrize(("least", "step"), [(0.011, 0.02), (1, 1), (2.1, 5), (28.6, 50), (40, 60), (3000, 3600)])
def test_windows_are_round(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (2e-9, "2 ns"), (5.2e-5, "52 µs"), (0.0638, "63.8 ms"), (3435.9, "3,436 s")]
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("name", "kind"),
    [("AzureLLMInferenceTrace_code.csv", "long-tailed"), ("mooncake_conversation_trace.jsonl", "periodic")],
)
def test_real_traffic_is_described(name: str, kind: str) -> None:
    shape = describe(read_traffic(shared_file(name)))
    assert shape.kind == kind
    assert shape.gaps is not None
    if kind == "periodic":  # its arrivals were recorded every three seconds
        assert shape.period is not None
        assert shape.period.seconds == pytest.approx(3.0, abs=0.01)
        assert shape.gaps.zero_share > 0.9
