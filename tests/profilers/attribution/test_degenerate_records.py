"""Records with little, broken or odd content still give a diagnosis with valid JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latfix.formatting import counted
from latfix.profilers.diagnose import diagnose, write_causes
from latfix.results.diagnosis import Diagnosis
from latfix.stages import STAGES
from latfix.traffic.parsed_fields import RECORDED
from tests.profilers.simulated_runs import simulate


def check(diagnosis: Diagnosis) -> dict[str, Any]:
    document = diagnosis.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))
    assert diagnosis.ledger.conservation_error_ns() == 0
    assert sum(c.tail_ms for c in diagnosis.causes) == pytest.approx(diagnosis.excess_ms, rel=1e-9, abs=1e-9)
    return document


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_requests(n: int) -> None:
    diagnosis = diagnose(simulate(n=n, rate=10))
    document = check(diagnosis)
    assert document["requests"]["ok"] == n
    if n:
        assert any(f"of {counted(n, 'request')}" in note for note in diagnosis.notes)
    else:
        assert diagnosis.verdict == "inconclusive" and "No request ended ok" in diagnosis.sentence


def test_all_errors() -> None:
    diagnosis = diagnose(simulate(n=50, status=dict.fromkeys(range(50), 1)))
    check(diagnosis)
    assert diagnosis.verdict == "losing"
    assert diagnosis.requests["error"] == 50
    assert diagnosis.to_json()["latency_ms"]["p99"] is None and diagnosis.to_json()["latency_ms_ok"]["p99"] is None


def test_a_service_that_died_early() -> None:
    """Its answers are all in the first twelfth of the run, in one fold of the models of work."""
    diagnosis = diagnose(simulate(n=240, status=dict.fromkeys(range(20, 240), 1)))
    check(diagnosis)
    assert diagnosis.verdict == "losing" and diagnosis.requests["ok"] == 20


def test_failures_are_counted_separately_and_noted() -> None:
    diagnosis = diagnose(simulate(n=200, status=dict.fromkeys(range(0, 200, 10), 2)))
    check(diagnosis)
    assert len(diagnosis.ledger.latency_ns) == 180
    assert any("20 timeout" in note for note in diagnosis.notes)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_even_latencies_are_steady(noise: float) -> None:
    diagnosis = diagnose(simulate(n=300, arrivals_ms=np.arange(300) * 50.0, noise=noise))
    check(diagnosis)
    assert diagnosis.verdict == "steady" and not any(cause.named for cause in diagnosis.causes)
    assert noise or diagnosis.excess_ms == pytest.approx(0.0, abs=1e-6)


def test_partial_run_is_noted_with_its_counts() -> None:
    record = simulate(n=200, meta={"state": "interrupted", "scheduled": 500})
    diagnosis = diagnose(replace(record, partial=True))
    assert any("interrupted" in note and "200" in note and "300" in note for note in diagnosis.notes)
    assert diagnosis.partial


def test_request_without_its_batch_is_left_out_and_noted() -> None:
    record = simulate(n=200)
    batches = {name: column[:-5] for name, column in record.batches.items()}
    diagnosis = diagnose(replace(record, batches=batches))
    check(diagnosis)
    assert len(diagnosis.ledger.latency_ns) == 195
    assert any("5 requests that ended ok have no record of their batch" in note for note in diagnosis.notes)


def test_failed_batches_whose_members_ended_ok_are_noted() -> None:
    """Nothing else would show that a service never forms a batch."""
    record = simulate(n=200)
    record.batches["size"][:40], record.batches["retried"][:30] = 3, 1
    (words,) = [note for note in diagnose(record).notes if "one by one" in note]
    assert words.startswith("30 of 40 batches of several requests failed") and words.endswith("one by one.")
    kinds, details = np.array(["note"] * 2, object), np.array([{"steps": True}, {"retried": True, "message": "why"}])
    columns = {name: np.zeros(2, np.int64) for name in record.events} | {"kind": kinds, "detail": details}
    assert any(note.endswith("one by one: why.") for note in diagnose(replace(record, events=columns)).notes)
    record.requests["status"][:] = 1
    assert not any("one by one" in note for note in diagnose(record).notes), "the errors are shown"


def test_warmup_is_excluded_but_occupies_the_queue() -> None:
    record = simulate(n=300, rate=20, cold=300.0)
    early = record.requests["index"] < 50
    record.requests["warmup"][early] = 1
    record.requests["index"][early] = -1 - np.arange(np.count_nonzero(early))
    diagnosis = diagnose(record)
    check(diagnosis)
    assert len(diagnosis.ledger.latency_ns) == 250
    assert diagnosis.verdict != "cold.start"


def test_same_record_and_seed_give_the_same_diagnosis() -> None:
    record = simulate(n=300, compute_faults={50: ("gc", 80.0)})
    assert diagnose(record, seed=3).to_json() == diagnose(record, seed=3).to_json()


def test_the_objectives_limit_is_on_its_own_percentile() -> None:
    record = simulate(n=200, meta={"objective": {"percentile": 95, "slo_ms": 40.0}})
    assert (diagnose(record).slo_ms, diagnose(record, percentile=99).slo_ms) == (40.0, None)


def test_percentile_comes_from_the_objective_unless_given() -> None:
    record = simulate(n=200, meta={"objective": {"percentile": 95}})
    assert diagnose(record).percentile == 95
    assert diagnose(record, percentile=90).percentile == 90


def test_causes_parquet_holds_every_entry(tmp_path: Path) -> None:
    record = simulate(n=300, compute_faults={50: ("gc", 80.0)})
    diagnosis = diagnose(record)
    write_causes(diagnosis, tmp_path / "causes.parquet")
    table = pq.read_table(tmp_path / "causes.parquet").to_pydict()
    assert list(table) == ["request_id", "cause", "own_ns", "propagated_ns", "class"]
    total = dict.fromkeys(diagnosis.ledger.ids, 0)
    for request, own, propagated in zip(table["request_id"], table["own_ns"], table["propagated_ns"], strict=True):
        assert own or propagated
        total[request] += own + propagated
    excess = diagnosis.ledger.latency_ns - diagnosis.ledger.reference_ns
    assert list(total.values()) == excess.tolist()
    assert ("r50", "python.gc", "measured") in set(
        zip(table["request_id"], table["cause"], table["class"], strict=True)
    )


def test_recorded_latencies_change_no_cause() -> None:
    # GIVEN a replay of imported traffic whose recorded latencies are those of the replay itself
    record = simulate(rate=20)
    recorded = np.full(len(record.traffic), np.nan)
    measured = record.requests["warmup"] == 0
    recorded[record.requests["index"][measured]] = record.requests["latency_ns"][measured] / 1e6
    plain = diagnose(record, bootstrap=20)
    # WHEN
    traffic = replace(record.traffic, features={**record.traffic.features, RECORDED: recorded})
    found = diagnose(replace(record, traffic=traffic), bootstrap=20)
    # THEN they are shown with its percentiles, and no cause has changed
    assert [(each.cause, each.tail_ms) for each in found.causes] == [(c.cause, c.tail_ms) for c in plain.causes]
    assert found.recorded_ms["p50"] == pytest.approx(found.latency_ms["p50"], rel=0.01)
    assert not plain.recorded_ms


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(0, 120),
    rate=st.floats(5, 400),
    max_batch=st.integers(1, 9),
    window=st.sampled_from([0.0, 2.0, 30.0]),
    workers=st.integers(1, 3),
    prepare_threads=st.integers(1, 3),
    scramble=st.booleans(),
)
# Mostly zero work that grows with age: without the growth, its median is negative.
@example(seed=10_000, n=88, rate=295.0, max_batch=2, window=30.0, workers=3, prepare_threads=1, scramble=True)
def test_any_record_is_conserved(
    seed: int,
    n: int,
    rate: float,
    max_batch: int,
    window: float,
    workers: int,
    prepare_threads: int,
    scramble: bool,
) -> None:
    # GIVEN a run under any policy, with failures and priorities, or with counters that make no sense
    rng = np.random.default_rng(seed)
    record = simulate(
        n=n,
        seed=seed,
        rate=rate,
        max_batch=max_batch,
        window=window,
        workers=workers,
        prepare_threads=prepare_threads,
        lengths=rng.integers(1, 500, n),
        priority=rng.integers(0, 3, n).astype(np.int8),
        status={k: int(rng.integers(0, 4)) for k in range(0, n, 7)},
        compute_faults=dict.fromkeys(range(0, n, 11), ("gc", 50.0)),
    )
    if scramble:
        for columns in (record.requests, record.batches):
            for name, column in columns.items():
                if name.endswith(("_ns", "flt", "elements", "length")) and name != "latency_ns":
                    columns[name] = np.where(
                        rng.random(len(column)) < 0.2, rng.integers(0, 10**9, len(column)), column
                    )
        record.requests["latency_ns"] = np.sum([record.requests[f"{stage}_ns"] for stage in STAGES], axis=0)
    # THEN every nanosecond has an owner
    check(diagnose(record, bootstrap=10))
