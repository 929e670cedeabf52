"""Reading: formats recognized by content, times exact, rows accounted for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latfix.errors import InputError
from latfix.traffic.io.reader import read_traffic

SHARED = Path(__file__).parents[4] / "shared" / "data"


def shared_file(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"recorded traffic {path} is not on this machine")
    return path


def written(tmp_path: Path, content: str | bytes, name: str = "traffic.dat") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_azure_as_published_keeps_every_request_and_digit() -> None:
    traffic = read_traffic(shared_file("AzureLLMInferenceTrace_code.csv"))
    assert len(traffic) == 8819
    assert traffic.metadata["format"] == "azure-llm-inference"
    assert "Splitwise" in traffic.metadata["citation"]
    # 18:17:03.9799600 -> .0319600 -> .0781490, and 19:14:19.9280160 at the end
    assert traffic.arrival_ns[:3].tolist() == [0, 52_000_000, 98_189_000]
    assert traffic.arrival_ns[-1] == 3_435_948_056_000
    gaps = np.diff(traffic.arrival_ns)
    assert np.count_nonzero(gaps % 10_000_000) > 8000
    assert traffic.features["input_tokens"][:2].tolist() == [4808, 3180]
    assert traffic.features["output_tokens"][-1] == 173
    assert traffic.ids[0] == "r0"
    assert len(set(traffic.ids)) == 8819


def test_mooncake_as_published_keeps_prefix_blocks_and_their_ids() -> None:
    traffic = read_traffic(shared_file("mooncake_conversation_trace.jsonl"))
    assert len(traffic) == 12031
    assert traffic.metadata["format"] == "mooncake"
    assert traffic.arrival_ns[-1] == 3_536_999_000_000
    first = traffic.request(0)
    assert first.features == {"input_tokens": 6758, "output_tokens": 500, "prefix_blocks": 14}
    assert first.payload == {"hash_ids": list(range(14))}


@pytest.mark.parametrize(
    ("second", "nanoseconds"),
    [
        ("2023-11-16 18:17:03.0000001", 100),
        ("2023-11-16 18:17:03.1234567", 123_456_700),
        ("2023-11-16T18:17:03.123456789", 123_456_789),
        ("2023-11-16 18:17:04", 1_000_000_000),
        ("2023-11-17 18:17:03.0", 86_400 * 10**9),
    ],
)
def test_azure_timestamps_are_exact(tmp_path: Path, second: str, nanoseconds: int) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03,1,1\r\n"
    traffic = read_traffic(written(tmp_path, f"{head}{second},2,2"))
    assert traffic.arrival_ns.tolist() == [0, nanoseconds]


def test_differing_utc_offsets_are_reconciled(tmp_path: Path) -> None:
    rows = (
        "2024-05-10 00:00:00.009930+00:00,1,1\n"
        "2024-05-10 02:00:01.009930+02:00,2,2\n"
        "2024-05-09 19:00:02.00993-0500,3,3\n"
    )
    traffic = read_traffic(written(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows))
    assert traffic.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    content = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.25,77,1.5,ChatGPT,472,18,490,Conversation log\n"
        "45,,0.25,GPT-4,1087,0,1087,API log\n"
    )
    traffic = read_traffic(written(tmp_path, content))
    assert traffic.metadata["format"] == "burstgpt"
    assert traffic.metadata["failed_requests"] == 1
    assert traffic.arrival_ns.tolist() == [0, 39_750_000_000]
    assert traffic.sessions == ["77", None]
    assert traffic.request(0).features == {
        "input_tokens": 472,
        "output_tokens": 18,
        "model": "ChatGPT",
        "log_type": "Conversation log",
        "elapsed_s": 1.5,
    }


def test_content_decides_and_not_the_name(tmp_path: Path) -> None:
    path = written(tmp_path, '{"arrival_s": 1.5, "x": 2}\n', "traffic.csv")
    assert read_traffic(path).metadata["format"] == "native-jsonl"
    content = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
    first_release = read_traffic(written(tmp_path, content))
    assert (first_release.metadata["format"], first_release.sessions) == ("burstgpt", [None])


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl"])
def test_gzip_is_read_whatever_the_name(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, gzip.compress(b'{"arrival_s": 1.5}\n'), name)
    traffic = read_traffic(path)
    assert traffic.arrival_ns.tolist() == [1_500_000_000]
    assert traffic.metadata["compressed"] is True


def test_native_json_lines_with_every_field(tmp_path: Path) -> None:
    row = {"arrival_s": 0.25, "id": "q", "priority": "high", "session": "s", "deadline_ms": 250}
    row |= {"payload": {"text": "é", "n": [1, None]}}
    features = {"tokens": 7, "share": 0.5, "flag": True, "lang": "de", "absent": None}
    request = read_traffic(written(tmp_path, json.dumps(row | features))).request(0)
    assert (request.id, request.arrival_s, request.priority) == ("q", 0.25, "high")
    assert (request.session, request.deadline_ms, request.payload) == ("s", 250.0, row["payload"])
    assert request.features == {"tokens": 7, "share": 0.5, "flag": 1, "lang": "de"}


def test_native_csv_with_byte_order_mark_crlf_and_quoted_payload(tmp_path: Path) -> None:
    content = '\ufeffarrival_s,payload,tokens,lang\r\n0.1,"{""a"": [1, 2]}",5,en\r\n\r\n0.2,,,"a\r\nb"\r\n'
    traffic = read_traffic(written(tmp_path, content))
    assert traffic.payloads == [{"a": [1, 2]}, None]
    assert traffic.request(0).features == {"tokens": 5, "lang": "en"}
    assert traffic.request(1).features == {"lang": "a\r\nb"}


@pytest.mark.parametrize("text", ["0.123456789", "12345678.000000001", "999999999.999999999", "1e-9", "2.5E2"])
@pytest.mark.parametrize("form", ['{{"arrival_s": {0}}}', "arrival_s,a\n{0},1"])
def test_native_arrivals_are_exact_and_not_shifted(tmp_path: Path, text: str, form: str) -> None:
    from decimal import Decimal

    traffic = read_traffic(written(tmp_path, form.format(text)))
    assert int(traffic.arrival_ns[0]) == int(Decimal(text) * 10**9)


def test_native_parquet_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = {"arrival_s": [0.5, 0.25], "tokens": [1, None], "payload": [{"a": 1}, None], "p": [float("nan"), 2.0]}
    pq.write_table(pa.table(table), path)
    traffic = read_traffic(path)
    assert traffic.arrival_ns.tolist() == [250_000_000, 500_000_000]
    assert traffic.request(0).features == {"p": 2.0}
    assert traffic.request(1).payload == {"a": 1}


def test_rows_out_of_order_are_sorted_stably_and_reported(tmp_path: Path) -> None:
    rows = [(2, "a"), (1, "b"), (2, "c"), (1, "d")]
    lines = "".join(json.dumps({"arrival_s": at, "id": name}) + "\n" for at, name in rows)
    traffic = read_traffic(written(tmp_path, lines))
    assert traffic.ids == ["b", "d", "a", "c"]
    assert traffic.metadata["out_of_order"] == 2


def test_generated_ids_do_not_collide_with_given_ones(tmp_path: Path) -> None:
    lines = '{"arrival_s": 0, "id": "r1"}\n{"arrival_s": 1}\n{"arrival_s": 2, "id": 7}\n'
    ids = read_traffic(written(tmp_path, lines)).ids
    assert ids[0] == "r1"
    assert ids[2] == "7"
    assert len(set(ids)) == 3


def test_bad_lines_are_skipped_counted_and_named(tmp_path: Path) -> None:
    lines = ['{"arrival_s": 0, "x": 2}', "oops", '{"arrival_s": -1, "x": 1}', '{"arrival_s": 3, "x": 0}']
    content = "\n".join(lines).encode() + b'\n{"arrival_s": 4, "x": 1, "id": "\xff"}\n'
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=":5: found byte 0xff"):
        read_traffic(path)
    traffic = read_traffic(path, mapping={"y": "1 / x"}, skip_bad_lines=True)
    assert traffic.arrival_ns.tolist() == [0]
    assert traffic.metadata["skipped_lines"] == 4
    assert [entry["line"] for entry in traffic.metadata["skipped"]] == [2, 3, 4, 5]
    assert "oops" in traffic.metadata["skipped"][0]["reason"]


def test_skipping_a_bad_first_line_still_knows_the_format(tmp_path: Path) -> None:
    path = written(tmp_path, "# recorded on Monday\n" + '{"arrival_s": 1}\n' * 3)
    assert len(read_traffic(path, skip_bad_lines=True)) == 3


def test_nothing_usable_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    path = written(tmp_path, '{"arrival_s": -1}\n{"arrival_s": -2}\n')
    with pytest.raises(InputError, match="no usable line among 2"):
        read_traffic(path, skip_bad_lines=True)


def test_a_mapping_derives_features_and_is_recorded(tmp_path: Path) -> None:
    path = written(tmp_path, '{"arrival_s": 0, "input_tokens": 7433}\n')
    mapping = {"tokens": "min(input_tokens / 16, 256)", "blocks": "round(tokens / 2)"}
    traffic = read_traffic(path, mapping=mapping)
    assert traffic.features["tokens"].tolist() == [256]
    assert traffic.features["blocks"].tolist() == [128]
    assert traffic.metadata["mapping"] == mapping
