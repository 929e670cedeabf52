"""Answers are parsed the same for any split of the data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.runners.http_target.address import parse_address, parse_headers
from latfix.runners.http_target.http_messages import AnswerReader, ProtocolError, StreamedOutput, request_head
from latfix.runners.http_target.request_bodies import models_path, protocol_of

BODY = b'{"ok": 1}'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\n" + BODY[:4] + b"\r\n5\r\n" + BODY[4:]
CHUNKED += b"\r\n0\r\nTrailer: x\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


@given(st.sampled_from([PLAIN, CHUNKED, CONTINUED]), st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_an_answer_is_complete_at_its_last_byte_and_not_before(answer: bytes, cuts: list[int]) -> None:
    reader, at, done = AnswerReader(), 0, False
    for cut in [*cuts, len(answer)]:
        piece = answer[at : at + cut]
        if piece:
            assert not done
            done = reader.feed(piece, 1)
        at += cut
    assert done
    assert (reader.status, reader.body, reader.keep, reader.received) == (200, BODY, True, len(answer))


def test_a_connection_is_kept_as_the_server_allows() -> None:
    for head, keep in ((b"Connection: close", False), (b"Connection: keep-alive", True), (b"X: y", True)):
        reader = AnswerReader()
        assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + head + b"\r\n\r\n", 1)
        assert reader.keep is keep
    reader = AnswerReader()
    assert not reader.feed(b"HTTP/1.0 200 OK\r\n\r\nabc", 1)
    assert reader.closed()
    assert reader.body == b"abc"


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"\x15\x03\x01", b"HTTP/1.1 abc\r\n\r\n"])
def test_an_answer_that_is_not_http_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="HTTP/1"):
        AnswerReader().feed(data, 1)


def test_parts_of_a_stream_are_those_with_output() -> None:
    stream = StreamedOutput()
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"text": "b"}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 5}},
    ]
    for k, event in enumerate(events):
        data = b"data: " + json.dumps(event).encode() + b"\r\n\r\n"
        stream.feed(data[:9], k)
        stream.feed(data[9:], k)
    stream.feed(b"data: [DONE]\n\n", 9)
    assert (stream.at_ns, stream.tokens) == ([1, 2], 5)


@pytest.mark.parametrize(
    ("events", "parts", "tokens"),
    [
        (
            [
                {"model": "m", "response": "a", "done": False},
                {"model": "m", "message": {"role": "assistant", "content": "b"}, "done": False},
                {"model": "m", "response": "", "done": True, "eval_count": 7},
            ],
            [0, 1],
            7,
        ),
        (
            [
                {"type": "message_start", "message": {"usage": {"output_tokens": 1}}},
                {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
                {"type": "ping"},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
                {"type": "message_stop"},
            ],
            [3, 4],
            9,
        ),
        (
            [
                {"type": "response.created", "response": {"usage": None}},
                {"type": "response.output_text.delta", "delta": "a"},
                {"type": "response.completed", "response": {"usage": {"output_tokens": 4}}},
            ],
            [1],
            4,
        ),
    ],
    ids=["ollama", "messages", "responses"],
)
@pytest.mark.parametrize("kind", ["application/x-ndjson; charset=utf-8", "text/event-stream"])
def test_streams_of_other_servers(events: list[dict[str, object]], parts: list[int], tokens: int, kind: str) -> None:
    reader, prefix = AnswerReader(), b"" if "json" in kind else b"data: "
    reader.feed(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode(), 0)
    for k, event in enumerate(events):
        reader.feed(prefix + json.dumps(event).encode() + b"\n", k)
    assert reader.events is not None
    assert (reader.events.at_ns, reader.events.tokens) == (parts, tokens)


def test_addresses_hide_what_is_secret_in_them() -> None:
    address = parse_address("https://me:secret@host:8443/v1/x?key=abc&n=1")
    assert address.shown == "https://host:8443/v1/x?key=…&n=…"
    assert address.target == "/v1/x?key=abc&n=1"
    headers = parse_headers(['X-Key: "$TOKEN"', "X-Other: ${TOKEN}1"], address, {"TOKEN": "t"})
    assert headers == {"Authorization": "Basic bWU6c2VjcmV0", "X-Key": '"t"', "X-Other": "t1"}
    head = request_head("POST", address.target, address.host_header, headers, keep_alive=False)
    assert b"Host: host:8443\r\n" in head
    assert b"Connection: close\r\n" in head
    assert parse_address("http://größe.example/").host_header == "xn--grsse-kua.example"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gopher://host:8001", "protocol .gopher.; expected http or https, or grpc"),
        ("ftp://host/x", "protocol 'ftp'"),
        ("http:///x", "no host"),
        ("http://host:99999/", "[Pp]ort"),
        ("http://host:0/", "port 0"),
        ("http://[::1/", "Invalid IPv6"),
        ("http://a..b/", "empty"),
    ],
)
def test_bad_addresses_are_refused_in_a_line(text: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        parse_address(text)


@pytest.mark.parametrize("option", ["no colon", "Host: x", "A b: c", "X: $NOWHERE_SET", "X: a\nb"])
def test_bad_headers_are_refused_without_their_values(option: str) -> None:
    with pytest.raises(InputError, match="--header"):
        parse_headers([option], parse_address("http://h/"), {})


def test_protocols_are_recognized_by_the_path() -> None:
    paths = ("/v1/chat/completions", "/v1/completions", "/v2/models/m/infer", "/predict")
    assert [protocol_of(path) for path in paths] == ["chat", "completions", "kserve", "json"]
    assert [models_path(path) for path in paths] == ["/v1/models", "/v1/models", "/v2/models/m", None]
