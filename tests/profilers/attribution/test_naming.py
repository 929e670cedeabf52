"""Which causes are named, and what even a healthy run shows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from latfix.profilers.attribution.tail import Median
from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.reports.answer import diagnosis_answer
from tests.profilers.simulated_runs import simulate


@pytest.mark.slow
def test_chance_is_no_burst() -> None:
    # GIVEN independent callers at a third of capacity
    verdicts = [diagnose(simulate(n=400, rate=32, seed=seed), bootstrap=60).verdict for seed in range(20)]
    assert verdicts.count("steady") >= 19
    assert "callers at this load cause each other by chance" in diagnose(simulate(n=400, rate=32)).sentence


def test_bursts_are_named_in_addition_to_chance() -> None:
    rng = np.random.default_rng(2)
    arrivals = np.cumsum(rng.exponential(30.0, 500))
    for start in range(40, 490, 90):
        arrivals[start : start + 12] = arrivals[start]
    diagnosis = diagnose(simulate(n=500, arrivals_ms=np.sort(arrivals)))
    assert diagnosis.verdict == "traffic.burst"


def test_a_busy_service_is_named_for_any_arrivals() -> None:
    assert diagnose(simulate(n=1500, rate=80)).verdict in ("traffic.burst", "traffic.overload")


def test_a_little_contention_is_normal() -> None:
    # GIVEN evenly spaced requests; every fifth waits 0.3 ms for a core, far from any tail that matters
    faults = dict.fromkeys(range(0, 600, 5), ("runq", 0.3))
    quiet = diagnose(simulate(arrivals_ms=np.arange(600) * 25.0, compute_faults=faults))
    assert not any(cause.named for cause in quiet.causes)
    loud = diagnose(simulate(arrivals_ms=np.arange(600) * 25.0, compute_faults=dict.fromkeys(faults, ("runq", 9.0))))
    assert loud.causes[0].cause == "host.contention" and loud.causes[0].named


@pytest.mark.parametrize(("kind", "cause"), [("cpu", "host.slowdown"), ("runq", "host.contention")])
def test_many_small_disturbances_are_noise_of_the_machine(kind: str, cause: str) -> None:
    # GIVEN a busy service, two of five requests of which take a little longer, and one that is hit hard but rarely
    rng = np.random.default_rng(4)
    little = {int(k): (kind, float(rng.uniform(1.0, 4.0))) for k in np.flatnonzero(rng.random(1000) < 0.4)}
    much = dict.fromkeys(range(30, 1000, 50), (kind, 40.0))
    noisy = diagnose(simulate(n=1000, rate=55, compute_faults=little))
    struck = diagnose(simulate(n=1000, rate=55, compute_faults=much))
    both = diagnose(simulate(n=1000, rate=55, compute_faults={**little, **much}))
    of_noise = next(each for each in noisy.causes if each.cause == cause)
    # THEN the queue makes milliseconds of the little, which are booked and not named
    assert of_noise.tail_ms > 2.0 and not of_noise.named
    for diagnosis in (struck, both):
        assert diagnosis.verdict == cause
    assert json.loads(json.dumps(noisy.to_json()))["verdict"] == noisy.verdict


def test_queue_length_follows_the_mean_service_time() -> None:
    # GIVEN work that scatters with a skew and all but fills the worker; by its median a tenth of it is free
    rng = np.random.default_rng(6)
    scatter = {k: ("cpu", float(ms)) for k, ms in enumerate(rng.lognormal(0.0, 1.0, 2000))}
    causes = {
        cause.cause: cause.tail_ms for cause in diagnose(simulate(n=2000, rate=86, compute_faults=scatter)).causes
    }
    # THEN slow requests wait for the traffic, not for a machine that is slower than usual
    assert causes.get("traffic.burst", 0.0) + causes.get("traffic.overload", 0.0) > causes["host.slowdown"]


def test_a_steady_sentence_mentions_the_machines_noise() -> None:
    rng = np.random.default_rng(4)
    little = {int(k): ("cpu", float(rng.uniform(1.0, 5.0))) for k in np.flatnonzero(rng.random(1500) < 0.4)}
    diagnosis = diagnose(simulate(n=1500, arrivals_ms=np.arange(1500) * 13.0, compute_faults=little))
    assert diagnosis.verdict == "steady"
    assert "work taking more CPU time than usual, by a little in many requests" in diagnosis.sentence


@pytest.mark.parametrize("limit", [100, 0], ids=["at-once", "in-pieces"])
def test_what_else_struck_a_request_of_the_cold_start_is_not_certain(limit: int) -> None:
    """It is the only request of the tail, and in every run, but not always struck by a collection as well."""
    record = simulate(n=60, arrivals_ms=np.arange(60) * 50.0, cold=300.0, compute_faults={0: ("gc", 80.0)})
    found = diagnose(record, scale=Scale(limit=limit, chunk=30, stretches=2, stretch=30))
    causes = {cause.cause: cause for cause in found.causes}
    assert causes["python.gc"].tail_ms == pytest.approx(80.0, rel=0.01)
    assert causes["python.gc"].ci95_ms[0] < 1.0 and not causes["python.gc"].named
    assert causes["cold.start"].named and causes["cold.start"].ci95_ms[0] > 200.0


@pytest.mark.parametrize("limit", [10_000, 0], ids=["at-once", "in-pieces"])
def test_an_overload_after_a_cold_start_is_certain(limit: int) -> None:
    """The cold start delays every request that follows, by little of what it waits."""
    record = simulate(n=1500, rate=300.0, cold=20.0)
    found = diagnose(record, scale=Scale(limit=limit, chunk=500, stretches=2, stretch=500))
    overload = next(cause for cause in found.causes if cause.cause == "traffic.overload")
    assert found.verdict == "traffic.overload" and overload.ci95_ms[0] > 0.5 * overload.tail_ms
    assert overload.tail_share > 0.9


@pytest.mark.slow
def test_intervals_cover_the_mean_of_repeated_runs() -> None:
    # GIVEN runs alike but for their seed, with collections of random length in two per cent of requests
    found, ends = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        hit = np.flatnonzero(rng.random(400) < 0.02)
        faults = {int(k): ("gc", float(40 * np.exp(0.5 * rng.standard_normal()))) for k in hit}
        diagnosis = diagnose(simulate(n=400, rate=25, seed=seed, compute_faults=faults), bootstrap=100)
        entry = next((cause for cause in diagnosis.causes if cause.cause == "python.gc"), None)
        found.append(entry.tail_ms if entry else 0.0)
        ends.append(entry.ci95_ms if entry else (0.0, 0.0))
    truth = float(np.mean(found))
    held = sum(low <= truth <= high for low, high in ends)
    assert held >= 34  # 85 %; the percentile interval alone held it in 62 %
    assert sum(low > truth for low, _ in ends) <= 3


@pytest.mark.parametrize(
    "service",
    [{"rate": 80}, {"rate": 60, "compute_faults": dict.fromkeys(range(30, 800, 40), ("blocked", 60.0))}],
    ids=["busy", "struck"],
)
def test_prediction_with_another_worker(service: dict[str, Any]) -> None:
    alone, together = (simulate(n=800, workers=workers, **service) for workers in (1, 2))
    found, truth = diagnose(alone, bootstrap=60), diagnose(together, bootstrap=60)
    for key in ("p50", "p95", "p99"):
        assert found.another_worker_ms[key] == pytest.approx(truth.latency_ms[key], rel=0.1)
    capacity = [line.words for line in diagnosis_answer(found).lines if line.label == "capacity"]
    assert len(capacity) == 1 and "one more worker of the same speed would bring p99 to about" in capacity[0]


def test_no_prediction_with_another_worker_without_waits_for_one() -> None:
    rare = dict.fromkeys(range(30, 800, 40), ("gc", 60.0))
    found = diagnose(simulate(n=800, arrivals_ms=np.arange(800) * 90.0, compute_faults=rare), bootstrap=60)
    assert not found.another_worker_ms
    assert not any(line.label == "capacity" for line in diagnosis_answer(found).lines)


def test_two_causes_removed_together() -> None:
    rng = np.random.default_rng(3)
    chosen = rng.choice(np.arange(20, 800), 40, replace=False)
    faults = {int(k): ("gc" if i % 2 else "faults", 50.0) for i, k in enumerate(chosen)}
    faulty = diagnose(simulate(n=800, rate=25, compute_faults=faults))
    clean = diagnose(simulate(n=800, rate=25))
    joint = faulty.whatif[0]
    assert set(joint.without) == {"python.gc", "memory.page_faults"}
    alone = min(cause.whatif_ms["p99"] for cause in faulty.causes[:2])
    assert joint.p99 < 0.7 * alone
    assert joint.p99 == pytest.approx(clean.latency_ms["p99"], rel=0.15)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 777])
def test_medians_of_resamples(size: int) -> None:
    rng = np.random.default_rng(size)
    values, chosen = rng.integers(0, 40, size), rng.random(size) < 0.7
    counts = rng.integers(0, 3, (6, size))
    counts[:1] = 0
    drawn = [np.repeat(values[chosen], row[chosen]) for row in counts]
    wanted = [np.median(each) - np.median(values[chosen]) if len(each) else 0.0 for each in drawn]
    assert Median(values, chosen).moved(counts).tolist() == wanted
