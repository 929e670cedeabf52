"""A service's own rows, found by the ids under which requests were sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latfix.errors import InputError
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.joined_requests import _read, _Sent
from latfix.traffic.sent_ids import sent_id, trace_of

RUN = "3f9c2a1b"
NAMES = ("r0", "a-b", "r-0")
SENT = _Sent(
    RUN,
    {sent_id(RUN, name): k for k, name in enumerate(NAMES)},
    {trace_of(RUN, name)[0]: k for k, name in enumerate(NAMES)},
)


@pytest.mark.parametrize("k", range(3))
def test_an_id_is_found_as_it_was_sent_within_another_and_as_a_trace(k: int) -> None:
    name, (trace, span) = sent_id(RUN, NAMES[k]), trace_of(RUN, NAMES[k])
    for text in (name, f"chatcmpl-{name}", f"cmpl-{name}-0", trace, trace.upper(), f"00-{trace}-{span}-01"):
        assert SENT.find(text) == k
    for text in ("", "r0", f"x{name}", NAMES[k], sent_id("another1", NAMES[k]), "f" * 32, "-", f"-{RUN}"):
        assert SENT.find(text) is None


def test_ids_differ_between_runs_and_are_safe_in_a_header() -> None:
    assert sent_id("one", "r0") != sent_id("two", "r0")
    assert trace_of("one", "r0") != trace_of("two", "r0")
    text = sent_id(RUN, "a b\nü" + 300 * "x")
    assert text.isascii() and text.isprintable() and " " not in text and text.endswith(f"-{RUN}")


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_column_that_has_the_ids_is_found_among_several(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": k, "trace_id": f"{k}", "ctx": {"request_id": sent_id(RUN, name)}, "duration_ms": 10 + k, "queue_ms": 4}
        for k, name in enumerate(NAMES)
    ]
    found, total, _ = _read(write(tmp_path / "log.jsonl", *rows, {**rows[0], "ctx": {}}), SENT, ReadOptions())
    assert total == 4
    assert {k: (one.whole_ns, one.parts_ns) for k, one in found.items()} == {
        k: ((10 + k) * 1_000_000, {"queue": 4_000_000, "compute": (6 + k) * 1_000_000}) for k in range(3)
    }


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_the_column_that_has_the_ids_may_have_any_name(tmp_path: Path, suffix: str) -> None:
    rows = [{"id": f"GET-{k}", "rid": rid, "duration_ms": 10 + k} for k, rid in enumerate(("x", sent_id(RUN, "a-b")))]
    log = write(tmp_path / "log.jsonl", *rows)
    if suffix == "csv":
        log = tmp_path / "log.csv"
        log.write_text("".join(",".join(map(str, row)) + "\n" for row in (rows[0], *(row.values() for row in rows))))
    found, total, _ = _read(log, SENT, ReadOptions())
    assert {k: one.whole_ns for k, one in found.items()} == {1: 11_000_000} and total == 2


def test_an_unread_column_is_named_and_the_rest_is_no_work(tmp_path: Path) -> None:
    row = {"request_id": sent_id(RUN, "r0"), "duration_ms": 10, "queue_ms": 1, "store_ms": 7}
    log = write(tmp_path / "log.jsonl", row)
    found, _, unread = _read(log, SENT, ReadOptions())
    assert found[0].parts_ns == {"queue": 1_000_000} and found[0].dependencies_ns == {}
    assert "Not read: store_ms" in unread and "--server-map store_ms=store_ms" in unread
    found, _, unread = _read(log, SENT, ReadOptions(mapping=("store_ms=store_ms",)))
    assert found[0].parts_ns == {"queue": 1_000_000, "compute": 2_000_000}
    assert found[0].dependencies_ns == {"store": 7_000_000} and not unread


def test_a_latency_alone_says_nothing_of_the_services_work(tmp_path: Path) -> None:
    row = {"request_id": sent_id(RUN, "r0"), "duration_ms": 10}
    (one,) = _read(write(tmp_path / "log.jsonl", row, {**row, "duration_ms": 3}), SENT, ReadOptions())[0].values()
    assert (one.whole_ns, one.parts_ns, one.dependencies_ns) == (10_000_000, {}, {})  # the longer of two attempts


def test_a_text_log_is_joined_by_a_pattern(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(f"POST /predict 200 0.031 {sent_id(RUN, 'a-b')}\nGET /health 200 0.001 -\n", encoding="utf-8")
    pattern = r"\S+ (?P<path>\S+) (?P<status>\d+) (?P<latency_s>\S+) (?P<id>\S+)"
    found, total, _ = _read(log, SENT, ReadOptions(pattern=pattern))
    assert {k: one.whole_ns for k, one in found.items()} == {1: 31_000_000}
    assert total == 2


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"duration_ms": 1, "time": 5}, "found no ids of requests"),
        ({"duration_ms": 1, "request_id": "GET-17"}, "ids such as 'GET-17'"),
        ({"request_id": sent_id(RUN, "r0")}, "latency"),
    ],
)
def test_what_cannot_be_joined_is_one_line(tmp_path: Path, row: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        _read(write(tmp_path / "log.jsonl", row), SENT, ReadOptions())
    assert "\n" not in str(error.value)
