"""``report`` on a run that is too large to be laid out at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.run_record.run_record import finalize
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic

Cli = Callable[..., tuple[int, str, str]]
N, MS = 400, 1_000_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One worker, 5 ms a request every 10 ms; every fiftieth request's collection takes 60 ms."""
    monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", 100)
    folder = tmp_path / "run"
    (folder / "segments").mkdir(parents=True)
    traffic = Traffic.plain(np.arange(N, dtype=np.int64) * 10 * MS, ids=[f"r{k:03d}" for k in range(N)])
    save_schedule(traffic, folder / "traffic.parquet")
    meta = {"schema": "latfix.run/1", "state": "complete", "workload": "w", "scheduled": N, "torch_threads": 1}
    (folder / "run.json").write_text(json.dumps({**meta, "threads": {"worker": [7], "prepare": [8]}}))
    rows, batches, events, free = np.zeros(N, REQUEST_DTYPE), np.zeros(N, BATCH_DTYPE), [], 0
    for k in range(N):
        begin = max(k * 10 * MS, free)
        pause = 60 * MS if k % 50 == 20 else 0
        free = begin + 5 * MS + pause
        rows[k]["index"] = rows[k]["batch_id"] = batches[k]["batch_id"] = k
        rows[k]["arrival_ns"], rows[k]["queue_ns"] = k * 10 * MS, begin - k * 10 * MS
        rows[k]["compute_ns"], rows[k]["latency_ns"] = free - begin, free - k * 10 * MS
        batches[k]["size"] = 1
        batches[k]["compute_cpu_ns"] = free - begin
        for name in ("open_ns", "close_ns", "collated_ns", "h2d_end_ns"):
            batches[k][name] = begin
        for name in ("compute_end_ns", "d2h_end_ns", "finish_end_ns"):
            batches[k][name] = free
        if pause:
            events.append([begin + MS, pause, "gc", 7, -1, -1, {"generation": 2, "collected": 1}])
    (folder / "segments" / "requests.bin").write_bytes(rows.tobytes())
    (folder / "segments" / "batches.bin").write_bytes(batches.tobytes())
    (folder / "segments" / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    finalize(folder)
    return folder


def test_a_large_run_is_reported_from_its_files(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.run_record.run_record.RunRecord.load", None)  # the whole record is never read at once
    code, out, _ = cli("report", str(run))
    assert code == 0
    assert "python.gc" in out
    document = json.loads((run / "diagnosis.json").read_text())
    assert document["verdict"] == "python.gc"
    assert document["requests"]["ok"] == N
    assert document["pieces"] == 1
    assert "8 collections" in next(c["evidence"] for c in document["causes"] if c["cause"] == "python.gc")
    entries = pq.read_table(run / "causes.parquet")
    own = entries.filter([c == "python.gc" for c in entries["cause"].to_pylist()])
    struck = {name for name, ns in zip(own["request_id"].to_pylist(), own["own_ns"].to_pylist(), strict=True) if ns}
    assert struck == {f"r{k:03d}" for k in range(20, N, 50)}
    assert "one request in" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [("--request", "r020"), ("--slowest", "3")])
def test_stories_of_a_large_run_are_refused_in_one_line(run: Path, cli: Cli, options: tuple[str, str]) -> None:
    code, _, err = cli("report", str(run), *options)
    assert code == 2
    assert "400 requests" in err
    assert "Traceback" not in err
    assert not (run / "diagnosis.json").exists()


def test_a_place_that_cannot_be_written_leaves_no_half_file(run: Path, cli: Cli) -> None:
    (run / "causes.parquet").mkdir()
    code, _, err = cli("report", str(run))
    assert code == 2
    assert "cannot write there" in err
    assert not list(run.glob(".*.tmp"))
