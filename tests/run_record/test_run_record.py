"""A run's folder as a record: segments with torn ends, Parquet, and refused content."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.run_record.run_record import RunRecord, feature_column, finalize
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.stages import Status
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic

N = 12


def _traffic(**features: Any) -> Traffic:
    return Traffic.plain(np.arange(N, dtype=np.int64) * 1000, features=features)


def _rows(order: list[int]) -> Any:
    rows = np.zeros(len(order), dtype=REQUEST_DTYPE)
    rows["index"] = order
    rows["latency_ns"] = rows["compute_ns"] = np.abs(order) * 10
    rows["arrival_ns"] = np.array(order) * 1000
    rows["warmup"] = np.array(order) < 0
    return rows


def _run(folder: Path, order: list[int], *, traffic: Traffic | None = None, state: str = "interrupted") -> Path:
    segments = folder / "segments"
    segments.mkdir(parents=True)
    save_schedule(traffic or _traffic(), folder / "traffic.parquet")
    document = {"schema": "latfix.run/1", "state": state, "workload": "w", "scheduled": N}
    (folder / "run.json").write_text(json.dumps(document))
    (segments / "requests.bin").write_bytes(_rows(order).tobytes())
    batches = np.zeros(3, dtype=BATCH_DTYPE)
    batches["batch_id"] = [2, 0, 1]
    batches["size"] = 1
    (segments / "batches.bin").write_bytes(batches.tobytes())
    events = [
        [30, 0, "error", 1, 4, -1, {"message": "bad\nü"}],
        [10, 5, "gc", 1, -1, -1, {"generation": 2, "collected": 3}],
    ]
    (segments / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    (segments / "samples.jsonl").write_text('[20, "a", 1.5]\n[10, "a", 2]\n')
    return folder


def test_segments_are_read_in_order_of_the_schedule(tmp_path: Path) -> None:
    record = RunRecord.load(_run(tmp_path / "run", [5, 0, -1, 3, -2, 4]))

    assert record.requests["index"].tolist() == [-2, -1, 0, 3, 4, 5]
    assert record.measured.tolist() == [False, False, True, True, True, True]
    assert record.batches["batch_id"].tolist() == [0, 1, 2]
    assert record.events["t_ns"].tolist() == [10, 30]
    assert record.samples["value"].tolist() == [2.0, 1.5]
    assert record.errors == {4: "bad\nü"}
    assert record.partial
    assert record.unrecorded() == N - 4
    assert record.counts() == {"ok": 4, "error": 0, "timeout": 0, "shed": 0}
    assert record.latencies_ns().tolist() == [0, 30, 40, 50]


@pytest.mark.parametrize("state", ["running", "failed"])
@pytest.mark.parametrize("closed", [True, False])
def test_requests_in_flight_of_a_killed_run_are_unfinished(tmp_path: Path, state: str, closed: bool) -> None:
    # GIVEN a run of which request 1 had not ended when request 3 did, the last one that is recorded
    folder = _run(tmp_path / "run", [0, 3, 2, -1], traffic=Traffic.plain(np.arange(N) * 1000), state=state)
    if closed:
        finalize(folder)
    record = RunRecord.load(folder)
    # THEN it waited at least until then, and later arrivals are not counted
    assert record.counts() | {"ok": 3, "unfinished": 1} == record.counts()
    (row,) = np.flatnonzero(record.requests["status"] == Status.UNFINISHED)
    assert {name: int(record.requests[name][row]) for name in ("index", "arrival_ns", "latency_ns", "queue_ns")} == {
        "index": 1,
        "arrival_ns": 1000,
        "latency_ns": 2030,
        "queue_ns": 2030,
    }
    assert record.unrecorded() == N - 4


def _cut(file: Path, cut: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - cut])


@settings(max_examples=40)
@given(cuts=st.tuples(*(st.integers(0, 2000) for _ in range(4))))
def test_a_torn_end_loses_the_torn_rows_only(
    tmp_path_factory: pytest.TempPathFactory, cuts: tuple[int, int, int, int]
) -> None:
    folder = _run(tmp_path_factory.mktemp("torn") / "run", list(range(8)))
    names = ("requests.bin", "batches.bin", "events.jsonl", "samples.jsonl")
    for name, cut in zip(names, cuts, strict=True):
        file = folder / "segments" / name
        _cut(file, min(cut, file.stat().st_size))

    record = RunRecord.load(folder)

    whole = (8 * REQUEST_DTYPE.itemsize - min(cuts[0], 8 * REQUEST_DTYPE.itemsize)) // REQUEST_DTYPE.itemsize
    assert record.requests["index"].tolist() == list(range(whole))
    assert len(record.batches["batch_id"]) <= 3
    assert set(record.events["kind"].tolist()) <= {"error", "gc"}
    assert set(record.samples["value"].tolist()) <= {1.5, 2.0}
    finalize(folder)
    again = RunRecord.load(folder)
    for name in REQUEST_DTYPE.names or ():
        assert np.array_equal(again.requests[name], record.requests[name]), name
    assert again.events["detail"].tolist() == record.events["detail"].tolist()


def test_missing_segments_are_empty(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [])
    for file in (folder / "segments").iterdir():
        file.unlink()
    record = RunRecord.load(folder)
    assert len(record.requests["index"]) == len(record.events["t_ns"]) == 0
    assert record.counts() == {"ok": 0, "error": 0, "timeout": 0, "shed": 0}


def test_finalizing_changes_nothing_but_the_form(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [*range(N), -1, -2], state="complete")
    before = RunRecord.load(folder)

    finalize(folder)
    finalize(folder)

    after = RunRecord.load(folder)
    assert not (folder / "segments").exists()
    assert not after.partial
    for part in ("requests", "batches", "samples"):
        old, new = getattr(before, part), getattr(after, part)
        assert all(np.array_equal(old[name], new[name]) for name in old), part
    assert after.errors == before.errors
    assert after.events["detail"].tolist() == before.events["detail"].tolist()


def test_both_forms_at_once_as_a_crash_may_leave_them(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", list(range(N)))
    kept = {file.name: file.read_bytes() for file in (folder / "segments").iterdir()}
    finalize(folder)
    (folder / "segments").mkdir()
    for name, data in kept.items():
        (folder / "segments" / name).write_bytes(data)
    assert RunRecord.load(folder).requests["index"].tolist() == list(range(N))
    finalize(folder)
    assert not (folder / "segments").exists()


def test_features_are_columns_and_keep_their_types(tmp_path: Path) -> None:
    texts = np.empty(N, dtype=object)
    texts[:] = [None if k % 3 else f"t{k}" for k in range(N)]
    numbers = np.where(np.arange(N) % 2, math.nan, np.arange(N) / 2)
    traffic = _traffic(tokens=np.arange(N), share=numbers, kind=texts, latency_ns=np.arange(N) * 7)
    folder = _run(tmp_path / "run", list(range(N)), traffic=traffic)
    finalize(folder)

    table = pq.read_table(folder / "requests.parquet")

    assert table.column("tokens").to_pylist() == list(range(N))
    assert table.column("share").to_pylist() == [None if k % 2 else k / 2 for k in range(N)]
    assert table.column("kind").to_pylist() == [None if k % 3 else f"t{k}" for k in range(N)]
    assert table.column("feature.latency_ns").to_pylist() == [7 * k for k in range(N)]
    assert table.column("latency_ns").to_pylist() == [10 * k for k in range(N)]


@given(st.lists(st.sampled_from(["id", "status", "feature.id", "feature.feature.id", "x", "feature.x"]), unique=True))
def test_no_two_features_share_a_column(names: list[str]) -> None:
    columns = [feature_column(name) for name in names]
    assert len(set(columns)) == len(names)
    assert not set(columns) & set(REQUEST_DTYPE.names or ())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "run.json").unlink(), "no run.json"),
        (lambda f: (f / "run.json").write_text("{"), "unreadable"),
        (lambda f: (f / "run.json").write_text("[]"), "no object"),
        (lambda f: (f / "run.json").write_text('{"schema": "latfix.run/9"}'), "latfix.run/9"),
        (lambda f: (f / "run.json").write_bytes(b"\xff\xfe"), "unreadable"),
        (lambda f: (f / "traffic.parquet").unlink(), "traffic.parquet"),
        (lambda f: (f / "traffic.parquet").write_bytes(b"PAR1"), "traffic.parquet"),
        (lambda f: (f / "requests.parquet").write_bytes(b"PAR1"), "unreadable"),
        (lambda f: (f / "batches.parquet").unlink(), "batches.parquet"),
        (lambda f: (f / "events.parquet").write_text("x"), "events.parquet"),
        (lambda f: pq.write_table(pa.table({"index": [1]}), f / "requests.parquet"), "no column"),
        (lambda f: (f / "requests.parquet").unlink(), "no requests.parquet and no segments"),
    ],
)
def test_another_folder_than_a_run_is_refused(tmp_path: Path, spoil: Any, says: str) -> None:
    folder = _run(tmp_path / "run", list(range(N)))
    finalize(folder)
    spoil(folder)
    with pytest.raises(InputError, match=says) as caught:
        RunRecord.load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("column", ["status", "index", "latency_ns"])
def test_columns_that_latfix_did_not_write_are_refused(tmp_path: Path, column: str) -> None:
    folder = _run(tmp_path / "run", list(range(N)))
    finalize(folder)
    table = pq.read_table(folder / "requests.parquet")
    position = table.column_names.index(column)
    pq.write_table(table.set_column(position, column, pa.array(["odd"] * N)), folder / "requests.parquet")
    with pytest.raises(InputError, match=f"in column '{column}'|a status that is none of"):
        RunRecord.load(folder)


def test_requests_beyond_the_schedule_are_refused(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [0, N])
    with pytest.raises(InputError, match=r"not in traffic\.parquet"):
        RunRecord.load(folder)


def test_rows_of_zeros_at_the_end_are_torn(tmp_path: Path) -> None:
    # GIVEN files after a loss of power: they had grown by rows whose data was never written
    folder = _run(tmp_path / "run", [3, 1, 2])
    for name, dtype in (("requests.bin", REQUEST_DTYPE), ("batches.bin", BATCH_DTYPE)):
        with (folder / "segments" / name).open("ab") as file:
            file.write(bytes(5 * dtype.itemsize + 17))

    record = RunRecord.load(folder)

    assert record.requests["index"].tolist() == [1, 2, 3]
    assert record.batches["batch_id"].tolist() == [0, 1, 2]
    assert record.partial


def test_a_row_that_ends_in_zeros_before_it_is_whole_is_torn(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [3, 1, 2])
    file = folder / "segments" / "requests.bin"
    data = file.read_bytes()
    kept = 2 * REQUEST_DTYPE.itemsize + 16  # of the last row, its index and arrival came
    file.write_bytes(data[:kept] + bytes(len(data) - kept))
    assert RunRecord.load(folder).requests["index"].tolist() == [1, 3]


def test_a_run_that_lost_rows_is_partial_in_any_state(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [*range(N), -1], state="complete")
    assert not RunRecord.load(folder).partial
    file = folder / "segments" / "requests.bin"
    data = file.read_bytes()
    lost = 3 * REQUEST_DTYPE.itemsize
    file.write_bytes(data[:-lost] + bytes(lost))
    assert RunRecord.load(folder).partial
    finalize(folder)
    assert RunRecord.load(folder).partial
    assert RunRecord.load(folder).unrecorded() == 2


@pytest.mark.parametrize("finished", [True, False])
def test_a_duplicate_request_is_refused(tmp_path: Path, finished: bool) -> None:
    folder = _run(tmp_path / "run", [4, 5, 4, 6])
    if finished:
        finalize(folder)
    with pytest.raises(InputError, match="found request 4 twice; expected each request once"):
        RunRecord.load(folder)


def test_a_duplicate_batch_is_refused(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [0, 1])
    file = folder / "segments" / "batches.bin"
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(InputError, match="found batch 0 twice"):
        RunRecord.load(folder)


def test_requests_out_of_order_are_refused(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", list(range(N)))
    finalize(folder)
    table = pq.read_table(folder / "requests.parquet")
    pq.write_table(table.take([0, 2, 1]), folder / "requests.parquet")
    with pytest.raises(InputError, match="found request 1 after request 2"):
        RunRecord.load(folder)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("which", [-1, 0, 5])
def test_a_latency_that_is_not_the_sum_of_its_stages_is_refused(tmp_path: Path, which: int, finished: bool) -> None:
    order = [5, 0, -1, 3, 4]
    folder = _run(tmp_path / "run", order)
    rows = _rows(order)
    rows["latency_ns"][order.index(which)] += 7
    (folder / "segments" / "requests.bin").write_bytes(rows.tobytes())
    if finished:
        finalize(folder)
    said = rf"request {which} with latency_ns {abs(which) * 10 + 7}; expected {abs(which) * 10}, the sum"
    with pytest.raises(InputError, match=said):
        RunRecord.load(folder)


def test_more_warm_up_than_a_runner_can_be_set_to_is_refused(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [0, -(10**7)])
    with pytest.raises(InputError, match="found request -10000000"):
        RunRecord.load(folder)


def test_a_batch_of_no_possible_size_is_refused(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", [0, 1])
    batches = np.zeros(1, dtype=BATCH_DTYPE)
    batches["size"] = 2**40
    (folder / "segments" / "batches.bin").write_bytes(batches.tobytes())
    with pytest.raises(InputError, match="found a batch of 1099511627776"):
        RunRecord.load(folder)


def test_segments_of_another_version_are_read_by_their_own_columns(tmp_path: Path) -> None:
    # GIVEN a killed run whose rows have one column that this version lacks, and lack one that it has
    folder = _run(tmp_path / "run", list(range(N)))
    names = [name for name in REQUEST_DTYPE.names or () if name != "input_length"]
    names.insert(2, "of_another_version")
    rows = np.zeros(N, dtype=[(name, "<i8") for name in names])
    rows["index"] = np.arange(N)
    rows["latency_ns"] = rows["compute_ns"] = np.arange(N) * 10
    rows["of_another_version"] = -1
    (folder / "segments" / "requests.bin").write_bytes(rows.tobytes())
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "rows": {"requests": names}}))

    record = RunRecord.load(folder)

    assert record.requests["index"].tolist() == list(range(N))
    assert record.requests["latency_ns"].tolist() == [10 * k for k in range(N)]
    assert record.requests["input_length"].tolist() == [0] * N
    assert set(record.requests) == set(REQUEST_DTYPE.names or ())


@pytest.mark.parametrize(
    "rows", [{"requests": 3}, {"requests": ["index", "index"]}, {"requests": []}, {"batches": ["x"]}]
)
def test_columns_of_segments_that_make_no_sense_are_refused(tmp_path: Path, rows: object) -> None:
    folder = _run(tmp_path / "run", list(range(N)))
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "rows": rows}))
    with pytest.raises(InputError, match=r"damaged record|rows.requests = 3; expected a list"):
        RunRecord.load(folder)


def test_parquet_of_an_older_version_may_lack_columns(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", list(range(N)))
    finalize(folder)
    for name, column in (("requests", "input_length"), ("batches", "retried")):
        table = pq.read_table(folder / f"{name}.parquet")
        pq.write_table(table.drop_columns([column]), folder / f"{name}.parquet")

    record = RunRecord.load(folder)

    assert record.requests["input_length"].tolist() == [0] * N
    assert record.batches["retried"].tolist() == [0] * 3
