"""Diagnoses of rows of ``latfix.record``: simulated services with known causes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.profilers.recordings import service_log
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions, recorded_at
from latfix.profilers.service_log.request_counters import Reading
from latfix.profilers.service_log.sampled_segments import Row, sampled
from latfix.results.diagnosis import Diagnosis

_EPOCH = 1_800_000_000 * 10**9
_MS = 1_000_000
_PLAIN: dict[str, Any] = {
    "status": "ok", "route": "f", "weight": 1, "cpu_ns": None, "runq_ns": None, "throttled_ns": None,
    "waited_ns": None, "gc_ns": 0, "spans_ns": {}, "features": {},
}  # fmt: skip


def _write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, each with the number of requests in flight at its begin."""
    order = sorted(rows, key=lambda row: row["start_ns"])
    ends = np.sort([row["start_ns"] + row["latency_ns"] for row in rows])
    lines = []
    for number, row in enumerate(order, 1):
        inside = number - int(np.searchsorted(ends, row["start_ns"], side="right"))
        whole = {**_PLAIN, "in_flight": inside, **row, "start_ns": _EPOCH + row["start_ns"]}
        lines.append(json.dumps(whole) + "\n")
    (folder / "requests-1-1.jsonl").write_text("".join(lines))


def _diagnosis(folder: Path, rows: Sequence[dict[str, Any]]) -> Diagnosis:
    _write(folder, rows)
    return diagnose_recording(folder, ReadOptions())


def _one_server(arrivals: Sequence[int], order: Any, service: Any) -> list[dict[str, Any]]:
    """A lock that one request holds at a time; ``order`` picks the next waiting one."""
    waiting: list[int] = []
    rows, free, k = [], 0, 0
    arrivals = sorted(arrivals)
    while k < len(arrivals) or waiting:
        if not waiting:
            free = max(free, arrivals[k])
        while k < len(arrivals) and arrivals[k] <= free:
            waiting.append(arrivals[k])
            k += 1
        start = waiting.pop(order(len(waiting)))
        free += int(service())
        latency = free - start
        rows.append(
            {"start_ns": start, "latency_ns": latency, "cpu_ns": _MS, "waited_ns": latency - _MS, "runq_ns": 0}
        )
    return rows


def _arrivals(generator: np.random.Generator) -> list[int]:
    singles = np.cumsum(generator.exponential(20 * _MS, 1500)).astype(int).tolist()
    bursts = [at + k * 1000 for at in singles[::100] for k in range(30)]
    return [*singles, *bursts]


def test_bursts_in_front_of_one_server_are_named(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    rows = _one_server(_arrivals(generator), lambda _: 0, lambda: generator.normal(5, 0.2) * _MS)
    assert _diagnosis(tmp_path, rows).verdict == "traffic.burst"


def test_waits_in_random_order_are_not_a_dependency(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    rows = _one_server(_arrivals(generator), generator.integers, lambda: generator.normal(5, 0.2) * _MS)
    result = _diagnosis(tmp_path, rows)
    assert result.verdict in ("traffic.burst", "inconclusive")
    assert sum(cause.tail_share for cause in result.causes if cause.cause == "external.dependency") < 0.1


@pytest.mark.parametrize("apart_ms", [2, 20], ids=["many in flight", "mostly alone"])
def test_a_slow_dependency_is_named_at_any_concurrency(tmp_path: Path, apart_ms: float) -> None:
    generator = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for start in np.cumsum(generator.exponential(apart_ms * _MS, 3000)).astype(int).tolist():
        waited = int((80 if generator.random() < 0.03 else 3) * _MS * generator.normal(1, 0.05))
        rows.append({"start_ns": start, "latency_ns": waited + _MS, "cpu_ns": _MS, "waited_ns": waited, "runq_ns": 0})
    assert _diagnosis(tmp_path, rows).verdict == "external.dependency"


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"runq_ns": 50 * _MS, "throttled_ns": 0}, "host.contention"),
        ({"runq_ns": 50 * _MS, "throttled_ns": 49 * _MS}, "host.throttle"),
        ({"runq_ns": 50 * _MS}, "host.contention"),
        ({"gc_ns": 50 * _MS}, "python.gc"),
        ({"spans_ns": {"db": 50 * _MS}, "waited_ns": 50 * _MS}, "dependency.db"),
        ({"cpu_ns": 55 * _MS}, "inconclusive"),
        ({}, "inconclusive"),
    ],
)
def test_measured_causes_are_named_and_no_others(tmp_path: Path, row: dict[str, Any], cause: str) -> None:
    generator = np.random.default_rng(4)
    rows: list[dict[str, Any]] = []
    for k in range(3000):
        slow = k % 40 == 7
        latency = int(5 * _MS * generator.normal(1, 0.02)) + slow * 50 * _MS
        rows.append({"start_ns": 60 * _MS * k, "latency_ns": latency, **(row if slow else dict.fromkeys(row, 0))})
        rows[-1]["spans_ns"] = row.get("spans_ns", {}) if slow else {}
    assert _diagnosis(tmp_path, rows).verdict == cause


def test_unknown_counters_are_not_shown_as_zero(tmp_path: Path) -> None:
    rows = [{"start_ns": 60 * _MS * k, "latency_ns": 5 * _MS + k} for k in range(300)]
    result = _diagnosis(tmp_path, rows)
    assert not {"host.contention", "external.dependency", "cpu"} & result.stages_ms.keys()
    assert any("thread counters are unknown" in note for note in result.notes)


def _reading(at_ns: int) -> Reading:
    return (at_ns, 0, b"", 0, 0, 1)


def test_percentiles_and_counts_of_a_sample_match_all_requests(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    latencies = (generator.lognormal(0, 1, 20_000) * 5 * _MS).astype(int).tolist()
    kept: list[dict[str, Any]] = []
    for turn in range(20):
        part = range(1000 * turn, 1000 * turn + 1000)
        every = [Row(_reading(0), _reading(latencies[k]), "ok", "", k, (), {}) for k in part]
        kept += [
            {"start_ns": 10 * _MS * row.in_flight, "latency_ns": row.latency_ns, "weight": weight}
            for row, weight in sampled(every, 200, turn)
        ]
    result = _diagnosis(tmp_path, kept)
    assert result.requests["ok"] == 20_000
    for q, key in ((50, "p50"), (90, "p90"), (99, "p99"), (99.9, "p99_9")):
        assert result.latency_ms[key] == pytest.approx(
            np.percentile(latencies, q) / _MS, rel=0.06 if q < 99 else 0.01
        )


def test_rows_that_stand_for_too_many_requests_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand rows, half of them for 9 requests that take 1 ms, the others for one that takes 50."""
    monkeypatch.setattr(service_log, "_MOST_REQUESTS", 1_000)
    _write(
        tmp_path,
        [
            {"start_ns": 10 * _MS * k, "latency_ns": (1 + 49 * (k % 2)) * _MS, "weight": 9 - 8 * (k % 2)}
            for k in range(1_000)
        ],
    )
    table = service_log.read([file.path for file in recorded_at(tmp_path).files])
    assert len(table) == 1_000 and "1,000 of 5,000 requests" in " ".join(table.notes)
    assert np.mean(table.latency_ns == 50 * _MS) == pytest.approx(0.1, abs=0.02)
    assert int(table.arrival_ns[-1]) == pytest.approx(9_980 * _MS, rel=0.01)


def test_only_the_last_seconds_are_read_on_request(tmp_path: Path) -> None:
    _write(tmp_path, [{"start_ns": 1000 * _MS * k, "latency_ns": _MS} for k in range(100)])
    result = service_log.diagnose(recorded_at(tmp_path), ReadOptions(), last_s=9.5)
    assert result.requests["ok"] == 10


def test_the_last_seconds_are_those_of_all_processes(tmp_path: Path) -> None:
    """The newest segment of one process may reach further back than another process's rows."""
    _write(tmp_path, [{"start_ns": 1000 * _MS * k, "latency_ns": _MS} for k in range(100)])
    (tmp_path / "requests-1-1.jsonl").rename(tmp_path / "requests-2-7.jsonl")
    _write(tmp_path, [{"start_ns": 1000 * _MS * k, "latency_ns": _MS} for k in range(99, 0, -1)])
    result = service_log.diagnose(recorded_at(tmp_path), ReadOptions(), last_s=9.5)
    assert result.requests["ok"] == 20


@pytest.mark.parametrize("value", [10**30, float("nan"), float("inf"), -1, "x", [1]])
def test_numbers_that_no_counter_reaches_are_unknown(tmp_path: Path, value: Any) -> None:
    wrong = {"cpu_ns": value, "thread": value, "spans_ns": {"db": value}, "features": {"size": value}}
    rows = [{"start_ns": 60 * _MS * k, "latency_ns": 5 * _MS, **(wrong if k == 7 else {})} for k in range(50)]
    assert _diagnosis(tmp_path, rows).requests["ok"] == 50


def test_a_row_for_more_requests_than_a_service_answers_is_left_out(tmp_path: Path) -> None:
    rows = [{"start_ns": k * _MS, "latency_ns": _MS, "weight": 1 if k else 1 << 30} for k in range(9)]
    result = _diagnosis(tmp_path, rows)
    assert result.requests["ok"] == 8
    assert result.notes[0].startswith("1 line was left out, the first in line 1")


def test_a_compressed_segment_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, [{"start_ns": k, "latency_ns": _MS} for k in range(2000)])
    (file,) = tmp_path.iterdir()
    (tmp_path / "cut").write_bytes(gzip.compress(file.read_bytes())[:-20])
    with pytest.raises(InputError, match="cut off"):
        diagnose_recording(tmp_path / "cut", ReadOptions())


def test_a_folder_of_invalid_rows_is_refused_in_one_line(tmp_path: Path) -> None:
    _write(tmp_path, [{"start_ns": k, "latency_ns": _MS} for k in range(3)])
    (file,) = tmp_path.iterdir()
    first, *_ = file.read_text().splitlines()
    file.write_text(first + "\n" + '{"start_ns": -1}\n' * 5)
    with pytest.raises(InputError, match=r"\.jsonl:2: "):
        diagnose_recording(tmp_path, ReadOptions())
    assert not service_log.knows(b'{"start_ns": 1, "latency_ns": 2}\n')


@pytest.mark.parametrize(("threads", "served_by"), [(1, "an event loop"), (8, "threads"), (0, None)])
def test_requests_that_overlap_on_one_thread_are_an_event_loops(
    tmp_path: Path, threads: int, served_by: str | None
) -> None:
    rows: list[dict[str, Any]] = [{"start_ns": 5 * _MS * k, "latency_ns": 12 * _MS} for k in range(300)]
    if threads:  # logs of earlier versions have no threads
        rows = [{**row, "thread": k % threads} for k, row in enumerate(rows)]
    source = _diagnosis(tmp_path, rows).source
    assert source is not None and source.read.get("served by") == served_by
