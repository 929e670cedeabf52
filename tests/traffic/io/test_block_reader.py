"""Traffic read block by block has the shape of traffic read whole; unusual files are read whole."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from latfix.traffic.io import block_reader
from latfix.traffic.io.block_reader import read_in_blocks
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.io.writer import write_traffic
from latfix.traffic.summary import describe
from latfix.traffic.transforms import limit


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reader, "_BLOCK_BYTES", 300)


def rows(n: int) -> list[dict[str, object]]:
    """Out of order, with gaps in a column of whole numbers, texts, sessions, classes and deadlines."""
    return [
        {
            "arrival_s": round((k * 7919 % n) * 0.37, 6),
            "id": f"q{k}",
            "tokens": k,
            **({"size": k * 10} if k > n // 2 else {}),
            **({"lang": "de" if k % 3 else "en"} if k % 5 else {}),
            **({"session": f"s{k % 7}", "priority": "high", "deadline_ms": 5.5} if k % 2 else {}),
            "payload": {"text": "x" * (k % 11)},
        }
        for k in range(n)
    ]


def json_lines(n: int = 100) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows(n))


def csv_text(n: int = 100) -> str:
    return "arrival_s,tokens,lang\n" + "".join(f"{k * 0.5},{k},{'de' if k % 3 else 'en'}\n" for k in range(n))


def published_text(n: int = 100) -> str:
    """Azure's trace out of order: its first arrival is not in the first line."""
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:{k * 7 % 60:02}:03.9799600,{k},10\n" for k in range(7, n + 7)
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", json_lines().encode()),
        ("a.jsonl.gz", gzip.compress(json_lines().encode())),
        ("bom.jsonl", b"\xef\xbb\xbf" + json_lines().encode()),
        ("no-last-newline.jsonl", json_lines().strip().encode()),
        ("a.csv", csv_text().encode()),
        ("bom.csv", b"\xef\xbb\xbf" + csv_text().encode()),
        ("azure.csv", published_text().encode()),
    ],
)
def test_the_shape_is_the_same(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    seen: list[int] = []
    mapping = {"double": "input_tokens * 2" if name == "azure.csv" else "tokens * 2"}
    found = read_in_blocks(path, mapping=mapping, on_rows=seen.append)
    assert found is not None
    assert len(seen) > 3 and seen == sorted(seen) and seen[-1] == 100
    assert describe(found).to_json() == describe(read_traffic(path, mapping=mapping)).to_json()


def test_parquet_is_read_in_blocks_too(tmp_path: Path) -> None:
    """With what latfix wrote into its schema: the kinds of columns, and transforms."""
    lines, path = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    seen: list[int] = []
    lines.write_text(json_lines())
    write_traffic(limit(read_traffic(lines), 60), path)
    found = read_in_blocks(path, mapping={"double": "tokens * 2"}, on_rows=seen.append)
    assert found is not None and len(seen) > 3 and seen[-1] == len(found) > 40
    whole = describe(read_traffic(path, mapping={"double": "tokens * 2"}))
    assert describe(found).to_json() == whole.to_json() and whole.transforms
    path.write_bytes(path.read_bytes()[:-50])
    assert read_in_blocks(path, mapping={}) is None


def test_bad_rows_of_parquet_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    write_table(pa.table({"arrival_s": [-1.0 if k % 9 == 8 else float(k) for k in range(50)]}), path)
    assert read_in_blocks(path, mapping={}) is None
    found = read_in_blocks(path, mapping={}, skip_bad_lines=True)
    assert found is not None and describe(found).skipped_lines == 5
    assert describe(found).to_json() == describe(read_traffic(path, skip_bad_lines=True)).to_json()


BAD_JSON = ["{bad", '{"arrival_s": -1}', '{"tokens": 1}', '{"arrival_s": 1, "id": 5, "priority": "urgent"}', '"\xff"']


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        (json_lines(), 0),
        ("".join(f"{BAD_JSON[k % 5]}\n{line}\n" for k, line in enumerate(json_lines().splitlines())), 100),
        (csv_text().replace("\n9.5,", "\n9.5,,").replace("\n20.0,", "\nlate,"), 2),
        (published_text().replace(",50,", ",-50,"), 1),
    ],
    ids=["none", "JSON", "CSV", "published"],
)
def test_bad_lines_are_left_out_and_counted(tmp_path: Path, text: str, skipped: int) -> None:
    path = tmp_path / "bad"
    path.write_bytes(text.encode("latin-1"))
    mapping = {"same": "input_tokens" if "TIME" in text else "tokens"}
    found = read_in_blocks(path, mapping=mapping, skip_bad_lines=True)
    assert found is not None and describe(found).skipped_lines == skipped
    assert describe(found).to_json() == describe(read_traffic(path, mapping=mapping, skip_bad_lines=True)).to_json()


def test_a_cell_of_several_lines_among_bad_ones_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(csv_text() + "1,2\n" + '1,2,"a cell\nof two lines"\n' * 30)
    assert read_in_blocks(path, mapping={}, skip_bad_lines=True) is None


def test_transforms_are_recorded(tmp_path: Path) -> None:
    path, cut = tmp_path / "a.jsonl", tmp_path / "cut.jsonl"
    path.write_text(json_lines())
    write_traffic(limit(read_traffic(path), 60), cut)
    found = read_in_blocks(cut, mapping={})
    assert found is not None and describe(found).transforms == describe(read_traffic(cut)).transforms != ()
    cut.write_text(cut.read_text().replace("q1", "z1"))
    changed = read_in_blocks(cut, mapping={})
    assert changed is not None and describe(changed).transforms == (), "its sidecar is stale"


@pytest.mark.parametrize(
    "text",
    [
        json_lines() + "{bad\n",
        json_lines() + '{"arrival_s": 1, "id": "q3"}\n',  # an id of another block
        json_lines() + '{"arrival_s": 1, "tokens": "many"}\n',  # a text among numbers of another block
        json_lines() + '{"arrival_s": -1}\n',
        json_lines() + '{"arrival_s": 1, "tokens": 1, "lang": "\x00"}\n',
        json_lines() + '{"timestamp": 1, "input_length": 1, "output_length": 1}\n' * 30,  # of another format
        csv_text() + '1,2,"a cell\nof two lines"\n' * 30,
        csv_text() + "1,many,de\n",  # then the column is texts
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,1\n9999-11-16,1,1\n",  # beyond 64 bits
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,1\n2199-11-16,1,1\n",  # too long
        "",
    ],
)
def test_unusual_files_are_read_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd"
    path.write_text(text)
    assert read_in_blocks(path, mapping={}) is None


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert read_in_blocks(tmp_path / "none", mapping={}) is None
    assert read_in_blocks(tmp_path, mapping={}) is None


def test_no_column_is_in_memory_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About 60 bytes a request are kept, and a column of 8 is copied at a time."""

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.jsonl"
        path.write_text("".join(f'{{"arrival_s": {k}, "id": "r{k}", "a": {k}, "b": {k}.5}}\n' for k in range(rows)))
        tracemalloc.start()
        try:
            assert read_in_blocks(path, mapping={}) is not None
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(block_reader, "_BLOCK_BYTES", 20_000)
    peak(100)
    assert (peak(30_000) - peak(10_000)) / 20_000 < 80
