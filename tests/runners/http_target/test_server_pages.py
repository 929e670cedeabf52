"""Pages of a service besides its answers, from servers of a few lines, and whether it was watched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from latfix.runners.http_target.address import Trust, parse_address
from latfix.runners.http_target.http_session import find_metrics
from latfix.runners.http_target.replay_main import _watch_lines


def _serve(stack: ExitStack, get: Callable[[BaseHTTPRequestHandler], None]) -> str:
    handler = type("Handler", (BaseHTTPRequestHandler,), {"do_GET": get, "log_message": lambda *_: None})
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


def test_a_watch_that_ended_early_is_named() -> None:
    job = {"pid": 7, "metrics": None}
    assert "ended early" in _watch_lines(job, {})["watch"]
    assert "every 5 ms" in _watch_lines(job, {"process": "x", "cpu_ns": 1})["process"]
