"""Writing rows: samples, their weights, and the size of the folder."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from latfix.profilers.service_log.sampled_segments import Row, RowWriter, sampled, span_times
from latfix.spans import SpanRecord


def _row(latency_ns: int, status: str = "ok", start_ns: int = 0) -> Row:
    return Row((start_ns, 0, b"", 0, 0, 1), (start_ns + latency_ns, 0, b"", 0, 0, 1), status, "f", 1, (), {})


def _rows(count: int, seed: int = 0) -> list[Row]:
    latencies = np.random.default_rng(seed).lognormal(15, 1, count).astype(int)
    return [_row(int(latency)) for latency in latencies]


def _percentiles(pairs: list[tuple[Row, int]]) -> list[float]:
    latencies = np.repeat([row.latency_ns for row, _ in pairs], [weight for _, weight in pairs])
    return [float(np.percentile(latencies, q)) for q in (50, 90, 99, 99.9)]


def test_few_rows_are_all_kept() -> None:
    rows = _rows(10)
    assert sampled(rows, 10, 0) == [(row, 1) for row in rows]


@pytest.mark.parametrize(("count", "lost"), [(11, 0), (97, 0), (5000, 0), (5000, 321)])
def test_weights_sum_to_the_number_of_requests(count: int, lost: int) -> None:
    kept = sampled(_rows(count), 10, 3, lost)
    assert len(kept) <= 10
    assert sum(weight for _, weight in kept) == count + lost


def test_slow_and_lost_requests_have_weight_one() -> None:
    rows = [*_rows(1000), _row(1, "error"), _row(2, "503"), _row(3, "404")]
    kept = sampled(rows, 100, 0)
    alone = {id(row) for row, weight in kept if weight == 1}
    slowest = sorted(rows, key=lambda row: -row.latency_ns)[:48]
    assert all(id(row) in alone for row in (*slowest, rows[1000], rows[1001]))


def test_percentiles_match_those_of_all_requests() -> None:
    drains = [_rows(2000, seed) for seed in range(40)]
    kept = [pair for turn, rows in enumerate(drains) for pair in sampled(rows, 100, turn)]
    assert len(kept) == 40 * 100
    everything = _percentiles([(row, 1) for rows in drains for row in rows])
    p50, p90, p99, p999 = (got / want for got, want in zip(_percentiles(kept), everything, strict=True))
    assert p999 == pytest.approx(1, rel=1e-3)  # all rows this slow are kept
    assert p99 == pytest.approx(1, rel=0.02)
    assert p90 == pytest.approx(1, rel=0.1)
    assert p50 == pytest.approx(1, rel=0.1)


def test_segments_rotate_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    (own := tmp_path / "requests-2026.jsonl").write_text(100_000 * " ")
    writer = RowWriter(tmp_path, 64_000, 10_000)
    for start in range(0, 4000, 100):
        for k in range(start, start + 100):
            writer.add(_row(1000, start_ns=k))
        writer.flush()
    assert own.exists(), "only segments are deleted"
    files = sorted(path for path in tmp_path.iterdir() if path != own)
    assert len(files) > 8
    assert sum(file.stat().st_size for file in files) <= 64_000
    starts = [json.loads(line)["start_ns"] for file in files for line in file.read_text().splitlines()]
    assert len(starts) < 4000
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] == len(starts) - 1  # the latest rows without gaps


def test_a_removed_folder_is_recreated(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path / "log", 1_000_000, 1000)
    writer.add(_row(1))
    writer.flush()
    for file in (tmp_path / "log").iterdir():
        file.unlink()
    (tmp_path / "log").rmdir()
    writer.add(_row(2))
    writer.flush()
    (file,) = (tmp_path / "log").iterdir()
    assert json.loads(file.read_text())["latency_ns"] == 2


def test_a_full_disk_leaves_no_empty_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of too many files loses its oldest ones."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = RowWriter(tmp_path, 1_000_000, 1000)
    writer.add(_row(1))
    writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            writer.add(_row(2))
            writer.flush()
    assert len(list(tmp_path.iterdir())) == 1
    writer.add(_row(3))
    writer.flush()
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]
    assert [json.loads(line)["latency_ns"] for line in lines] == [1, 3]


def test_moments_in_two_spans_count_once() -> None:
    spans = [SpanRecord("b", 10, 30), SpanRecord("a", 0, 20), SpanRecord("a", 40, 50)]
    assert span_times(spans) == {"a": 30, "b": 10}
