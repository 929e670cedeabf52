"""``/metrics`` over HTTP: the latest figures of a service that is being watched, for Prometheus to fetch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from latfix.errors import InputError

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_HOME = "127.0.0.1"
#: Seconds after which a client that says nothing is let go.
_PATIENCE_S = 5.0


class MetricsEndpoint(ThreadingHTTPServer):
    """Answers ``GET /metrics`` with :attr:`text`.

    :ivar text: what is told now.
    """

    daemon_threads = True
    text = "# EOF\n"


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: MetricsEndpoint

    def do_GET(self) -> None:
        """The figures, or that there is nothing else."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the watcher's."""


@contextlib.contextmanager
def metrics_endpoint(where: str | None) -> Iterator[MetricsEndpoint | None]:
    """An endpoint for as long as the block lasts; ``None`` without one.

    :param where: ``[HOST:]PORT``; of this machine only where no host is named. Port 0: any that is free.
    :raises InputError: nothing can listen there.
    """
    if where is None:
        yield None
        return
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InputError(f"--metrics: found {where!r}; expected [HOST:]PORT, such as 9464")
    try:
        server = MetricsEndpoint((host.strip("[]") or _HOME, int(port)), _Handler)
    except OSError as error:
        raise InputError(f"--metrics: found {where}, where nothing can listen ({error.strerror or error})") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, name="latfix-metrics", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
