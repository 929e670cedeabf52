"""A large run attributed in pieces: what it must have in common with the same run attributed at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.profilers.attribution.ledger_parquet import CausesFile
from latfix.profilers.chunked.chunked_attribution import Scale
from latfix.profilers.chunked.chunks import WholeRecord
from latfix.profilers.chunked.downsample import thinned
from latfix.profilers.diagnose import diagnose
from latfix.reports.html.pages import write_run_report
from latfix.results.diagnosis import CauseSummary, Diagnosis, Ledger
from latfix.run_record.run_record import RunRecord

Simulate = Callable[..., RunRecord]
SMALL = Scale(limit=1_000, piece=3_000, stretches=8, stretch=2_000, listed=400)
N = 24_000


def _faults(rng: np.random.Generator, n: int) -> dict[int, tuple[str, float]]:
    struck = rng.choice(n, n // 100, replace=False)
    kinds = rng.choice(["gc", "runq"], len(struck), p=[0.6, 0.4])
    return {int(k): (str(kind), float(rng.uniform(20, 60))) for k, kind in zip(struck, kinds, strict=True)}


@pytest.fixture(scope="module")
def busy(simulate: Simulate) -> RunRecord:
    """Batches of up to four at half load, a hundredth of the requests struck."""
    rng = np.random.default_rng(5)
    return simulate(
        n=N, rate=160.0, max_batch=4, compute_faults=_faults(rng, N), lengths=rng.integers(80, 120, N), seed=9
    )


@pytest.fixture(scope="module")
def both(busy: RunRecord) -> tuple[Diagnosis, Diagnosis, list[Ledger]]:
    """At once, in pieces, and the pieces' ledgers."""
    parts: list[Ledger] = []
    with pytest.MonkeyPatch.context() as patch:
        # As many steps for all: shorter records are divided in finer ones, which moves entries by some percent.
        patch.setattr("latfix.profilers.attribution.wait_attribution._LANE_STEPS", (24, 24))
        return diagnose(busy), diagnose(busy, scale=SMALL, sink=parts.append), parts


@pytest.fixture(scope="module")
def overloaded(simulate: Simulate) -> RunRecord:
    """Arrivals that outrun the service for good: it is never idle."""
    rng = np.random.default_rng(6)
    return simulate(n=9_000, rate=160.0, compute_faults=_faults(rng, 9_000), seed=4)


def _named(diagnosis: Diagnosis) -> dict[str, CauseSummary]:
    return {cause.cause: cause for cause in diagnosis.causes}


def test_percentiles_are_the_same(both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    whole, pieces, _ = both
    assert dict(pieces.latency_ms) == pytest.approx(dict(whole.latency_ms), rel=1e-6)
    for stage, figures in whole.stages_ms.items():
        assert dict(pieces.stages_ms[stage]) == pytest.approx(dict(figures), rel=0.03, abs=0.02)
    assert pieces.requests == whole.requests
    assert pieces.throughput_rps == pytest.approx(whole.throughput_rps)


def test_verdict_and_causes_agree(both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    whole, pieces, _ = both
    assert whole.verdict == "python.gc"
    assert pieces.verdict == whole.verdict
    there = _named(pieces)
    for cause in whole.causes:
        if cause.tail_share > 0.02:
            found = there[cause.cause]
            assert found.tail_ms == pytest.approx(cause.tail_ms, rel=0.06, abs=0.01 * whole.excess_ms), cause.cause
            assert found.named == cause.named
            assert found.requests == pytest.approx(cause.requests, rel=0.06)
            assert dict(found.whatif_ms) == pytest.approx(dict(cause.whatif_ms), rel=0.02)
    assert sum(cause.tail_ms for cause in pieces.causes) == pytest.approx(pieces.excess_ms)


def test_intervals_are_as_wide_as_those_from_single_requests(both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    whole, pieces, _ = both
    for cause in whole.causes[:2]:
        low, high = cause.ci95_ms
        found = _named(pieces)[cause.cause].ci95_ms
        assert found[0] <= cause.tail_ms <= found[1]
        assert 0.5 < (found[1] - found[0]) / (high - low) < 2.0
    for key in ("p50", "p95", "p99"):
        low, high = whole.latency_ci95_ms[key]
        found = pieces.latency_ci95_ms[key]
        assert found[0] <= whole.latency_ms[key] <= found[1]
        assert 0.4 < (found[1] - found[0]) / (high - low) < 2.5


def test_every_request_is_in_one_piece_and_its_entries_sum(
    busy: RunRecord, both: tuple[Diagnosis, Diagnosis, list[Ledger]]
) -> None:
    _, pieces, parts = both
    assert len(parts) > 4
    request = np.concatenate([part.request for part in parts])
    np.testing.assert_array_equal(request, np.arange(N))
    assert {part.reference_ns for part in parts} == {round(pieces.reference_ms * 1e6)}
    assert all(part.conservation_error_ns() == 0 for part in parts)
    names = [name for part in parts for name in part.ids]
    assert names == busy.traffic.ids


def test_the_slowest_rows_are_kept(both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    whole, pieces, _ = both
    slowest = np.sort(whole.ledger.latency_ns)[-SMALL.listed :]
    np.testing.assert_array_equal(np.sort(pieces.ledger.latency_ns), slowest)
    assert pieces.ledger.conservation_error_ns() == 0
    assert np.all(np.diff(pieces.ledger.request) > 0)


def test_windows_and_activity_agree(simulate: Simulate) -> None:
    n = 8_000
    faults = dict.fromkeys(range(n // 2, n // 2 + n // 8, 5), ("gc", 60.0))
    record = simulate(n=n, rate=40.0, compute_faults=faults, seed=3)
    whole, pieces = diagnose(record), diagnose(record, scale=SMALL)
    expected, found = (_named(each)["python.gc"].active for each in (whole, pieces))
    assert expected is not None and found is not None and not found.throughout
    assert np.ravel(found.intervals_s) == pytest.approx(np.ravel(expected.intervals_s), rel=0.03)
    for first, second in zip(whole.windows, pieces.windows, strict=True):
        assert second.requests == first.requests
        assert second.p50_ms == pytest.approx(first.p50_ms, rel=0.03)
        assert second.causes_ms["python.gc"] == pytest.approx(first.causes_ms["python.gc"], rel=0.1, abs=0.3)


def test_a_backlog_at_a_cut_belongs_to_what_made_it(overloaded: RunRecord) -> None:
    """Never idle, the run is cut all the same; without carrying over, later pieces would be unexplained."""
    whole = diagnose(overloaded)
    parts: list[Ledger] = []
    pieces = diagnose(overloaded, scale=SMALL, sink=parts.append)
    assert len(parts) > 1
    assert whole.verdict == pieces.verdict == "traffic.overload"
    there = _named(pieces)
    for cause in whole.causes:
        if cause.tail_share > 0.03:
            assert there[cause.cause].tail_ms == pytest.approx(cause.tail_ms, rel=0.1), cause.cause
    assert abs(there["unexplained"].tail_ms) < 0.02 * pieces.excess_ms
    assert all(part.conservation_error_ns() == 0 for part in parts)


def test_the_same_record_gives_the_same_diagnosis(overloaded: RunRecord) -> None:
    assert diagnose(overloaded, scale=SMALL).to_json() == diagnose(overloaded, scale=SMALL).to_json()


def test_causes_of_all_pieces_are_written(
    tmp_path: Path, busy: RunRecord, both: tuple[Diagnosis, Diagnosis, list[Ledger]]
) -> None:
    path = tmp_path / "causes.parquet"
    with CausesFile(path) as file:
        for part in both[2]:
            file.add(part)
        assert not path.exists()
    table = pq.read_table(path)
    assert table.column_names == ["request_id", "cause", "own_ns", "propagated_ns", "class"]
    total = sum(int((part.own_ns + part.propagated_ns).sum()) for part in both[2])
    written = table["own_ns"].to_numpy().sum() + table["propagated_ns"].to_numpy().sum()
    assert written == total
    assert set(table["request_id"].to_pylist()) <= set(busy.traffic.ids)


def test_a_failure_leaves_no_file_of_causes(tmp_path: Path, both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    path = tmp_path / "causes.parquet"
    with pytest.raises(RuntimeError, match="stopped"), CausesFile(path) as file:
        file.add(both[2][0])
        raise RuntimeError("stopped")
    assert list(tmp_path.iterdir()) == []


def test_a_report_shows_a_part_and_says_so(
    tmp_path: Path, monkeypatch: Any, busy: RunRecord, both: tuple[Diagnosis, Diagnosis, list[Ledger]]
) -> None:
    monkeypatch.setattr("latfix.profilers.chunked.downsample.SHOWN", 4_000)
    record, shown = thinned(WholeRecord(busy), both[1])
    assert 4_000 <= len(record.requests["index"]) <= 4_060
    assert record.counts() == both[0].requests
    assert record.unrecorded() == 0
    latency = record.requests["latency_ns"]
    slowest = int(np.argmax(latency))
    assert latency[slowest] == busy.requests["latency_ns"].max()
    row = int(np.flatnonzero(shown.ledger.request == slowest)[0])
    assert shown.ledger.latency_ns[row] == latency[slowest]
    assert record.traffic.ids[slowest] == shown.ledger.ids[row]
    assert "one request in 6" in shown.notes[-1]
    write_run_report(tmp_path / "report.html", record, shown)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "one request in 6" in text
    assert record.traffic.ids[slowest] in text


@pytest.mark.parametrize(
    "plan",
    [
        {"n": 1},
        {"n": 7, "status": dict.fromkeys(range(7), 1)},
        {"n": 300, "status": dict.fromkeys(range(0, 300, 3), 2), "rate": 200.0},
        {"n": 200, "arrivals_ms": np.zeros(200)},
        {"n": 300, "workers": 2, "max_batch": 3, "window": 8.0, "rate": 300.0, "prepare_threads": 2},
        {"n": 300, "priority": (np.arange(300) % 3).astype(np.int8), "rate": 130.0},
        {"n": 300, "compute_faults": dict.fromkeys(range(0, 300, 20), ("throttle", 30.0)), "cold": 80.0},
    ],
    ids=["one", "none-ok", "timeouts", "all-at-once", "two-workers", "priorities", "throttled"],
)
def test_every_kind_of_record_is_attributed_in_pieces(simulate: Simulate, plan: dict[str, Any]) -> None:
    record = simulate(**plan)
    parts: list[Ledger] = []
    pieces = diagnose(record, scale=Scale(limit=0, piece=40, stretches=3, stretch=30, listed=10), sink=parts.append)
    whole = diagnose(record)
    assert sum(len(part.request) for part in parts) == len(whole.ledger.request)
    assert all(part.conservation_error_ns() == 0 for part in parts)
    assert pieces.requests == whole.requests
    assert dict(pieces.latency_ms) == pytest.approx(dict(whole.latency_ms), rel=1e-6)
    assert sum(cause.tail_ms for cause in pieces.causes) == pytest.approx(pieces.excess_ms)
    json.dumps(pieces.to_json(), allow_nan=False)
