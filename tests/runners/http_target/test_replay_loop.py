"""Replays over HTTP against servers of a few lines, each on a thread: outcomes of all forms of answers."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.http_target.connection import Connection, Endpoint
from latfix.runners.http_target.http_messages import request_head, whole_request
from latfix.runners.http_target.replay_loop import ReplayLoop
from latfix.runners.http_target.request_log import RequestLog
from latfix.stages import Status

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"


def _read(sock: socket.socket) -> tuple[bytes, int]:
    """The head of the next request, and the missing length of its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := sock.recv(1 << 16)):
            return b"", 0
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    return head, int(head.rpartition(b"Content-Length: ")[2].split()[0]) - len(body)


def replayed(
    tmp_path: Path,
    serve: Callable[[socket.socket, int], None],
    bodies: list[bytes],
    *,
    gap_ns: int = 0,
    timeout_ns: int = 3_000_000_000,
    report: Callable[[int, int, bool], None] = lambda *_: None,
    stop: threading.Event | None = None,
) -> tuple[Any, list[str]]:
    """Rows of the requests in order, and the messages of those that failed.

    :param serve: serves a connection; called with its number.
    """
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        for number in range(len(bodies)):
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=hold, args=(sock, number), daemon=True).start()

    def hold(sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(ConnectionError):  # a client that gave up resets its connection
            serve(sock, number)

    threading.Thread(target=accept, daemon=True).start()
    (tmp_path / "segments").mkdir()
    place = listening.getsockname()
    head = request_head("POST", "/", f"127.0.0.1:{place[1]}", {}, keep_alive=True)
    start = time.perf_counter_ns() + 10_000_000
    log = RequestLog(tmp_path, start)
    loop = ReplayLoop(
        Endpoint(family=socket.AF_INET, place=place, tls=None, name="127.0.0.1"),
        lambda k: whole_request(head, str(k), "t", bodies[k]),
        log,
        stop or threading.Event(),
        timeout_ns=timeout_ns,
        keep_alive=True,
        report=report,
    )
    loop.prepare(len(bodies))
    loop.schedule([start + k * gap_ns for k in range(len(bodies))])
    loop.run()
    log.close()
    listening.close()
    rows = np.fromfile(tmp_path / "segments" / "requests.bin", dtype=REQUEST_DTYPE)
    events = [json.loads(line) for line in (tmp_path / "segments" / "events.jsonl").read_text().splitlines()]
    return np.sort(rows, order="index"), [event[6]["message"] for event in events if event[2] == "error"]


def _answering(answer: bytes) -> Callable[[socket.socket, int], None]:
    def serve(sock: socket.socket, _: int) -> None:
        _read(sock)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)
        _read(sock)

    return serve


def test_an_answer_before_the_request_was_sent_takes_no_other_request_with_it(tmp_path: Path) -> None:
    def serve(sock: socket.socket, _: int) -> None:
        while (received := _read(sock))[0]:
            sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            time.sleep(0.4)
            left = received[1]
            while left > 0 and (more := sock.recv(min(left, 1 << 20))):
                left -= len(more)

    rows, _ = replayed(tmp_path, serve, [b"x" * (32 << 20), b"{}"], gap_ns=200_000_000)
    assert rows["http_status"].tolist() == [413, 413]


LAST = b'data: {"choices": [{"text": "b"}], "usage": {"completion_tokens": 7}}'


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"", b': hi\n\ndata: {"choices": [{"text": "a"}]}\n\n' + LAST),
        (b"", b'event: x\r\ndata:{"choices": [{"text": "a"}]}\r\n\r\n' + LAST + b"\r\n\r\ndata: [DONE]"),
        (b"Content-Encoding: gzip\r\n", gzip.compress(b'data: {"choices": [{"text": "a"}]}\n\n' + LAST)),
    ],
    ids=["no last line", "crlf", "gzip"],
)
def test_streams_of_every_form_have_their_parts(tmp_path: Path, coding: bytes, body: bytes) -> None:
    rows, errors = replayed(tmp_path, _answering(STREAM + coding + b"\r\n" + body), [b"{}"])
    assert (errors, rows["chunks"].tolist(), rows["output_tokens"].tolist()) == ([], [2], [7])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /predict/?key=secret\r\nContent-Length: 0\r\n\r\n",
            "HTTP 307 Temporary Redirect: to /predict/",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
            + gzip.compress(b"no x"),
            "HTTP 400 Bad Request: no x",
        ),
        (
            STREAM + b'\r\ndata: {"object": "error", "message": "too long", "code": 400}\n\n',
            "the stream reported an error: too long",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
            "found a chunk of size b'-5'",
        ),
        (b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0d", "found an answer in HTTP/2; expected HTTP/1.1, or grpc://"),
    ],
    ids=["redirect", "gzip", "error object", "chunk size", "http2"],
)
def test_an_error_answer_is_described(tmp_path: Path, answer: bytes, expected: str) -> None:
    rows, (error,) = replayed(tmp_path, _answering(answer), [b"{}"])
    assert rows["status"].tolist() == [Status.ERROR]
    assert expected in error
    assert "secret" not in error


def test_a_body_that_cannot_be_unpacked_is_an_answer_all_the_same(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\nContent-Length: 2\r\n\r\n{}"
    assert replayed(tmp_path, _answering(answer), [b"{}"])[0]["status"].tolist() == [Status.OK]


def test_an_idle_connection_is_not_polled_for_writing(tmp_path: Path) -> None:
    """The request's last byte was sent, and its answer was there at once: else the loop would never sleep again."""

    class Done(Connection):
        def writable(self) -> None:
            self.wants_write, self.open, self.sent_ns = False, True, 1

        def readable(self, _: int) -> bool:
            return self.answer.feed(OK, 1)

    (tmp_path / "segments").mkdir()
    log, endpoint = RequestLog(tmp_path, 0), Endpoint(family=socket.AF_INET, place=(), tls=None, name="")
    loop = ReplayLoop(endpoint, bytes, log, threading.Event(), timeout_ns=9, keep_alive=True, report=lambda *_: None)
    loop.schedule([0])
    connection = loop._carriers[0] = Done(endpoint)
    connection.slot = 0
    loop._selector.register(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
    loop._serve(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, 5)
    assert loop._idle == [connection]
    assert loop._selector.get_key(connection.sock).events == selectors.EVENT_READ
    connection.close()
    log.close()


@pytest.mark.parametrize("late_s", [0.2, 60.0], ids=["late", "never"])
def test_a_timeout_holds_however_dense_the_traffic(tmp_path: Path, late_s: float) -> None:
    over = threading.Event()

    def serve(sock: socket.socket, number: int) -> None:
        while _read(sock)[0]:
            if not number:
                over.wait(late_s)
            sock.sendall(OK)

    rows, _ = replayed(tmp_path, serve, [b"{}"] * 1500, gap_ns=400_000, timeout_ns=100_000_000)
    over.set()
    assert rows["status"][0] == Status.TIMEOUT
    assert rows["latency_ns"][0] < 1499 * 400_000, "answers are read between sends, not only at the end"
    assert (rows["status"] == Status.OK).any()


def test_progress_is_reported_however_dense_the_traffic(tmp_path: Path) -> None:
    """A replay that reports nothing for five minutes counts as hung."""
    midway: list[int] = []

    def report(ended: int, _: int, sent_all: bool) -> None:
        if ended and not sent_all:
            midway.append(ended)

    def serve(sock: socket.socket, _: int) -> None:
        while _read(sock)[0]:
            sock.sendall(OK)

    replayed(tmp_path, serve, [b"{}"] * 1500, gap_ns=400_000, report=report)
    assert midway


def test_requests_in_flight_when_it_is_interrupted_are_unfinished(tmp_path: Path) -> None:
    """Else a service that answers no more would look as quick as before."""
    stop, over, numbers = threading.Event(), threading.Event(), itertools.count()

    def serve(sock: socket.socket, _: int) -> None:
        while _read(sock)[0]:
            if next(numbers):
                stop.set()
                over.wait(60)
            sock.sendall(OK)

    rows, errors = replayed(tmp_path, serve, [b"{}"] * 2, gap_ns=200_000_000, stop=stop)
    over.set()
    assert rows["status"].tolist() == [Status.OK, Status.UNFINISHED] and not errors
    assert (rows["latency_ns"] > 0).all() and rows["index"].tolist() == [0, 1]
