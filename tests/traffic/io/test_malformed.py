"""Malformed traffic gives one clear line with the file and what to do, never another exception."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latfix.errors import InputError
from latfix.traffic.io.reader import read_traffic

GOOD = '{"arrival_s": 0}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOONCAKE = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n'


def parquet(columns: dict[str, Any], metadata: dict[bytes, bytes] | None = None) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), stream)
    return stream.getvalue()


#: Content, what the message must name (line or file-wide fact).
TEXTS: dict[str, tuple[str, str]] = {
    # arrivals
    "negative": ('{"arrival_s": -1}\n', ":1: found -1 in 'arrival_s'"),
    "nan": ('{"arrival_s": NaN}\n', ":1: found"),
    "infinity": ('{"arrival_s": Infinity}\n', ":1: found"),
    "overflowing": ('{"arrival_s": 1e400}\n', "out of range"),
    "absurd": ('{"arrival_s": 1e300}\n', "at most 1e9 seconds"),
    "epoch": ('{"arrival_s": 1700000000.5}\n', "not from 1970"),
    "huge_int": ('{"arrival_s": 1' + "0" * 400 + "}\n", "at most 1e9 seconds"),
    "enormous_int": ('{"arrival_s": 1' + "0" * 5000 + "}\n", ":1: found"),
    "text": ('{"arrival_s": "soon"}\n', "'soon' in 'arrival_s'"),
    "true": ('{"arrival_s": true}\n', "True in 'arrival_s'"),
    "null": ('{"arrival_s": null, "a": 1}\n', "nothing in 'arrival_s'"),
    "list": ('{"arrival_s": [1]}\n', "[1] in 'arrival_s'"),
    "missing_on_a_line": (GOOD + '{"a": 1}\n', ":2: found nothing in 'arrival_s'"),
    # lines
    "cut_off": ('{"arrival_s": 0}\n{"arrival_s": 1', ":2: found"),
    "array": ('[{"arrival_s": 0}]\n', "one a line"),
    "array_of_lines": ('[\n {"arrival_s": 0}\n]\n', "write the array's elements"),
    "pretty_printed": ('{\n "arrival_s": 0\n}\n', ":1: found"),
    "number_line": (GOOD + "5\n", ":2: found '5'"),
    "two_on_a_line": ('{"arrival_s": 0}{"arrival_s": 1}\n', ":1: found"),
    "nested_too_deep": ('{"arrival_s": 0, "payload": ' + "[" * 100_000 + "\n", ":1: found"),
    "surrogate": ('{"arrival_s": 0, "id": "\\ud800"}\n', "surrogate"),
    "nul_escape": ('{"arrival_s": 0, "id": "a\\u0000"}\n', "NUL"),
    "key_twice": (GOOD + '{"arrival_s": 1, "n": 2, "n": 3}\n', "key 'n' twice"),
    "empty_object": ("{}\n", "columns"),
    # other fields
    "id_twice": ('{"arrival_s": 0, "id": "a"}\n{"arrival_s": 1, "id": "a"}\n', ":2: found id 'a', also on line 1"),
    "id_empty": ('{"arrival_s": 0, "id": ""}\n', "'' in 'id'"),
    "id_float": ('{"arrival_s": 0, "id": 1.5}\n', "1.5 in 'id'"),
    "priority_unknown": ('{"arrival_s": 0, "priority": "urgent"}\n', "high, normal or low"),
    "priority_case": ('{"arrival_s": 0, "priority": "High"}\n', "high, normal or low"),
    "session_object": ('{"arrival_s": 0, "session": {}}\n', "in 'session'"),
    "deadline_negative": ('{"arrival_s": 0, "deadline_ms": -5}\n', "in 'deadline_ms'"),
    "deadline_zero": ('{"arrival_s": 0, "deadline_ms": 0}\n', "in 'deadline_ms'"),
    "deadline_text": ('{"arrival_s": 0, "deadline_ms": "5"x}\n', ":1: found"),
    "deadline_huge": ('{"arrival_s": 0, "deadline_ms": 1' + "0" * 400 + "}\n", "in 'deadline_ms'"),
    # features
    "feature_object": ('{"arrival_s": 0, "f": {"a": 1}}\n', "under payload"),
    "feature_huge": ('{"arrival_s": 0, "f": 99999999999999999999}\n', "64 bits"),
    "feature_mixed": ('{"arrival_s": 0, "f": 1}\n{"arrival_s": 1, "f": "x"}\n', ":2: found 'x' in 'f'"),
    "feature_unnamed": ('{"arrival_s": 0, "": 1}\n', "feature name"),
    "feature_control_name": ('{"arrival_s": 0, "a\\nb": 1}\n', "feature name"),
    "feature_long_name": ('{"arrival_s": 0, "' + "n" * 300 + '": 1}\n', "feature name"),
    "many_keys": (
        "".join(f'{{"arrival_s": {i}, "k{i}": 1}}\n' for i in range(1100)),
        "more than 1000 different keys",
    ),
    # CSV
    "csv_unknown": ("a,b\n1,2\n", "columns 'a', 'b'"),
    "csv_semicolons": ("arrival_s;tokens\n0;1\n", "'arrival_s;tokens'"),
    "csv_header_only": ("arrival_s,tokens\n", "no requests"),
    "csv_too_many_cells": ("arrival_s,a\n0,1\n1,2,3\n", ":3: found 3 cells"),
    "csv_too_few_cells": ("arrival_s,a,b\n0,1\n", ":2: found 2 cells"),
    "csv_column_twice": ("arrival_s,a,a\n0,1,2\n", "'a' twice"),
    "csv_column_unnamed": (",arrival_s\n0,1\n", "no name for column 1"),
    "csv_open_quote": ('arrival_s,a\n0,"x\n1,y\n', ":2: found a row that is not CSV"),
    "csv_bad_quote": ('arrival_s,a\n0,"x"y\n', ":2: found a row that is not CSV"),
    "csv_arrival_word": ("arrival_s\n0\nx\n", ":3: found 'x'"),
    "csv_arrival_blank": ("arrival_s,a\n0,1\n,1\n", ":3: found nothing"),
    "csv_arrival_negative": ("arrival_s\n-0.1\n", ":2: found"),
    "csv_arrival_underscore": ("arrival_s\n1_000\n", ":2: found '1_000'"),
    "csv_arrival_exponent": ("arrival_s\n1e999999\n", ":2: found"),
    "csv_arrival_endless_exponent": ("arrival_s\n1e99999999999999999999\n", ":2: found"),
    "csv_feature_nan": ("arrival_s,f\n0,1\n1,nan\n", ":3: found 'nan' in 'f'"),
    "csv_feature_huge": ("arrival_s,f\n0,99999999999999999999\n", "64 bits"),
    "csv_feature_overflow": ("arrival_s,f\n0,1e999\n", "finite"),
    "csv_payload": ("arrival_s,payload\n0,hello\n", "JSON text"),
    "csv_payload_overflow": ("arrival_s,payload\n0,1e999\n", "JSON text"),
    "csv_priority": ("arrival_s,priority\n0,top\n", "high, normal or low"),
    "csv_deadline": ("arrival_s,deadline_ms\n0,inf\n", "in 'deadline_ms'"),
    # published formats
    "azure_date": (AZURE + "2023-13-16 18:17:03.97,1,1\n", ":2: found '2023-13-16"),
    "azure_word": (AZURE + "yesterday,1,1\n", ":2: found 'yesterday'"),
    "azure_blank": (AZURE + ",1,1\n", "an empty cell in 'TIMESTAMP'"),
    "azure_zones_mixed": (AZURE + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:04+00:00,1,1\n", ":3: found"),
    "azure_far_zone": (AZURE + "2023-11-16 18:17:03+99:00,1,1\n", "18 hours"),
    "azure_tokens_negative": (AZURE + "2023-11-16 18:17:03,-1,1\n", "in 'ContextTokens'"),
    "azure_tokens_fraction": (AZURE + "2023-11-16 18:17:03,1.5,1\n", "in 'ContextTokens'"),
    "azure_tokens_blank": (AZURE + "2023-11-16 18:17:03,,1\n", "in 'ContextTokens'"),
    "azure_span": (AZURE + "0001-01-01 00:00:00,1,1\n9999-12-31 00:00:00,1,1\n", "at most 1e+09 s"),
    "burstgpt_time": (BURST + "noon,GPT-4,1,1,2,API log\n", ":2: found 'noon' in 'Timestamp'"),
    "mooncake_time": (MOONCAKE + MOONCAKE.replace("0,", "-3,", 1), ":2: found -3 in 'timestamp'"),
    "mooncake_length": (MOONCAKE + MOONCAKE.replace(" 1,", " null,", 1), "in 'input_length'"),
    "mooncake_hashes": (MOONCAKE + MOONCAKE.replace("[1]", '["a"]'), "in 'hash_ids'"),
    "bailian": (MOONCAKE.replace("{", '{"chat_id": 1, ', 1), "seconds, not Mooncake's milliseconds"),
    # not traffic at all
    "blank": ("\n \n\n", "an empty file"),
    "prose": ("Dear reader,\nthis is no traffic.\n", ":1: found no name for column 2"),
    "html": ("<html><body>Not found</body></html>\n", "columns"),
}

BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file"),
    "nul": (b'{"arrival_s": 0}\n\x00\x00', ":2: found a NUL byte"),
    "latin_1": (b'{"arrival_s": 0}\n{"arrival_s": 1, "id": "\xe9"}\n', ":2: found byte 0xe9"),
    "csv_latin_1": (b"arrival_s,a\n0,\xe9\n", ":2: found byte 0xe9"),
    "utf_16": ('{"arrival_s": 0}\n'.encode("utf-16"), "UTF-16"),
    "zip": (b"PK\x03\x04rest", "a zip archive"),
    "gzip_cut": (gzip.compress(GOOD.encode() * 100)[:-12], "damaged gzip"),
    "gzip_empty": (gzip.compress(b""), "an empty file"),
    "parquet_cut": (parquet({"arrival_s": [0.0, 1.0]})[:-20], "damaged Parquet"),
    "parquet_magic": (b"PAR1PAR1", "damaged Parquet"),
    "parquet_unknown": (parquet({"a": [1]}), "columns 'a'"),
    "parquet_no_rows": (parquet({"arrival_s": pa.array([], pa.float64())}), "no requests"),
    "parquet_negative": (parquet({"arrival_s": [0.0, -1.0]}), "row 2: found -1.0"),
    "parquet_nan": (parquet({"arrival_s": [0.0, float("nan")]}), "row 2: found"),
    "parquet_null": (parquet({"arrival_s": [0.0, None]}), "row 2: found nothing"),
    "parquet_nested": (parquet({"arrival_s": [0.0], "f": [[1, 2]]}), "under payload"),
    "parquet_binary_feature": (parquet({"arrival_s": [0.0], "f": [b"\xff"]}), "in 'f'"),
    "parquet_payload": (parquet({"arrival_s": [0.0], "payload": ["not json"]}), "JSON text"),
    "parquet_metadata": (parquet({"arrival_s": [0.0]}, {b"latfix": b"{"}), "not JSON"),
}

MAPPINGS: dict[str, tuple[dict[str, str], str]] = {
    "unknown_feature": ({"t": "missing * 2"}, "unknown feature 'missing'"),
    "text": ({"t": "model * 2"}, ":1: found feature model is text"),
    "division_by_zero": ({"t": "1 / zero"}, ":2: found"),
    "absent": ({"t": "sometimes + 1"}, ":2: found no feature sometimes"),
    "overflow": ({"t": "tokens * 1e308 * 10"}, ":1: found"),
    "beyond_64_bits": ({"t": "tokens * 4000000000000000000000"}, "64 bits"),
    "not_an_expression": ({"t": "import os"}, "does not parse"),
    "call": ({"t": "open(1)"}, "map t"),
    "attribute": ({"t": "tokens.real"}, "map t"),
    "power": ({"t": "tokens ** 99"}, "map t"),
    "empty": ({"t": ""}, "map t"),
    "reserved": ({"arrival_s": "tokens"}, "a field of the request"),
    "bad_name": ({"two words": "tokens"}, "feature name 'two words'"),
    "keyword": ({"class": "tokens"}, "feature name 'class'"),
    "later_one": ({"a": "b + 1", "b": "tokens"}, "unknown feature 'b'"),
}
MAPPED = (
    '{"arrival_s": 0, "tokens": 5, "zero": 1, "model": "m", "sometimes": 1}\n'
    '{"arrival_s": 1, "tokens": 5, "zero": 0, "model": "m"}\n'
)


def refused(path: Path, expected: str, act: Callable[[], object]) -> None:
    with pytest.raises(InputError) as caught:
        act()
    message = caught.value.message
    assert expected in message
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 700
    assert path.name in message or "map" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [*((text.encode(), expected) for text, expected in TEXTS.values()), *BYTES.values()],
    ids=[*TEXTS, *BYTES],
)
def test_malformed_content_is_refused_in_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "traffic.dat"
    path.write_bytes(content)
    refused(path, expected, lambda: read_traffic(path))


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_bad_mapping_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    mapping, expected = MAPPINGS[name]
    path = tmp_path / "traffic.jsonl"
    path.write_text(MAPPED)
    refused(path, expected, lambda: read_traffic(path, mapping=mapping))
    good = read_traffic(path, mapping={"half": "tokens / 2", "more": "half + 1"})
    assert good.features["more"].tolist() == [3.5, 3.5]


def test_another_path_than_a_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "a directory", lambda: read_traffic(tmp_path))
    missing = tmp_path / "missing.jsonl"
    refused(missing, "no such file", lambda: read_traffic(missing))
    with pytest.raises(InputError, match="cannot be read"):
        read_traffic(Path("a\0b"))
