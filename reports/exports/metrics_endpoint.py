"""``/metrics`` over HTTP: the latest figures of ``latfix watch``, for Prometheus to scrape."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from latfix.errors import InputError

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_HOME = "127.0.0.1"
#: Seconds after which a silent client is disconnected.
_TIMEOUT_S = 5.0


class MetricsEndpoint(ThreadingHTTPServer):
    """Answers ``GET /metrics`` with :attr:`text`.

    :ivar text: the current figures.
    """

    daemon_threads = True
    text = "# EOF\n"

    def __init__(self, host: str, port: int) -> None:
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that went away; others print a traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: MetricsEndpoint

    def do_GET(self) -> None:
        """Send the figures; 404 for any other path."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is served")
            return
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal shows ``latfix watch``."""


@contextlib.contextmanager
def metrics_endpoint(where: str | None) -> Iterator[MetricsEndpoint | None]:
    """An endpoint for the duration of the block; ``None`` if ``where`` is.

    :param where: ``[HOST:]PORT``, by default on the loopback interface. Port 0 picks a free one.
    :raises InputError: the address cannot be bound.
    """
    if where is None:
        yield None
        return
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InputError(f"--metrics: found {where!r}; expected [HOST:]PORT, such as 9464")
    try:
        server = MetricsEndpoint(host.strip("[]") or _HOME, int(port))
    except (OSError, UnicodeError) as error:  # a name that is no host name
        raise InputError(f"--metrics: found {where}, which cannot be bound ({error})") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, name="latfix-metrics", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
