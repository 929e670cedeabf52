"""Columns whose names say nothing: inputs are found, and nothing that follows from the latency or the load is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latfix.arrays import Floats
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.columns.possible_inputs import possible_inputs, says_no_input
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.queueing.closed_loop import in_flight
from latfix.queueing.inference.queue_inference import infer_queue
from latfix.results.diagnosis import Diagnosis
from tests.profilers.recordings.requests.simulated_log import simulated

KINDS = ("quiet", "burst", "big", "drift", "dependency", "stall")


def sizes(table: RequestTable) -> Floats:
    return np.asarray(table.features["size"], dtype=np.float64)


def outcomes(table: RequestTable, seed: int) -> dict[str, Floats]:
    """Columns that a service writes beside its latency, none of which is an input."""
    rng, n = np.random.default_rng(seed), len(table)
    at, took = table.arrival_ns, table.latency_ns
    found = in_flight(at, took).astype(np.float64)
    left = np.searchsorted(at, at + took, "right") - 1 - np.argsort(np.argsort(at + took))
    memory = np.cumsum(rng.normal(0, 1, n))
    queue = infer_queue(at, took, 1)
    return {
        "found": found,
        "left": np.maximum(left, 0).astype(np.float64),
        "together": np.minimum(found + 1, 8),
        "copy": np.round(took / 1e6, 3),
        "flag": (took > np.quantile(took, 0.99)).astype(np.float64),
        "class": np.searchsorted([2e7, 5e7, 2e8], took).astype(np.float64),
        "number": 1000.0 + np.arange(n),
        "part": np.arange(n) % 997.0,
        "clock": 1.7e9 + at // 10**9,
        "gauge": np.round(memory - memory.min(), 2),
        "warmer": np.round(np.linspace(0, 3, n) + rng.normal(0, 1, n) + 9, 2),
        "stood": (np.zeros(n) if queue is None else queue.wait_ns) / 1e6,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("servers", [1, 4])
def test_no_outcome_is_a_possible_input(kind: str, servers: int) -> None:
    table = simulated(kind, 21, servers=servers, load=0.6)
    columns = {**outcomes(table, 21), "side": sizes(table)}
    inputs, states = possible_inputs(table, columns, {})
    assert set(inputs) == {"side"}
    assert "copy" in states and not {"number", "part"} & set(states)


def test_an_input_is_one_where_hardly_any_requests_meet() -> None:
    """How many come meanwhile is then mostly none, and below the mean by as much as the latency is long."""
    table = simulated("quiet", 23, servers=1, load=0.05)
    inputs, _ = possible_inputs(table, {**outcomes(table, 23), "side": sizes(table)}, {})
    assert "side" in inputs and not {"copy", "flag", "gauge", "number"} & set(inputs)


@pytest.mark.parametrize("kind", ["drift", "stall", "dependency", "burst"])
def test_columns_of_unknown_meaning_change_no_other_cause(tmp_path: Path, kind: str) -> None:
    """Of a log with many of them, as of one with the input alone, whose name is known."""
    table = simulated(kind, 22, servers=4)
    rng = np.random.default_rng(22)
    chance = {f"c{k}": rng.integers(0, 10 ** (k + 1), len(table)).astype(np.float64) for k in range(6)}
    plain = diagnosed(tmp_path, table, {"size": sizes(table)})
    many = diagnosed(tmp_path, table, {"side": sizes(table), **outcomes(table, 22), **chance})
    assert any("used as inputs" in note and ": side." in note for note in many.notes)
    assert many.verdict == plain.verdict
    for cause in plain.causes:
        same = next(each for each in many.causes if each.cause == cause.cause)
        assert same.tail_ms == pytest.approx(cause.tail_ms, abs=0.02 * plain.excess_ms)


def diagnosed(tmp_path: Path, table: RequestTable, columns: dict[str, Floats]) -> Diagnosis:
    names = ["arrival_us", "latency_us", *(["db_us"] if table.parts else []), *columns]
    times = [column / 1e3 for column in (table.arrival_ns, table.latency_ns, *table.parts.values())]
    rows = np.column_stack([*times, *columns.values()]).tolist()
    path = tmp_path / "log.csv"
    path.write_text("\n".join([",".join(names), *(",".join(f"{cell:.9g}" for cell in row) for row in rows)]) + "\n")
    return diagnose_recording(path, ReadOptions(percentile=99.0, mapping=("db_us=db_us",) if table.parts else ()))


def test_a_time_within_the_latency_is_no_input(tmp_path: Path) -> None:
    """Although it explains the latency best, its unit is not in its name, and the work grows with the square."""
    rng, n = np.random.default_rng(3), 1500
    side = np.rint(rng.lognormal(5, 0.4, n))
    database = rng.lognormal(1, 0.3, n) + 150 * (rng.random(n) < 0.03)
    took = (5 + side**2 / 2000) * rng.lognormal(0, 0.05, n) + database
    rows = (
        f"{1e9 * k},{t:.3f},{d:.3f},{s:.0f}" for k, (t, d, s) in enumerate(zip(took, database, side, strict=True))
    )
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["arrival_ns,latency_ms,database,side", *rows]) + "\n")
    result = diagnose_recording(path, ReadOptions())
    assert any("database is probably a part of the latency in ms" in note for note in result.notes)
    assert any("--map database_ms=database" in note for note in result.notes)
    evidence = {cause.cause: cause.evidence for cause in result.causes}
    assert evidence["input.size"].startswith("service follows side² (")


def test_the_service_itself_is_no_input(tmp_path: Path) -> None:
    """It is as long as the latency of those that did not wait, but for rounding."""
    table = simulated("big", 27, servers=2, load=0.5)
    queue = infer_queue(table.arrival_ns, table.latency_ns, 1)
    assert queue is not None
    spent: Floats = np.rint((table.latency_ns - queue.wait_ns) / 1e5).astype(np.float64) / 10
    result = diagnosed(tmp_path, table, {"spent": spent, "side": sizes(table)})
    assert any("spent is probably a part of the latency in ms" in note for note in result.notes)
    assert any("used as inputs" in note and ": side." in note for note in result.notes)


def test_imported_traffic_has_the_possible_inputs() -> None:
    table = simulated("quiet", 29)
    side = sizes(table).copy()
    side[7] = np.inf
    possible = {"input.side": side, "input.size": side, "session": side}
    features = replace(table, possible=possible).traffic("log").features
    assert set(features) == {"size", "side", "recorded_latency_ms"}
    assert np.isnan(features["side"][7]) and features["side"][8] == sizes(table)[8]


def test_without_times_of_arrival_what_repeats_itself_is_no_input() -> None:
    table = replace(simulated("quiet", 23, load=0.8), timed=False)
    waiting = (in_flight(table.arrival_ns, table.latency_ns) > 0).astype(np.float64)
    assert set(possible_inputs(table, {"waiting": waiting, "side": sizes(table)}, {})[0]) == {"side"}


def test_how_many_came_meanwhile_is_no_input() -> None:
    """Though it does not depend on how many were there before."""
    rng, n = np.random.default_rng(28), 3000
    arrival = np.cumsum(rng.exponential(1e8, n)).astype(np.int64)
    latency = rng.lognormal(17, 0.8, n).astype(np.int64)
    came = (np.searchsorted(arrival, arrival + latency) - np.arange(n) - 1).astype(np.float64)
    table = RequestTable(arrival_ns=arrival, latency_ns=latency, status=np.zeros(n, np.int8))
    assert np.ptp(came) > 1 and not possible_inputs(table, {"came": came}, {})[0]


def test_seconds_of_audio_are_an_input_if_they_exceed_the_latency() -> None:
    table = simulated("quiet", 24)
    database = np.random.default_rng(24).lognormal(-7, 0.3, len(table))
    columns = {"audio_seconds": sizes(table) / 100, "db_seconds": database}
    units = {"audio_seconds": 10**9, "db_seconds": 10**9}
    assert set(possible_inputs(table, columns, units)[0]) == {"audio_seconds"}


def test_text_that_looks_like_numbers_at_times_is_no_input() -> None:
    table = simulated("quiet", 25)
    mixed = sizes(table).copy()
    mixed[::50] = np.inf
    missing = sizes(table).copy()
    missing[::3] = np.nan
    assert set(possible_inputs(table, {"mixed": mixed, "missing": missing}, {})[0]) == {"missing"}


def test_names_of_times_states_and_outcomes() -> None:
    for name in (
        "queue_length",
        "cpu",
        "worker_id",
        "retries",
        "inflight",
        "heap_size",
        "error_count",
        "timeout",
        "runtime",
    ):
        assert says_no_input(name)
    for name in ("side", "n_atoms", "rows", "audio", "prompt_len_bucket", "batch_size", "batch", "lines", "beams"):
        assert not says_no_input(name)


@pytest.mark.parametrize("option", ["size=c0", "rows=c0"])
def test_named_inputs_are_used_instead(tmp_path: Path, option: str) -> None:
    table = simulated("big", 26)
    rows = [
        f"{at},{took},{size:.0f},{k % 7}"
        for k, (at, took, size) in enumerate(
            zip(table.arrival_ns.tolist(), table.latency_ns.tolist(), sizes(table), strict=True)
        )
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["arrival_ns,latency_ns,side,c0", *rows]) + "\n")
    assert diagnose_recording(path, ReadOptions(percentile=99.0)).verdict == "input.size"
    result = diagnose_recording(path, ReadOptions(percentile=99.0, mapping=(option,)))
    assert result.verdict != "input.size" and not any("used as inputs" in note for note in result.notes)
