"""A run attributed in chunks: every figure of its diagnosis compared with that of the run laid out at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.profilers.attribution.ledger_parquet import causes_file
from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.chunked.downsample import downsampled
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.profilers.diagnose import diagnose
from latfix.reports.html.pages import write_run_report
from latfix.results.diagnosis import CauseSummary, Diagnosis, Ledger
from latfix.run_record.run_record import RunRecord
from tests.profilers.simulated_runs import simulate

SMALL = Scale(limit=1_000, chunk=3_000, stretches=8, stretch=2_000, listed=400)
N = 24_000
#: When traffic is many times as dense for four seconds, in milliseconds.
RUSHES = (30_000, 90_000, 130_000)


def _faults(rng: np.random.Generator, n: int) -> dict[int, tuple[str, float]]:
    struck = rng.choice(n, n // 100, replace=False)
    kinds = rng.choice(["gc", "runq"], len(struck), p=[0.6, 0.4])
    return {int(k): (str(kind), float(rng.uniform(20, 60))) for k, kind in zip(struck, kinds, strict=True)}


@pytest.fixture(scope="module")
def busy() -> RunRecord:
    """Two workers with batches of up to four at half load, a hundredth of the requests struck."""
    rng = np.random.default_rng(5)
    faults = _faults(rng, N)
    return simulate(
        n=N, rate=260.0, workers=2, max_batch=4, compute_faults=faults, lengths=rng.integers(80, 120, N), seed=9
    )


@pytest.fixture(scope="module")
def both(busy: RunRecord) -> tuple[Diagnosis, Diagnosis, list[Ledger]]:
    """At once, in chunks, and the chunks' ledgers."""
    parts: list[Ledger] = []
    with pytest.MonkeyPatch.context() as patch:
        # The same number of steps for all: shorter records get finer steps, which moves entries by some percent.
        patch.setattr("latfix.profilers.attribution.wait_attribution._LANE_STEPS", (16, 16))
        return diagnose(busy), diagnose(busy, scale=SMALL, sink=parts.append), parts


def _named(diagnosis: Diagnosis) -> dict[str, CauseSummary]:
    return {cause.cause: cause for cause in diagnosis.causes}


#: Tolerance of each number in chunks, by the path of its key: relative, and absolute as a share of the tail's excess
#: (milliseconds) or of the requests (counts). The first match applies; all others must be equal. Histograms have bins
#: of 0.1 %, and the division of waits restarts in each chunk.
CLOSENESS: tuple[tuple[str, float, float], ...] = (
    (r"latency_ms(_ok)?\..*|throughput_rps|windows\.\d+\.(start_s|end_s|offered_rps)", 1e-9, 0.0),
    (r"(dispatch_ms|workers\.\d+\.compute_p.*|stages_ms\.\w+)\.?(mean|p50|p99|_ms)?", 0.01, 1e-6),
    (r"stages_ms\.\w+\.(reference|tail)|tail\.reference_ms", 0.01, 0.0),
    (r"windows\.\d+\.p\d+_ms", 0.06, 0.0),  # a window's p99 has few requests
    (r"windows\.\d+\.causes_ms\..*", 0.25, 0.05),
    (r"causes\.[\w.]+\.(tail_ms|own_ms|propagated_ms)|tail\.(unexplained|excess)_ms", 0.06, 0.02),
    (r"causes\.[\w.]+\.tail_share|tail\.unexplained_share", 0.06, 0.02),
    # Each chunk's rounding of the reference goes to unexplained.
    (r"causes\.unexplained\.requests", 0.0, 1.0),
    (r"causes\.[\w.]+\.requests|quiet_requests", 0.06, 0.02),
    (r"(causes\.[\w.]+\.whatif_ms|whatif\.\d+|another_worker_ms)\.p\d+", 0.03, 0.02),
    (r"causes\.[\w.]+\.ci95_ms\.\d", 0.5, 0.05),
    (r"latency_ci95_ms\..*", 0.3, 0.0),
    (r"causes\.[\w.]+\.active\.intervals_s\..*", 0.03, 0.05),
    (r"models\.\w+\.(r2|residual_mad_ms)", 0.1, 0.0),
    (r"reference_gap_ms|queue_closure_ms", 0.0, 0.01),
    (r"largest\.(excess_ms|causes_ms\..*)", 0.2, 0.02),  # ten requests
    (r"learned_from|pieces|models\.\w+\.samples", 9.0, 0.0),
)
#: Causes up to this share of the excess may be, or have an activity, in only one of the diagnoses.
SLIGHT = 0.03


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text of a document by the path of its key; causes by id."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{inner.get('cause', k) if isinstance(inner, dict) else k}")
    else:
        yield path, value


def _close(path: str, whole: Any, chunks: Any, diagnosis: Diagnosis) -> bool:
    if isinstance(whole, str) and isinstance(chunks, str):
        # Figures in sentences have keys of their own.
        return re.sub(r"-?[\d,]+(\.\d+)?( [mµ]?s\b)?", "#", whole) == re.sub(
            r"-?[\d,]+(\.\d+)?( [mµ]?s\b)?", "#", chunks
        )
    if path.endswith(".named") and whole is not chunks:  # an interval may end at the limit
        ends = (cause.ci95_ms[0] for cause in diagnosis.causes if path == f"causes.{cause.cause}.named")
        return all(abs(end / (0.05 * diagnosis.excess_ms) - 1.0) < 0.15 for end in ends)
    if whole is None or chunks is None or isinstance(whole, bool):
        return whole is chunks
    relative, share = next(
        ((relative, share) for pattern, relative, share in CLOSENESS if re.fullmatch(pattern, path)), (0.0, 0.0)
    )
    scale = N if path.endswith("requests") else 1.0 if path.endswith("share") else diagnosis.excess_ms
    return bool(abs(whole - chunks) <= relative * abs(whole) + share * scale)


def _slight(path: str, diagnosis: Diagnosis) -> bool:
    """True for keys of causes with a negligible part of the tail."""
    return any(f".{cause.cause}" in path and abs(cause.tail_share) < SLIGHT for cause in diagnosis.causes)


def test_every_key_of_the_diagnosis(both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    whole, chunks = both[:2]
    first, second = (dict(_leaves(each.to_json())) for each in (whole, chunks))
    assert {path for path in first if path.startswith("workers.")}
    only = {path for path in first.keys() ^ second.keys() if not _slight(path, whole)}
    assert only == {path for path in second if "attributed in pieces" in str(second[path])}
    apart = {
        path: (first[path], second[path])
        for path in first.keys() & second.keys()
        if not _close(path, first[path], second[path], whole)
    }
    assert apart == {}
    assert sum(cause.tail_ms for cause in chunks.causes) == pytest.approx(chunks.excess_ms)


def test_intervals_are_as_wide_as_those_from_single_requests(both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    whole, chunks, _ = both
    for cause in whole.causes[:2]:
        low, high = cause.ci95_ms
        found = _named(chunks)[cause.cause].ci95_ms
        assert found[0] <= cause.tail_ms <= found[1]
        assert 0.5 < (found[1] - found[0]) / (high - low) < 2.0
    for key in ("p50", "p95", "p99"):
        low, high = whole.latency_ci95_ms[key]
        found = chunks.latency_ci95_ms[key]
        assert found[0] <= whole.latency_ms[key] <= found[1]
        assert 0.4 < (found[1] - found[0]) / (high - low) < 2.5


def test_intervals_count_lost_requests_as_the_slowest() -> None:
    n, rng = 6_000, np.random.default_rng(7)
    faults = {k: ("cpu", float(ms)) for k, ms in enumerate(rng.exponential(3.0, n))}
    record = simulate(
        n=n, arrivals_ms=np.arange(n) * 60.0, compute_faults=faults, status=dict.fromkeys(range(0, n, 200), 2)
    )
    whole, pieces = diagnose(record), diagnose(record, scale=SMALL)
    p99 = whole.latency_ms["p99"]
    assert pieces.latency_ms["p99"] == pytest.approx(p99)
    (low, high), found = whole.latency_ci95_ms["p99"], pieces.latency_ci95_ms["p99"]
    assert 0.5 < (found[1] - p99) / (high - p99) < 2.0
    assert 0.5 < (p99 - found[0]) / (p99 - low) < 2.0


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


def test_windows_and_activity_agree() -> None:
    n = 4_000
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


def test_a_cause_that_all_requests_share_comes_in_no_bursts_of_the_traffic() -> None:
    rng = np.random.default_rng(4)
    lull, rush = np.arange(0, 160_000, 80.0), np.concatenate([at + np.arange(0, 4_000, 3.0) for at in RUSHES])
    arrivals = np.sort(np.concatenate([lull, rush]))
    n = len(arrivals)
    faults = {k: ("runq", float(ms)) for k, ms in enumerate(rng.exponential(3.0, n))}
    record = simulate(n=n, arrivals_ms=arrivals, workers=8, base=2.0, per_item=0.0, compute_faults=faults)
    for found in (diagnose(record), diagnose(record, scale=SMALL)):
        active = _named(found)["host.contention"].active
        assert active is not None and active.text == "throughout"


def test_a_backlog_at_a_cut_belongs_to_its_causes() -> None:
    """A run that is never idle is cut anyway; without carry-over, later chunks would be unexplained."""
    faults = _faults(np.random.default_rng(6), 9_000)
    record = simulate(n=9_000, rate=160.0, compute_faults=faults, seed=4)
    parts: list[Ledger] = []
    whole, pieces = diagnose(record), diagnose(record, scale=SMALL, sink=parts.append)
    assert len(parts) > 1
    assert whole.verdict == pieces.verdict == "traffic.overload"
    there = _named(pieces)
    for cause in whole.causes:
        if cause.tail_share > 0.03:
            assert there[cause.cause].tail_ms == pytest.approx(cause.tail_ms, rel=0.1), cause.cause
    assert abs(there["unexplained"].tail_ms) < 0.02 * pieces.excess_ms
    assert all(part.conservation_error_ns() == 0 for part in parts)


def test_the_same_record_gives_the_same_diagnosis() -> None:
    record = simulate(n=1_500, rate=160.0)
    first, second = (diagnose(record, scale=Scale(limit=0, chunk=400, stretches=3, stretch=300)) for _ in range(2))
    assert first.pieces is not None and first.pieces > 1
    assert first.to_json() == second.to_json()


def test_causes_of_all_pieces_are_written(
    tmp_path: Path, busy: RunRecord, both: tuple[Diagnosis, Diagnosis, list[Ledger]]
) -> None:
    path = tmp_path / "causes.parquet"
    with causes_file(path) as add:
        for part in both[2]:
            add(part)
        assert not path.exists()
    table = pq.read_table(path)
    assert table.column_names == ["request_id", "cause", "own_ns", "propagated_ns", "class"]
    total = sum(int((part.own_ns + part.propagated_ns).sum()) for part in both[2])
    written = table["own_ns"].to_numpy().sum() + table["propagated_ns"].to_numpy().sum()
    assert written == total
    assert set(table["request_id"].to_pylist()) <= set(busy.traffic.ids)


def test_a_failure_leaves_no_file_of_causes(tmp_path: Path, both: tuple[Diagnosis, Diagnosis, list[Ledger]]) -> None:
    path = tmp_path / "causes.parquet"
    with pytest.raises(RuntimeError, match="stopped"), causes_file(path) as add:
        add(both[2][0])
        raise RuntimeError("stopped")
    assert list(tmp_path.iterdir()) == []


def test_a_report_shows_a_part_and_notes_it(
    tmp_path: Path, monkeypatch: Any, busy: RunRecord, both: tuple[Diagnosis, Diagnosis, list[Ledger]]
) -> None:
    monkeypatch.setattr("latfix.profilers.chunked.downsample.SHOWN", 4_000)
    record, shown = downsampled(WholeRecord(busy), both[1])
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
def test_every_kind_of_record_is_attributed_in_pieces(plan: dict[str, Any]) -> None:
    record = simulate(**plan)
    parts: list[Ledger] = []
    pieces = diagnose(record, scale=Scale(limit=0, chunk=40, stretches=3, stretch=30, listed=10), sink=parts.append)
    whole = diagnose(record)
    assert sum(len(part.request) for part in parts) == len(whole.ledger.request)
    assert all(part.conservation_error_ns() == 0 for part in parts)
    assert pieces.requests == whole.requests
    assert dict(pieces.latency_ms) == pytest.approx(dict(whole.latency_ms), rel=1e-6, nan_ok=True)
    assert pieces.verdict == whole.verdict or pieces.verdict != "losing" != whole.verdict
    assert sum(cause.tail_ms for cause in pieces.causes) == pytest.approx(pieces.excess_ms)
    json.dumps(pieces.to_json(), allow_nan=False)
