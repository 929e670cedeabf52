"""Recordings are recognized by their content, and unknown files are refused in one line."""

from __future__ import annotations

import gzip
import math
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from latfix.errors import InputError
from latfix.profilers.recordings import detect
from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded, recorded_at
from latfix.profilers.recordings.requests.readers import read_requests
from latfix.results.diagnosis import Diagnosis, Source, UnitLedger
from latfix.run_record.run_record import ESSENTIAL
from tests.records import cause_summary


def one_step(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    unknown = {"propagated_ms": math.nan, "ci95_ms": (math.nan, math.nan)}
    cause = cause_summary("gpu.compute", 5.0, tail_share=1.0, evidence="two kernels", **unknown)
    return Diagnosis(
        workload="toy",
        device="a device",
        requests={"ok": 1, "error": None, "timeout": None, "shed": None},
        latency_ms=dict.fromkeys(("mean", "p50", "max"), 5.0),
        stages_ms={"launch": {"mean": 5.0, "p50": 5.0, "p99": 5.0, "reference": math.nan}},
        verdict="gpu.compute",
        sentence="The step takes 5 ms: kernels.",
        percentile=math.nan,
        excess_ms=5.0,
        unexplained_ms=0.0,
        causes=(cause,),
        source=Source(kind="toy", path=str(recorded.path), unit="step", read={"kernels": 2, "step": options.step}),
        slowest=(UnitLedger(id="step 1", start_ms=0.0, latency_ms=5.0, causes_ms={"gpu.compute": 5.0}),),
    )


TOY = Reader(
    kind="toy",
    reads="a toy",
    knows=lambda recorded: any(file.head.startswith(b"toy") for file in recorded.files),
    read=one_step,
    takes=frozenset({"--step"}),
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "READERS", (TOY,))


@pytest.mark.usefixtures("toy")
def test_a_recording_is_recognized_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_bytes(b"toy\n")
    (tmp_path / "packed.xyz").write_bytes(gzip.compress(b"toy\n"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "inside").write_bytes(b"toy\n")
    for name in ("plain.csv", "packed.xyz", "deep"):
        result = detect.diagnose_recording(tmp_path / name, ReadOptions())
        assert result.source is not None and result.source.path == str(tmp_path / name)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty or damaged file"),
        (b"\x1f\x8b damaged", "an empty or damaged file"),
        (b"PNG\0", "an unknown format; expected"),
        (b"ARROW1\0\0", "an Arrow file; write it as Parquet"),
        (b"/sbin/mysqld, Version: 8\n# Time: 2026\n# Query_time: 0.1  Lock_time: 0\n", "--map lock_s=lock_s"),
        (b"0 1 17002 0 1662132851 580065\n", "put a line with their names"),
        (b"some words\nmore", "an unknown format, which begins with 'some words'"),
        (b"QDSTRM", "nsys export"),
        (b"\xff\xb5\xff\x81\x03\x01\x01\x06Result\x01\xff\x82\x00\x01\x0c", "vegeta encode --to json"),
        (b"Running 30s test @ http://127.0.0.1:80/\n", "a summary of a load test, without single requests"),
        (b"\nSummary:\n  Total:\t1.0 secs\n", "a summary of a load test, without single requests"),
        (b"slot print_timing: id  0 | task 1 | \n", "llama.cpp's log, in which no line has a time and a latency"),
        (b"Type,Name,Request Count,Failure Count\n", "statistics of Locust"),
        (b'{\n "summary": {\n  "average": 0.1}}', "figures of many requests; give a result with one row per request"),
        (
            b'{\n "name": "All Requests",\n "meanResponseTime": {"total": 20}}',
            "figures of many requests; give a result",
        ),
        (b'<?xml version="1.0"?>\n<testResults version="1.2">', "have it write CSV"),
        (b"INFO 03-10 09:00:00 [loggers.py:118] Avg prompt throughput: 5.1 tokens/s\n", "without how long each"),
        (b'INFO: 127.0.0.1:5 - "GET /x HTTP/1.1" 200 OK\n', "requests without how long each took"),
        (b'web-1  | {"level": "info", "duration_ms": 5}\n', "lines of JSON behind something else; cut that off: sed"),
        (b"a.log".ljust(257, b"\0") + b"ustar\0", "a tar archive; unpack it"),
        (b"\x80\x02}q\x00.", "a Python pickle, which can run any code when it is loaded; save it with torch.export"),
    ],
)
def test_unknown_files_are_refused_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError) as caught:
        detect.diagnose_recording(tmp_path / "x", ReadOptions())
    assert words in caught.value.message and str(tmp_path / "x") in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.usefixtures("toy")
def test_folders_without_a_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an empty folder; expected a workload"):
        detect.diagnose_recording(tmp_path, ReadOptions())
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="latfix report"):
        detect.diagnose_recording(tmp_path, ReadOptions())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.onnx", b"\x08\x08", "model.onnx is a model file: name it, with --traffic"),
        ("model.gguf", b"GGUF\3\0", "model.gguf is GGUF weights; .*load it in an adapter"),
    ],
)
def test_a_model_beside_its_traffic_is_no_recording(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "traffic.jsonl").write_text('{"arrival_s": 0.5}\n')
    with pytest.raises(InputError, match=f"a folder without workload.toml; {says}"):
        detect.diagnose_recording(tmp_path, ReadOptions())


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_requests_of_a_run_are_no_log(suffix: str, tmp_path: Path) -> None:
    table = pa.table({name: ["ok"] * 9 if name in ("status", "error") else list(range(9)) for name in ESSENTIAL})
    path = tmp_path / f"requests.{suffix}"
    parquet.write_table(table, path) if suffix == "parquet" else csv.write_csv(table, path)
    with pytest.raises(InputError, match=r"a table of a run.*latfix report FOLDER, the one with its run\.json"):
        detect.diagnose_recording(path, ReadOptions())
    mapping = ("latency=latency_ns", "arrival=arrival_ns")
    assert detect.diagnose_recording(path, ReadOptions(mapping=mapping)).requests["ok"] == 9
    assert len(read_requests(path, ReadOptions())) == 9, "traffic is made of it"
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=f"latfix report {tmp_path} "):
        detect.diagnose_recording(path, ReadOptions())


def test_an_archive_is_not_read_as_the_log_in_it(tmp_path: Path) -> None:
    log = b"".join(b"arrival_s,latency_ms\n" if not k else b"%d,%d\n" % (k, k) for k in range(200))
    (tmp_path / "a.csv").write_bytes(log)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.add(tmp_path / "a.csv", "a.csv")
    with pytest.raises(InputError, match="a tar archive; unpack it"):
        detect.diagnose_recording(tmp_path / "a.tgz", ReadOptions())


def test_pipes_are_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no regular file"):
        recorded_at(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "options", "refused"),
    [
        ('{"log": {"version": "1.2", "entries": []}}', ReadOptions(step="^decode"), "--step"),
        ('{"data": [{"traceID": "1", "spans": []}]}', ReadOptions(mapping=("latency_ms=took",)), "--map"),
        ('{"resourceSpans": []}', ReadOptions(pattern=r"(?P<latency_ms>\d+)"), "--pattern"),
        ("toy", ReadOptions(mapping=("latency_ms=took",)), "--map"),
        ("toy", ReadOptions(pattern=r"(?P<latency_ms>\d+)"), "--pattern"),
        ("arrival_s,latency_ms\n0,1\n", ReadOptions(step="^decode"), "--step"),
        ("served in 3 ms\n", ReadOptions(pattern=r"in (?P<latency_ms>\d+)", step="^decode"), "--step"),
    ],
)
def test_an_option_of_another_kind_is_refused(
    content: str, options: ReadOptions, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "READERS", (TOY, *detect.READERS))
    file = tmp_path / "recording"
    file.write_text(content)
    with pytest.raises(InputError, match=rf"^{refused}: found .*recording, .*; expected .*; leave the option out$"):
        detect.diagnose_recording(file, options)


def test_a_pattern_reads_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text("served in 3 ms\n")
    with pytest.raises(InputError, match=r"^--pattern: found .*logs, a folder; expected one file"):
        detect.diagnose_recording(folder, ReadOptions(pattern=r"in (?P<latency_ms>\d+)"))


def test_a_log_that_is_mostly_of_another_format_is_told_from_one_without_times(tmp_path: Path) -> None:
    line = '10.1.2.3 - - [22/Nov/2026:10:00:00 +0000] "POST /a HTTP/1.1" 200 500 "-" "curl" 0.037\n'
    path = tmp_path / "access.log"
    path.write_text((line + "garbage line here\n" * 2) * 30)
    with pytest.raises(InputError, match=r"in 30 of its first \d+ lines; .* line 2: 'garbage line here'"):
        detect.diagnose_recording(path, ReadOptions())
    path.write_text((line.replace(" 0.037", "") + "garbage line here\n" * 2) * 30)
    with pytest.raises(InputError, match="without how long each took"):
        detect.diagnose_recording(path, ReadOptions())


def test_a_latency_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ts,latency_ms\n" + "1,1e308\n" * 9)
    with pytest.raises(InputError, match="found latency_ms 1e308; expected a latency of at most 104 days"):
        detect.diagnose_recording(path, ReadOptions())
