"""``report`` on records whose files open well and hold what latfix never wrote: one line, and never a traceback."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.diagnose import diagnose as attribute
from tests.cli.conftest import refused
from tests.conftest import cli

PARQUET = ("requests", "batches", "events", "samples", "traffic")
#: By name, a value that takes a column's place, in all rows.
VALUES: dict[str, Any] = {
    "text": pa.scalar("x"),
    "list": pa.scalar([1]),
    "bytes": pa.scalar(b"\xff"),
    "null": pa.scalar(None),
    "a null of the type": pa.scalar(None, pa.int64()),
    "nan": pa.scalar(float("nan")),
    "most": pa.scalar(2**63 - 1),
    "least": pa.scalar(-(2**63)),
    "unsigned": pa.scalar(2**64 - 1, pa.uint64()),
    "large": pa.scalar(2**61),
    "minus one": pa.scalar(-1),
    "zero": pa.scalar(0),
    "time": pa.scalar(1, pa.timestamp("s")),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.profilers.diagnose.diagnose", partial(attribute, bootstrap=10))


def _answered(answer: tuple[int, str, str]) -> None:
    if answer[0] != 0:
        refused(answer)


def _change(file: Path, name: str, values: Any) -> None:
    table = pq.read_table(file)
    if values is None:
        changed = table.drop_columns([name])
    else:
        changed = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(changed, file)


@pytest.mark.parametrize("limit", [150_000, 10], ids=["small", "large"])
def test_batches_that_close_in_another_age(run: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", limit)
    file = run / "batches.parquet"
    _change(file, "close_ns", pa.repeat(VALUES["large"], pq.read_table(file).num_rows))
    refused(cli("report", run), "found a batch with close_ns 2305843009213693952")


@pytest.mark.parametrize("limit", [None, 10], ids=["small", "large"])
@settings(max_examples=10)
@given(data=st.data())
def test_any_column_of_any_file(
    originals: dict[bool, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    data: st.DataObject,
) -> None:
    if limit is not None:
        monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", limit)
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals[True], folder)
    file = folder / f"{data.draw(st.sampled_from(PARQUET))}.parquet"
    table = pq.read_table(file)
    name = data.draw(st.sampled_from(table.column_names))
    way = data.draw(st.sampled_from(["gone", "one", *VALUES]))
    values: Any = None
    if way == "one":
        one = data.draw(st.sampled_from([2**61, -(2**61), 2**63 - 1, -(2**63), 10**12, -1, None]))
        values = table.column(name).to_pylist()
        values[len(values) // 2] = one if table.schema.field(name).type == pa.int64() else None
        values = pa.array(values, table.schema.field(name).type)
    elif way != "gone":
        values = pa.repeat(VALUES[way], table.num_rows)
    _change(file, name, values)

    _answered(cli("report", folder, "--json", "-"))


@pytest.mark.parametrize(
    ("file", "name", "value", "words"),
    [
        ("batches", "size", "text", "found string in column 'size'"),
        ("batches", "open_ns", "most", "found 9223372036854775807 in column 'open_ns'"),
        ("batches", "worker", "minus one", "found a batch of worker -1"),
        ("events", "t_ns", "nan", "found double in column 't_ns'"),
        ("events", "detail", "null", "found null in column 'detail'"),
        ("events", "detail", "text", "found 'x' as detail of an event"),
        ("samples", "value", "nan", "found nan in column 'value'"),
        ("samples", "series", "list", "in column 'series'"),
        ("requests", "error", "bytes", "found binary in column 'error'"),
        ("requests", "arrival_ns", "a null of the type", "found a null in column 'arrival_ns'"),
        ("requests", "index", "least", "found -9223372036854775808 in column 'index'"),
        ("traffic", "session", "nan", "double in column 'session'"),
        ("traffic", "id", "list", "in column 'id'"),
        ("traffic", "priority", "list", "in column 'priority'"),
        ("traffic", "arrival_ns", "text", "found a damaged file"),
    ],
)
def test_what_a_column_holds_is_named(run: Path, file: str, name: str, value: str, words: str) -> None:
    path = run / f"{file}.parquet"
    _change(path, name, pa.repeat(VALUES[value], pq.read_metadata(path).num_rows))
    refused(cli("report", run), str(run), words)


@pytest.mark.parametrize("detail", ["null", "[]", "3", "[" * 5000 + "]" * 5000, '{"a": ' * 100 + "1" + "}" * 100])
def test_details_that_are_no_objects(run: Path, killed: Path, detail: str) -> None:
    _change(run / "events.parquet", "detail", pa.array([detail] * 2))
    refused(cli("report", run), "events.parquet")
    (killed / "segments" / "events.jsonl").write_text(f'[30, 0, "error", 1, 3, 3, {detail}]\n')
    refused(cli("report", killed), "events.jsonl")


@pytest.mark.parametrize(
    "line",
    ['["a", "a", 1]', "[null, 1, 1]", '[1, "a", "b"]', '[1e400, "a", 1]', f'[{10**30}, "a", 1]', '[1, "a", NaN]'],
)
def test_lines_that_latfix_did_not_write(killed: Path, line: str) -> None:
    (killed / "segments" / "samples.jsonl").write_text(f'[10, "a", 1]\n{line}\n')
    refused(cli("report", killed), "samples.jsonl:2: found")


METAS: list[tuple[str, Any]] = [
    ("objective", 3),
    ("objective", {"percentile": "x"}),
    ("settings", None),
    ("settings", {"batch_window_ms": "x"}),
    ("scheduled", "many"),
    ("machine", []),
    ("overhead", "none"),
    ("calibration", {"minor_fault_ns": None}),
    ("workload", ["w"]),
    ("probes", 3),
    ("warmup", 3),
    ("fixes", "gc.freeze"),
]
KEYS = ["calibration.minor_fault_ns", "overhead.a_us", "objective.percentile", "scheduled", "cores", "torch_threads"]
STRANGE: list[Any] = [
    10**29,
    10**400,
    -(10**29),
    1e29,
    float("nan"),
    float("inf"),
    [[[]]],
    {"a": {"b": 1}},
    None,
    "x",
    -1,
]


CHANGES = [*product(METAS, [True, False]), *product(product(KEYS, STRANGE), [True])]


@pytest.mark.parametrize(("change", "finished"), CHANGES, ids=range(len(CHANGES)))
def test_values_of_a_run_file(runs: dict[bool, Path], change: tuple[str, Any], finished: bool) -> None:
    file, (key, value) = runs[finished] / "run.json", change
    document = json.loads(file.read_text())
    table, _, name = key.rpartition(".")
    (document[table] if table else document)[name] = value
    file.write_text(json.dumps(document))
    _answered(cli("report", file.parent, "--json", "-"))


@pytest.mark.parametrize("depth", [100, 5000])
def test_a_run_file_that_is_too_deep(run: Path, depth: int) -> None:
    text = (run / "run.json").read_text().rstrip()[:-1]
    (run / "run.json").write_text(f'{text}, "deep": {"[" * depth}{"]" * depth}}}')
    refused(cli("report", run), "run.json")


@pytest.mark.parametrize("name", ["run.json", *(f"{name}.parquet" for name in PARQUET)])
@pytest.mark.parametrize("limit", [150_000, 10], ids=["small", "large"])
def test_pipes_are_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr("latfix.run_record.chunked_record.LARGE", limit)
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(cli("report", run), f"{name}: found no regular file")


@pytest.mark.parametrize("name", ["requests.bin", "batches.bin", "events.jsonl", "samples.jsonl"])
def test_pipes_of_a_killed_run_are_not_waited_for(killed: Path, name: str) -> None:
    (killed / "segments" / name).unlink()
    os.mkfifo(killed / "segments" / name)
    refused(cli("report", killed), f"{name}: found no regular file")
