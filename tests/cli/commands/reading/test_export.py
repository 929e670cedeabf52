"""``latfix export``: what is written where, from which folder, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.cli.commands.reading.export import NAMES
from latfix.files.atomic_write import write_json
from latfix.reports.exports.formats import ALIASES, FORMATS
from latfix.traffic.schedule import Traffic
from tests.cli.conftest import refused, serve_one_by_one, write_run
from tests.conftest import cli, succeeded
from tests.reports.conftest import make_document

N, MS = 300, 1_000_000
OF_REQUESTS = [name for name, form in FORMATS.items() if not form.needs and form.pieces]


def a_run(folder: Path, *, finished: bool = True) -> Path:
    ids = [f"r{k:03d}" for k in range(N)]
    ids[7], ids[8] = "=1+1", "\x1b[31m<b>"
    features = {"kind": np.array(["a|b", None] * (N // 2), dtype=object), "size": np.arange(N)}
    traffic = Traffic.plain(np.arange(N, dtype=np.int64) * 10 * MS, ids=ids, features=features)
    rows, batches = serve_one_by_one([(65 if k % 50 == 20 else 5) * MS for k in range(N)])
    events = [[t, MS, "gc", 7, -1, -1, {"generation": 2}] for t in batches["open_ns"][20::50].tolist()]
    samples = [[k * 500 * MS, "process.rss_bytes", 1e6 + k] for k in range(6)]
    meta: dict[str, Any] = {"torch_threads": 1, "threads": {"worker": [7], "prepare": [8]}}
    meta["started"] = "2026-01-02T03:04:05.000+00:00"
    return write_run(
        folder, rows, batches=batches, events=events, samples=samples, traffic=traffic, finished=finished, **meta
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, with awkward ids."""
    return a_run(tmp_path / "run")


def test_every_format_is_named_in_the_help() -> None:
    assert tuple(FORMATS) == NAMES
    assert set(ALIASES.values()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_written_into_a_folder(run: Path, tmp_path: Path, name: str) -> None:
    assert cli("report", str(run), "--gate", "p99<1ms")[0] == 1
    (tmp_path / "out").mkdir()
    code, out, err = cli("export", str(run), "--to", name, "--out", str(tmp_path / "out"))
    (file,) = (tmp_path / "out").iterdir()
    assert (code, out.replace("\n", ""), err) == (0, f"wrote {file}", "")
    assert b"p99" in file.read_bytes() or not FORMATS[name].needs or name == "openmetrics"
    assert file.stat().st_size > 100


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_large_run_and_a_killed_one_are_written_alike(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    texts = [cli("export", str(run), "--to", name)[1]]
    killed = a_run(tmp_path / "killed" / "run", finished=False)  # spans are told apart by the folder's name
    texts.append(cli("export", str(killed), "--to", name)[1])
    monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", 100)
    monkeypatch.setattr("latfix.reports.exports.request_slices.STEP", 64)
    monkeypatch.setattr("latfix.run_record.run_record.RunRecord.load", None)  # never read at once
    texts.append(cli("export", str(run), "--to", name)[1])
    assert texts[0] == texts[1] == texts[2] != ""


def test_rows_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    assert cli("export", str(run), "--to", "parquet", "--out", str(tmp_path / "copy.parquet"))[0] == 0
    assert pq.read_table(tmp_path / "copy.parquet").equals(pq.read_table(run / "requests.parquet"))
    rows = list(csv.DictReader(cli("export", str(run), "--to", "csv")[1].splitlines()))
    known = pq.read_table(run / "requests.parquet")
    assert [int(row["latency_ns"]) for row in rows] == known["latency_ns"].to_pylist()
    assert [row["kind"] for row in rows[:2]] == ["a|b", ""]
    assert [row["id"] for row in rows[6:9]] == ["r006", "'=1+1", "\\x1b[31m<b>"]


def test_spans_can_be_diagnosed(run: Path, tmp_path: Path) -> None:
    spans = tmp_path / "spans.jsonl"
    assert cli("export", str(run), "--to", "opentelemetry", "--out", str(spans))[0] == 0
    out = succeeded(cli("diagnose", str(spans), "--json", "-", "--out", str(tmp_path / "again")))
    assert json.loads(out)["requests"]["ok"] == N


def test_compressed_and_the_same_every_time(run: Path, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        assert cli("export", str(run), "--to", "perfetto", "--out", str(tmp_path / name))[0] == 0
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert len(json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))["traceEvents"]) > N


def test_a_diagnosed_recording_has_figures_but_no_requests(run: Path, tmp_path: Path) -> None:
    spans, out = tmp_path / "spans.jsonl", tmp_path / "recording"
    cli("export", str(run), "--to", "otlp", "--out", str(spans))
    assert cli("diagnose", str(spans), "--out", str(out))[0] == 0
    for name in ("openmetrics", "markdown", "plain", "github", "gitlab"):
        assert cli("export", str(out), "--to", name)[::2] == (0, "")
    refused(cli("export", str(out), "--to", "perfetto"), "found no run.json", "the folder of a run")


def test_refused(run: Path, tmp_path: Path) -> None:
    refused(cli("export", str(run), "--to", "perfeto"), "found 'perfeto'", "did you mean 'perfetto'?")
    refused(cli("export", str(tmp_path / "none"), "--to", "csv"), "none: found no such folder; expected")
    refused(cli("export", str(tmp_path / "none"), "--to", "markdown"), "found no result")
    refused(cli("export", str(run), "--to", "parquet", "--out", str(run / "requests.parquet")), "recorded rows")
    refused(cli("export", str(run), "--to", "parquet"), "expected --out FILE")
    refused(cli("export", str(run), "--to", "csv", "--out", str(tmp_path / "no" / "x.csv")), "cannot write")
    (run / "run.json").write_text((run / "run.json").read_text().replace("2026-01-02T", "today "))
    refused(cli("export", str(run), "--to", "hdr"), "run.json", "found started")


def test_a_result_of_another_kind_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "optimization.json", make_document())
    refused(
        cli("export", tmp_path, "--to", "openmetrics"), "found an optimization; --to openmetrics expects a diagnosis"
    )
