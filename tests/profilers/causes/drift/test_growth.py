"""Work that slows down with age, as opposed to episodes, inputs and chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from latfix.profilers.causes.drift.growth import find_growths
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.units import gather
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from tests.profilers.samples import sample_columns
from tests.profilers.simulated_runs import simulate

Floats = npt.NDArray[np.float64]
N = 900
AGE = np.arange(N) / N
VARIED = np.exp(np.random.default_rng(3).normal(4, 0.6, N)).astype(np.int64)
DRIFTS = ("drift.memory", "drift.cache", "drift.sessions", "drift.unknown")


def slower(ms: npt.NDArray[Any], kind: str = "cpu") -> dict[int, tuple[str, float]]:
    return {k: (kind, float(value)) for k, value in enumerate(ms) if value > 0}


def sampled(record: RunRecord, **mebibytes: Callable[[float], float]) -> RunRecord:
    """The record with series in MiB (``objects``: in 2**20), as functions of age from 0 to 1."""
    names = {"rss": "process.rss_bytes", "heap": "malloc.used_bytes", "objects": "python.blocks"}
    end = int(record.requests["arrival_ns"].max())
    times = np.linspace(0, end, 300).astype(np.int64)
    series = {
        names[key]: (times, np.array([size(t / end) * 2.0**20 for t in times])) for key, size in mebibytes.items()
    }
    return replace(record, samples=sample_columns(series))


def with_sessions(record: RunRecord, names: Mapping[int, str] | list[str]) -> RunRecord:
    return replace(record, traffic=replace(record.traffic, sessions=[names[k] for k in range(N)]))


def own_ms(diagnosis: Diagnosis, cause: str) -> Floats:
    ledger = diagnosis.ledger
    return np.asarray(ledger.own_ns[ledger.causes.index(cause)] / 1e6, dtype=np.float64)


def claimed(diagnosis: Diagnosis) -> dict[str, float]:
    return {cause: total for cause in DRIFTS if (total := float(own_ms(diagnosis, cause).sum())) > 0}


def sentence(diagnosis: Diagnosis, cause: str) -> str:
    return next(entry.evidence for entry in diagnosis.causes if entry.cause == cause)


def test_growth_with_memory_is_drift_memory_and_costs_what_was_injected() -> None:
    record = sampled(simulate(n=N, rate=12, compute_faults=slower(6 * AGE)), rss=lambda age: 310 + 670 * age)
    diagnosis = diagnose(record, bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.memory"}
    assert np.median(np.abs(own_ms(diagnosis, "drift.memory") - 6 * AGE)) < 0.2
    assert diagnosis.ledger.conservation_error_ns() == 0
    growth = find_growths(gather(record))[0]
    injected = 6e6 / (record.requests["arrival_ns"].max() / 1e9)
    assert growth.slope.low < injected < growth.slope.high
    assert growth.slope.high - growth.slope.low < 0.3 * growth.slope.value
    # THEN the reference is that of a young service
    young = diagnose(simulate(n=N, rate=12), bootstrap=10)
    assert diagnosis.reference_ms == pytest.approx(young.reference_ms, abs=0.3)
    words = sentence(diagnosis, "drift.memory")
    assert "first quarter" in words and "a second [" in words and "resident memory grew from" in words


def test_growth_with_sessions_is_drift_sessions() -> None:
    # GIVEN sessions that pile up in two waves, work that follows them, and memory that grows evenly
    seen = np.interp(AGE, [0, 0.15, 0.3, 0.7, 0.85, 1], [1, 100, 110, 120, 290, 300]).astype(int)
    record = simulate(n=N, rate=12, compute_faults=slower(seen / 50))
    record = with_sessions(sampled(record, rss=lambda age: 310 + 670 * age), [f"s{k}" for k in seen])
    diagnosis = diagnose(record, bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.sessions"}
    assert "sessions seen grew from" in sentence(diagnosis, "drift.sessions")


def test_growth_with_shapes_is_drift_cache() -> None:
    fresh = np.zeros(N, dtype=bool)
    fresh[np.random.default_rng(2).choice(N, 90, replace=False)] = True
    record = simulate(n=N, rate=12, compute_faults=slower(np.cumsum(fresh) / 15))
    record = replace(record, batches=record.batches | {"first_shape": fresh.astype(np.int64)})
    diagnosis = diagnose(record, bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.cache"}
    assert "input shapes seen grew from" in sentence(diagnosis, "drift.cache")


def test_series_that_all_grow_evenly_are_not_distinguished() -> None:
    record = simulate(n=N, arrivals_ms=np.arange(N) * 80.0, compute_faults=slower(6 * AGE))
    record = with_sessions(sampled(record, rss=lambda age: 310 + 670 * age), [f"s{k}" for k in range(N)])
    diagnosis = diagnose(record, bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.unknown"}
    words = sentence(diagnosis, "drift.unknown")
    assert "resident memory grew" in words and "sessions seen grew" in words and "is unclear" in words


@pytest.mark.parametrize(("mebibytes", "cause"), [(60, "drift.cache"), (1200, "drift.unknown")])
def test_memory_made_of_small_objects_is_their_growth(mebibytes: float, cause: str) -> None:
    """0.8 million more objects: 60 MiB are theirs; 1.2 GiB is more than Python's allocator can have given them."""
    record = simulate(n=N, arrivals_ms=np.arange(N) * 80.0, compute_faults=slower(6 * AGE))
    record = sampled(record, rss=lambda age: 310 + mebibytes * age, objects=lambda age: 0.8 + 0.8 * age)
    diagnosis = diagnose(record, bootstrap=40)
    assert set(claimed(diagnosis)) == {cause}
    assert "live Python objects grew from" in sentence(diagnosis, cause)


def test_flat_memory_is_not_a_reason() -> None:
    record = sampled(simulate(n=N, rate=12, compute_faults=slower(6 * AGE)), rss=lambda age: 310 + 6 * age)
    diagnosis = diagnose(record, bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.unknown"}
    assert "no recorded series grew with it" in sentence(diagnosis, "drift.unknown")


@pytest.mark.parametrize("at", [0.35, 0.5, 0.68])
def test_a_shift_that_lasts_is_drift_though_memory_grew_evenly(at: float) -> None:
    record = simulate(n=N, rate=12, compute_faults=slower(5.0 * (at < AGE)))
    diagnosis = diagnose(sampled(record, rss=lambda age: 310 + 670 * age), bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.unknown"}
    own = own_ms(diagnosis, "drift.unknown")
    assert own[at < AGE] == pytest.approx(5.0, abs=0.4) and own[at > AGE].max() < 0.1
    seconds = record.requests["arrival_ns"][int(at * N)] / 1e9
    assert find_growths(gather(record))[0].rise.step == pytest.approx(seconds, abs=0.5)
    assert "from then on" in sentence(diagnosis, "drift.unknown")


def test_a_weak_drift_follows_memory_though_the_pace_waves() -> None:
    # A pace that changes for seconds adds as much as the drift; a level that never falls follows it too.
    ms = 3.0 * AGE + 1.0 + np.cos(2 * np.pi * 2.5 * AGE)
    record = sampled(simulate(n=N, rate=12, compute_faults=slower(ms)), rss=lambda age: 310 + 670 * age)
    assert set(claimed(diagnose(record, bootstrap=20))) == {"drift.memory"}


@pytest.mark.parametrize(
    ("name", "ms"),
    [
        ("an episode", 6.0 * ((AGE > 0.4) & (AGE < 0.7))),
        ("episodes", 6.0 * (AGE * 8 % 1 > 0.5)),
        ("an episode that ends late", 6.0 * ((AGE > 0.5) & (AGE < 0.9))),
        ("a slow start", 6.0 * (AGE < 0.3)),
    ],
)
def test_episodes_that_end_are_slowdown(name: str, ms: Floats) -> None:
    diagnosis = diagnose(simulate(n=N, rate=12, compute_faults=slower(ms)), bootstrap=20)
    assert claimed(diagnosis) == {}, name
    assert own_ms(diagnosis, "host.slowdown").sum() > 0


def test_work_that_gets_faster_is_no_drift() -> None:
    assert find_growths(gather(simulate(n=N, rate=12, compute_faults=slower(6 * (1 - AGE))))) == []


@pytest.mark.parametrize(
    ("faults", "more", "ms", "words"),
    [
        ({"prepare_faults": slower(4 * AGE)}, {}, 4, "prepare took"),
        ({"compute_faults": slower(6 * AGE, "blocked")}, {}, 6, "blocked time in compute"),
        ({"compute_faults": slower(6 * AGE)}, {"lengths": VARIED}, 6, "compute"),
    ],
)
def test_any_stage_can_drift_and_inputs_that_vary_do_not_hide_it(
    faults: dict[str, Any], more: dict[str, Any], ms: float, words: str
) -> None:
    diagnosis = diagnose(simulate(n=N, rate=12, **faults, **more), bootstrap=40)
    assert set(claimed(diagnosis)) == {"drift.unknown"}
    assert np.median(np.abs(own_ms(diagnosis, "drift.unknown") - ms * AGE)) < (0.5 if more else 0.2)
    assert words in sentence(diagnosis, "drift.unknown")


@pytest.mark.parametrize("noise", [0.01, 0.5])
def test_inputs_that_grow_are_no_drift(noise: float) -> None:
    lengths = (50 + 200 * AGE + np.random.default_rng(1).integers(0, 60, N)).astype(np.int64)
    record = sampled(simulate(n=N, rate=12, lengths=lengths, noise=noise), rss=lambda age: 310 + 670 * age)
    assert claimed(diagnose(record, bootstrap=10)) == {}


def test_load_that_grows_is_no_drift() -> None:
    arrivals = np.cumsum(np.linspace(80, 12, N))
    assert find_growths(gather(simulate(n=N, arrivals_ms=arrivals, max_batch=8, window=10.0))) == []


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["lognormal", "pareto"])
def test_heavy_tails_are_no_drift(tail: str) -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        ms = rng.lognormal(1, 1.5, N) if tail == "lognormal" else 3 * rng.pareto(1.2, N)
        found += bool(find_growths(gather(simulate(n=N, rate=12, seed=seed, compute_faults=slower(ms)))))
    assert found <= 1


@pytest.mark.parametrize(
    ("n", "ms", "found"), [(N, 1.0, False), (N, 2.5, True), *((few, 6.0, False) for few in (0, 1, 10, 50))]
)
def test_small_rises_and_few_requests_are_ignored(n: int, ms: float, found: bool) -> None:
    record = simulate(n=n, rate=12, compute_faults=slower(ms * np.arange(n) / max(n, 1)))
    assert bool(find_growths(gather(record))) == found


def test_growth_in_batches_reaches_every_member_once() -> None:
    record = simulate(n=1800, rate=60, max_batch=6, window=20.0, compute_faults=slower(np.full(1800, 0.0)))
    compute = record.batches["compute_end_ns"] - record.batches["h2d_end_ns"]
    grown = np.rint(np.linspace(0, 0.4, len(compute)) * compute).astype(np.int64)
    for column in ("compute_end_ns", "d2h_end_ns", "finish_end_ns", "compute_cpu_ns"):
        record.batches[column] += grown
    of_request = grown[record.requests["batch_id"]]
    for column in ("compute_ns", "latency_ns"):
        record.requests[column] += of_request
    diagnosis = diagnose(record, bootstrap=10)
    assert set(claimed(diagnosis)) == {"drift.unknown"}
    injected = of_request / 1e6
    assert np.median(np.abs(own_ms(diagnosis, "drift.unknown") - injected)) < 0.15 * injected.mean()
    assert diagnosis.ledger.conservation_error_ns() == 0
