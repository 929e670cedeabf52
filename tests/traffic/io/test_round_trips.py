"""Whatever a file holds, reading it gives traffic or an input error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.summary import describe

QUICK = settings(max_examples=80)

KEYS = st.sampled_from(
    ["arrival_s", "id", "priority", "session", "deadline_ms", "payload", "timestamp", "input_length", "output_length"]
) | st.text(max_size=4)
NUMBERS = st.integers() | st.floats() | st.integers(-(10**400), 10**400)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6) | st.just("high"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5).map(json.dumps)
LIKELY = st.fixed_dictionaries({"arrival_s": st.floats(0, 1e6) | VALUES}, optional={"id": VALUES, "x": VALUES}).map(
    json.dumps
)
HEADERS = st.sampled_from(
    [
        "arrival_s,x",
        "arrival_s,payload",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "Timestamp,Model,Request tokens,Response tokens",
        "timestamp,input_length,output_length,hash_ids",
    ]
)
CELLS = st.sampled_from(
    ["0", "1.5", "-1", "nan", "1e999", '"', '"a,b"', "", "2023-11-16 18:17:03.9799600", "é", "[1]"]
)


def sound_or_refused(path: Path, content: bytes, skip: bool) -> Traffic | None:
    path.write_bytes(content)
    try:
        traffic = read_traffic(path, skip_bad_lines=skip)
    except InputError as error:
        assert "\n" not in error.message
        return None
    assert len(traffic) == len(traffic.ids) == len(set(traffic.ids)) == len(traffic.payloads)
    assert np.all(np.diff(traffic.arrival_ns) >= 0)
    assert traffic.arrival_ns[0] >= 0
    json.dumps([traffic.request(index).payload for index in range(len(traffic))], allow_nan=False)
    json.dumps(describe(traffic).to_json(), allow_nan=False)
    return traffic


@QUICK
@given(content=st.binary(max_size=200), skip=st.booleans())
def test_any_bytes(tmp_path: Path, content: bytes, skip: bool) -> None:
    sound_or_refused(tmp_path / "t", content, skip)


@QUICK
@given(head=st.sampled_from([b"PAR1", b"\x1f\x8b\x08", b"{", b"arrival_s\n"]), content=st.binary(max_size=80))
def test_any_bytes_after_a_known_prefix(tmp_path: Path, head: bytes, content: bytes) -> None:
    sound_or_refused(tmp_path / "t", head + content, True)


@QUICK
@given(lines=st.lists(OBJECTS | LIKELY | st.text(max_size=12), min_size=1, max_size=6), skip=st.booleans())
def test_any_json_lines(tmp_path: Path, lines: list[str], skip: bool) -> None:
    sound_or_refused(tmp_path / "t", "\n".join(lines).encode(errors="surrogatepass"), skip)


@QUICK
@given(header=HEADERS, rows=st.lists(st.lists(CELLS, min_size=1, max_size=5), max_size=6), skip=st.booleans())
def test_any_csv(tmp_path: Path, header: str, rows: list[list[str]], skip: bool) -> None:
    lines = [header, *(",".join(row) for row in rows)]
    sound_or_refused(tmp_path / "t", "\n".join(lines).encode(), skip)


@QUICK
@given(lines=st.lists(LIKELY, min_size=1, max_size=6))
def test_skipping_reads_the_good_lines_and_no_others(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "t"
    good = 0
    for line in lines:
        good += sound_or_refused(path, line.encode(), False) is not None
    traffic = sound_or_refused(path, "\n".join(lines).encode(), True)
    read = 0 if traffic is None else len(traffic)
    # A line that is good alone can be bad among others: an id twice, a number where others have texts.
    assert read <= good
    if traffic is not None:
        assert traffic.metadata["skipped_lines"] == len(lines) - read


def test_a_file_cut_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    whole = b'{"arrival_s": 0.5, "id": "a", "payload": {"t": "\xc3\xa9"}}\n{"arrival_s": 1e0}\n'
    outcomes = {sound_or_refused(tmp_path / "t", whole[:end], False) is None for end in range(len(whole))}
    assert outcomes == {True, False}
    with pytest.raises(InputError):
        read_traffic(tmp_path / "missing")
