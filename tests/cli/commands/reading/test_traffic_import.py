"""`latfix traffic import`: a log of requests becomes traffic, and what was recorded is held against its replay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.parsed_fields import RECORDED, recorded_summary_ms
from tests.cli.commands.reading.test_traffic import run
from tests.conftest import cli, succeeded


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two hundred requests a second apart, in the order in which they ended; every tenth failed."""
    path = tmp_path / "access.jsonl"
    rows = [
        {
            "ts": f"2026-03-01T10:{k // 60:02}:{k % 60:02}Z",
            "latency_ms": 10 + k / 10,
            "request_bytes": 100 * k,
            "status": 500 if k % 10 == 9 else 200,
        }
        for k in range(200)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    return path


def test_columns_are_named_and_latencies_kept(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "traffic.jsonl"
    output = run("import", log, out, "--time", "ts", "--latency", "latency_ms", "--feature", "size=request_bytes")
    traffic = read_traffic(out)
    assert len(traffic) == 200 and traffic.arrival_ns.tolist() == [k * 10**9 for k in range(200)]
    assert traffic.features["size"].dtype == np.int64 and traffic.features["size"].tolist()[:3] == [0, 100, 200]
    kept = traffic.features[RECORDED]
    assert kept[0] == 10.0 and np.isnan(kept[9]) and np.count_nonzero(np.isnan(kept)) == 20
    assert (
        "read 200 requests" in output
        and "recorded latency: p50 " in output
        and "wrote 200 requests over 199 s" in output
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_they_survive_a_conversion(log: Path, tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / f"b.{suffix}"
    run("import", log, first, "--time", "ts", "--latency", "latency_ms", "--feature", "size=request_bytes")
    run("convert", first, second, "--limit", 50)
    np.testing.assert_array_equal(
        read_traffic(second).features[RECORDED], read_traffic(first).features[RECORDED][:50]
    )


def test_an_access_log_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f'10.0.0.1 - - [01/Mar/2026:10:00:{k:02} +0000] "POST /predict HTTP/1.1" 200 {50 + k} "-" "curl" 0.0{k + 10}'
        for k in range(40)
    ]
    Path("access.log").write_text("\n".join(lines) + "\n")
    output = run("import", "access.log")
    assert "known to the second only" in output and max(map(len, output.splitlines())) <= 80
    with pytest.raises(InputError, match=r"latfix traffic import access\.log"):
        run("inspect", "access.log")
    traffic = read_traffic(Path("access.log.traffic.jsonl"))
    assert len(traffic) == 40 and recorded_summary_ms(traffic.features[RECORDED])["p50"] == pytest.approx(29.5)
    with pytest.raises(InputError, match="whose fields are known"):
        run("import", "access.log", "--latency", "x")


@pytest.mark.parametrize(
    "text",
    ["arrival_s;n\n0,5;3\n1,25;4\n", '[{"ts": 1.7e9, "n": 3}, {"ts": 1700000000.75, "n": 4}]'],
    ids=["a table", "JSON"],
)
def test_times_alone_are_traffic(text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    output = run("import", tmp_path / "log", tmp_path / "out.jsonl", "--map", "n=n")
    traffic = read_traffic(tmp_path / "out.jsonl")
    assert traffic.arrival_ns.tolist() == [0, 750_000_000] and traffic.features["n"].tolist() == [3, 4]
    assert list(traffic.features) == ["n"] and "recorded latency" not in output
    (tmp_path / "log").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(
        InputError, match="expected a table of requests with a time; name the time: --map arrival=COL"
    ):
        run("import", tmp_path / "log", tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--time", "when"), "when"),
        (("--time", "ts", "--latency", "latency_ms", "--feature", "session=request_bytes"), "session"),
        (("--latency", "latency_ms", "--time", "latency_ms", "--feature", "id="), "id"),
    ],
)
def test_refused(log: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run("import", log, tmp_path / "out.jsonl", *options)
    assert not (tmp_path / "out.jsonl").exists()


def test_what_a_file_without_requests_is_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("INFO 03-10 09:00:00 [loggers.py:118] Avg prompt throughput: 5.1 tokens/s\n")
    with pytest.raises(InputError, match="an inference server's log of its steps"):
        run("import", path, tmp_path / "out.jsonl")


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_times_since_1970_are_exact(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / name, tmp_path / "out.jsonl"
    times = [f"1700000000.{k:03}" for k in range(100)] + ["1700000000.123456"]
    rows = [f'{{"ts": {time}, "latency_ms": 1}}' if path.suffix == ".jsonl" else f"{time},1" for time in times]
    path.write_text("\n".join([*(["ts,latency_ms"] if path.suffix == ".csv" else []), *rows, ""]))
    succeeded(cli("traffic", "import", path, out, "--time", "ts", "--latency", "latency_ms"))
    assert read_traffic(out).arrival_ns.tolist() == [*(k * 1_000_000 for k in range(100)), 123_456_000]
