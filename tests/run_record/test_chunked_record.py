"""A record read in pieces equals the whole record."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latfix.errors import InputError
from latfix.files.parquet_reader import ParquetRows
from latfix.run_record.chunked_record import RecordFile, open_record
from latfix.run_record.run_record import RunRecord, finalize
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.traffic.io.stored_schedule import ScheduleFile, load_schedule, save_schedule
from latfix.traffic.schedule import Traffic

N, MS = 1_000, 1_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of a thousand requests and ten of warm-up, in row groups of 64 rows."""
    for module in ("latfix.run_record.run_record", "latfix.files.arrow_arrays"):
        monkeypatch.setattr(f"{module}.ROW_GROUP", 64)
    return write_run(tmp_path / "run")


def write_run(folder: Path) -> Path:
    """Segments of a run, made into Parquet."""
    segments = folder / "segments"
    segments.mkdir(parents=True)
    rng = np.random.default_rng(1)
    traffic = Traffic(
        arrival_ns=np.arange(N, dtype=np.int64) * 10 * MS,
        ids=[f"r{k}" for k in range(N)],
        priority=rng.integers(0, 3, N).astype(np.int8),
        sessions=[None if k % 3 else f"s{k % 7}" for k in range(N)],
        deadline_ms=np.full(N, math.nan),
        features={
            "tokens": rng.integers(1, 99, N),
            "rate": np.where(rng.random(N) < 0.1, math.nan, rng.random(N)),
            "kind": np.array([None if k % 5 else f"k{k}" for k in range(N)], dtype=object),
        },
        payloads=[{"k": k} for k in range(N)],
    )
    save_schedule(traffic, folder / "traffic.parquet")
    meta = {"schema": "latfix.run/1", "state": "complete", "workload": "w", "scheduled": N}
    (folder / "run.json").write_text(json.dumps(meta))
    index = np.concatenate([np.arange(-10, 0), np.arange(N)])
    rows = np.zeros(len(index), REQUEST_DTYPE)
    rows["index"], rows["warmup"], rows["batch_id"] = index, index < 0, np.arange(len(index)) // 2
    rows["arrival_ns"], rows["latency_ns"] = index * 10 * MS, rng.integers(MS, 9 * MS, len(index))
    rows["compute_ns"] = rows["latency_ns"]
    rows["status"] = np.where(index % 97 == 96, 1, 0)
    (segments / "requests.bin").write_bytes(rows[rng.permutation(len(rows))].tobytes())
    batches = np.zeros(len(index) // 2, BATCH_DTYPE)
    batches["batch_id"], batches["size"] = np.arange(len(batches)), 2
    batches["open_ns"] = rows["arrival_ns"][::2]
    (segments / "batches.bin").write_bytes(batches.tobytes())
    events: list[list[Any]] = [[k * 100 * MS, 3 * MS, "gc", 1, -1, -1, {"generation": 2}] for k in range(100)]
    events.append([50 * MS, 4_000 * MS, "compile", 2, -1, -1, {"trigger": "shape"}])
    events += [[k * 10 * MS, 0, "error", 1, k, -1, {"message": f"bad {k}"}] for k in range(96, N, 97)]
    (segments / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    samples = [[0, "once", 7.0], *([k * 500 * MS, "often", float(k)] for k in range(40))]
    (segments / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    finalize(folder)
    return folder


@pytest.mark.parametrize(("first", "last"), [(0, 300), (250, 251), (60, 200), (900, N + 10), (0, N + 10)])
def test_a_stretch_is_that_part_of_the_whole(folder: Path, first: int, last: int) -> None:
    whole, part = RunRecord.load(folder), RecordFile(folder).stretch(first, last)
    for name, values in whole.requests.items():
        np.testing.assert_array_equal(part.requests[name], values[first:last], err_msg=name)
    ids = part.batches["batch_id"]
    assert ids.tolist() == sorted(set(whole.requests["batch_id"][first:last].tolist()))
    for name, values in whole.batches.items():
        np.testing.assert_array_equal(part.batches[name], values[ids], err_msg=name)
    index = part.requests["index"]
    measured = index[index >= 0]
    assert part.traffic.ids[measured[-1] - part.first_index] == f"r{measured[-1]}"
    np.testing.assert_array_equal(
        part.traffic.priority[measured - part.first_index], whole.traffic.priority[measured]
    )
    np.testing.assert_array_equal(
        part.traffic.features["rate"][measured - part.first_index], whole.traffic.features["rate"][measured]
    )
    sessions = [part.traffic.sessions[k - part.first_index] for k in measured.tolist()]
    assert sessions == [whole.traffic.sessions[k] for k in measured.tolist()]
    assert part.errors == {k: text for k, text in whole.errors.items() if measured[0] <= k <= measured[-1]}


def test_events_in_progress_belong_to_a_stretch_however_early_they_began(folder: Path) -> None:
    part = RecordFile(folder).stretch(210, 310)  # from 2 s on
    begin = int(part.requests["arrival_ns"].min())
    assert (part.events["t_ns"] + part.events["duration_ns"] > begin).all()
    compiled = part.events["kind"] == "compile"
    assert np.count_nonzero(compiled) == 1
    assert part.events["detail"][compiled][0] == {"trigger": "shape"}
    assert not np.any(RecordFile(folder).stretch(700, 800).events["kind"] == "compile")


def test_series_that_are_read_once_belong_to_every_stretch(folder: Path) -> None:
    part = RecordFile(folder).stretch(900, 1_000)
    series = part.samples["series"]
    assert part.samples["value"][series == "once"].tolist() == [7.0]
    assert 1 < np.count_nonzero(series == "often") < 40


def test_a_scan_returns_every_row(folder: Path) -> None:
    source = RecordFile(folder)
    parts = list(source.scan(("index", "status", "prepare_thread")))
    whole = RunRecord.load(folder)
    for name in ("index", "status", "prepare_thread"):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), whole.requests[name])
    assert len(source) == N + 10
    assert source.event_totals() == {
        "gc": (100, 3 * MS),
        "compile": (1, 4_000 * MS),
        "error": (len(whole.errors), 0),
    }


def test_a_forward_scan_reads_each_row_group_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int]] = []
    original = pq.ParquetFile.read_row_group

    def counted(self: Any, group: int, **options: Any) -> Any:
        read.append((str(self.schema_arrow.names[0]), group))
        return original(self, group, **options)

    source = RecordFile(folder)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for first in range(0, N, 100):
        source.stretch(first, first + 100)
    requests = [group for name, group in read if name == "id"]
    assert len(requests) == len(set(requests)) == 16


def test_finalizing_writes_small_row_groups_and_keeps_texts(folder: Path) -> None:
    meta = pq.read_metadata(folder / "requests.parquet")
    assert max(meta.row_group(k).num_rows for k in range(meta.num_row_groups)) == 64
    table = pq.read_table(folder / "requests.parquet")
    assert table["kind"].to_pylist()[10:] == [None if k % 5 else f"k{k}" for k in range(N)]
    assert table["id"].to_pylist()[:2] == ["r9", "r8"]  # warm-up repeats the schedule's beginning
    assert not (folder / "segments").exists()


def test_a_schedule_in_parts_is_the_schedule(folder: Path) -> None:
    whole, parts = load_schedule(folder / "traffic.parquet"), ScheduleFile(folder / "traffic.parquet", texts=True)
    assert len(parts) == N
    part = parts.part(100, 333)
    assert part.ids == whole.ids[100:333]
    assert part.sessions == whole.sessions[100:333]
    for name, values in whole.features.items():
        np.testing.assert_array_equal(part.features[name], values[100:333], err_msg=name)
    assert "kind" not in ScheduleFile(folder / "traffic.parquet").part(0, 5).features
    assert part.payloads == [None] * 233


def test_only_large_runs_stay_in_their_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_record(folder), RunRecord)
    monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", N)
    assert isinstance(open_record(folder), RecordFile)


def test_damaged_files_are_refused_in_one_line(folder: Path) -> None:
    path = folder / "requests.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"requests\.parquet: found an unreadable file"):
        RecordFile(folder)
    path.write_bytes(data)
    pq.write_table(pq.read_table(path).drop_columns(["latency_ns"]), path)
    with pytest.raises(InputError, match="found no column 'latency_ns'"):
        RecordFile(folder)


def test_a_range_without_statistics_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"k": np.arange(300), "v": np.arange(300) * 2})
    pq.write_table(table, path, row_group_size=50, write_statistics=False)
    rows = ParquetRows(path, ("k",))
    assert rows.between("k", 120, 130)["k"].to_pylist() == list(range(100, 150))
    assert rows.rows(95, 105)["v"].to_pylist() == [2 * k for k in range(95, 105)]
    assert rows.rows(7, 7).num_rows == 0
    assert len(rows) == 300


def test_reading_a_schedule_in_parts_imports_no_pandas(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from latfix.traffic.io.stored_schedule import ScheduleFile\n"
        f"ScheduleFile(Path({str(folder / 'traffic.parquet')!r})).part(3, 9)\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def _rewrite(folder: Path, name: str, change: Any) -> None:
    table = change(pq.read_table(folder / name))
    pq.write_table(table, folder / name, row_group_size=64)


def _in_excess(table: Any) -> Any:
    latency = table.column("latency_ns").to_numpy().copy()
    latency[700] += 1
    position = table.column_names.index("latency_ns")
    return table.set_column(position, "latency_ns", pa.array(latency))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("requests.parquet", lambda t: pa.concat_tables([t, t]), "found request -10 after request 999"),
        ("requests.parquet", lambda t: pa.concat_tables([t[:64], t[63:]]), "found request 53 twice"),
        ("requests.parquet", _in_excess, "found request 690 with latency_ns"),
        ("batches.parquet", lambda t: pa.concat_tables([t[:64], t[63:]]), "found batch 63 twice"),
        ("traffic.parquet", lambda t: t[:999], "found request 999, which is not in"),
    ],
)
def test_impossible_values_are_refused(folder: Path, name: str, change: Any, says: str) -> None:
    _rewrite(folder, name, change)
    with pytest.raises(InputError, match=says):
        RecordFile(folder)


def test_a_run_that_lost_rows_is_partial(folder: Path) -> None:
    assert not RecordFile(folder).partial
    _rewrite(folder, "requests.parquet", lambda table: table[:-3])
    assert RecordFile(folder).partial
    assert RecordFile(folder).stretch(0, 10).partial
