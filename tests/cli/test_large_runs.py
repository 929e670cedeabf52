"""``report`` on a run that is too large to be laid out at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.traffic.schedule import Traffic
from tests.cli.conftest import serve_one_by_one, write_run
from tests.conftest import cli, succeeded

N, MS = 400, 1_000_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One worker, 5 ms a request every 10 ms; every fiftieth request's collection takes 60 ms."""
    monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", 100)
    traffic = Traffic.plain(np.arange(N, dtype=np.int64) * 10 * MS, ids=[f"r{k:03d}" for k in range(N)])
    rows, batches = serve_one_by_one([(65 if k % 50 == 20 else 5) * MS for k in range(N)])
    pauses = batches["open_ns"][20::50].tolist()
    events = [[begin + MS, 60 * MS, "gc", 7, -1, -1, {"generation": 2, "collected": 1}] for begin in pauses]
    meta: dict[str, Any] = {"torch_threads": 1, "threads": {"worker": [7], "prepare": [8]}}
    return write_run(tmp_path / "run", rows, batches=batches, events=events, traffic=traffic, **meta)


def test_a_large_run_is_reported_from_its_files(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.run_record.run_record.RunRecord.load", None)  # the whole record is never read at once
    out = succeeded(cli("report", str(run)))
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
def test_stories_of_a_large_run_are_refused_in_one_line(run: Path, options: tuple[str, str]) -> None:
    code, _, err = cli("report", str(run), *options)
    assert code == 2
    assert "400 requests" in err
    assert "Traceback" not in err
    assert not (run / "diagnosis.json").exists()


def test_a_place_that_cannot_be_written_leaves_no_half_file(run: Path) -> None:
    (run / "causes.parquet").mkdir()
    code, _, err = cli("report", str(run))
    assert code == 2
    assert "cannot write there" in err
    assert not list(run.glob(".*.tmp"))
