"""Pages of a service besides its answers, from servers of a few lines, and whether it was watched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from latfix.cli.app import main
from latfix.runners.http_target.address import Trust, parse_address
from latfix.runners.http_target.http_session import find_metrics
from latfix.runners.http_target.replay_main import _watch_lines

Do = Callable[[BaseHTTPRequestHandler], None]


def _serve(stack: ExitStack, get: Do, **other: Do) -> str:
    methods = {"do_GET": get, "log_message": lambda *_: None, **other}
    handler = type("Handler", (BaseHTTPRequestHandler,), methods)
    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_address[1]}/metrics"


def test_a_redirect_to_another_host_gets_none_of_the_services_keys() -> None:
    seen: list[str | None] = []

    def metrics(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["X-Key"])
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"requests_total 3\n")

    def moved(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", elsewhere)
        handler.end_headers()

    with ExitStack() as stack:
        elsewhere = _serve(stack, metrics)
        for place in (elsewhere, _serve(stack, moved)):
            assert find_metrics(parse_address(place), {"X-Key": "secret"}, None, Trust()) == place
    assert seen == ["secret", None]


def test_values_of_a_request_are_part_of_its_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, str | None]] = []

    def top(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/users/"):
            seen.append((handler.path, handler.headers["Content-Length"]))
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def post(handler: BaseHTTPRequestHandler) -> None:
        handler.send_error(405)

    def put(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", "/v2")
        handler.end_headers()

    traffic = tmp_path / "t.jsonl"
    rows = ('{"arrival_s": 0.0, "user": "a/b ?ü", "k": 5}', '{"arrival_s": 0.1, "user": "x", "k": 7}')
    traffic.write_text("\n".join(rows), encoding="utf-8")
    with ExitStack() as stack:
        url = _serve(stack, top, do_POST=post, do_PUT=put).replace("/metrics", "/users/{user}/top?k={k}&of=100%25")
        command = ["diagnose", url, "--traffic", str(traffic), "--metrics", "off"]
        assert main([*command, "--method", "GET", "--out", str(tmp_path / "run")]) == 0
        assert sorted(seen) == [
            ("/users/a%2Fb%20%3F%C3%BC/top?k=5&of=100%25", "0"),
            ("/users/x/top?k=7&of=100%25", "0"),
        ]
        capsys.readouterr()
        assert main([*command, "--out", str(tmp_path / "post")]) == 2
        assert "HTTP 405" in (words := capsys.readouterr().err) and "name the method with --method" in words
        assert main([*command, "--method", "PUT", "--out", str(tmp_path / "put")]) == 2
        assert "HTTP 307 Temporary Redirect: to /v2; give that address" in capsys.readouterr().err
        command[1] = url.replace("{k}", "{size}")
        assert main([*command, "--out", str(tmp_path / "none")]) == 2
        assert "the URL: found {size}, which the traffic does not have" in capsys.readouterr().err


def test_a_watch_that_ended_early_is_named() -> None:
    job = {"pid": 7, "metrics": None}
    assert "ended early" in _watch_lines(job, {})["watch"]
    assert "every 5 ms" in _watch_lines(job, {"process": "x", "cpu_ns": 1})["process"]
