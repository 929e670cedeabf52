"""One connection to the service: opens it, sends one request at a time, reads the answer, and stamps every step."""

from __future__ import annotations

import os
import socket
import ssl
import time
from dataclasses import dataclass

from latfix.runners.http_target.http_messages import AnswerReader, ProtocolError

_READ_AT_ONCE = 1 << 18
_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to connect.

    :param family: of the socket; ``place`` is its address.
    :param tls: how the server's certificate is checked; ``None`` without TLS.
    :param name: of the server, for its certificate.
    """

    family: int
    place: tuple[object, ...]
    tls: ssl.SSLContext | None
    name: str


class Connection:
    """A non-blocking connection.

    Stamps are on the clock of ``time.perf_counter_ns``; 0 before the event.

    :ivar slot: the request in progress; -1 if idle.
    :ivar begun_ns: the request was handed over; ``ready_ns`` the connection was open; ``sent_ns`` its last byte was
        passed to the system; ``first_ns`` the answer's first byte was received.
    :ivar wants_write: it waits to become writable.
    """

    __slots__ = (
        "_endpoint",
        "_out",
        "_shaking",
        "answer",
        "begun_ns",
        "first_ns",
        "fresh",
        "open",
        "ready_ns",
        "request",
        "sent_ns",
        "slot",
        "sock",
        "wants_write",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.sock: socket.socket = socket.socket(endpoint.family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = AnswerReader()
        self._out = memoryview(b"")
        self.open = self._shaking = False
        self.fresh = True
        self.wants_write = True
        self.request = b""
        self.slot = -1
        self.begun_ns = self.ready_ns = self.sent_ns = self.first_ns = 0

    @property
    def port(self) -> int:
        """Its own port; 0 if it never had one."""
        try:
            return int(self.sock.getsockname()[1])
        except OSError:
            return 0

    def begin(self, slot: int, request: bytes, now_ns: int) -> None:
        """Start a request, sent at once if the connection is open; an OSError if that fails."""
        self.slot, self.request, self.begun_ns = slot, request, now_ns
        self.ready_ns = self.sent_ns = self.first_ns = 0
        self.answer.reset()
        if self.open:
            self.fresh = False
            self._ready(now_ns)
            return
        try:
            self.sock.connect(self._endpoint.place)
        except BlockingIOError:
            return
        self._connected()

    def writable(self) -> None:
        """The socket is writable: go on connecting or sending; an OSError if the connection failed."""
        if self.open:
            self._send()
        elif self._shaking:
            self._shake()
        else:
            failure = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise OSError(failure, os.strerror(failure))
            self._connected()

    def readable(self, now_ns: int) -> bool:
        """Read available data. True once the answer is complete.

        :raises OSError: the connection failed, or was closed before the answer was complete.
        :raises ProtocolError: the answer is not HTTP.
        """
        if self._shaking:
            self._shake()
            return False
        if not self.open:
            return False
        while True:
            try:
                data = self.sock.recv(_READ_AT_ONCE)
            except (BlockingIOError, ssl.SSLWantReadError):
                return False
            except ssl.SSLWantWriteError:
                self.wants_write = True
                return False
            if not data:
                return self._closed()
            if self.slot < 0:
                self._received_idle(data)
            else:
                done = self.answer.feed(data, now_ns)
                if not self.first_ns and self.answer.begun:
                    self.first_ns = max(now_ns, self.sent_ns)
                if done:
                    return True
            if self._endpoint.tls is None and len(data) < _READ_AT_ONCE:
                return False

    def close(self) -> None:
        self.open = False
        self.sock.close()

    def _received_idle(self, data: bytes) -> None:
        """Handle data that arrives while no request is in progress."""
        del data
        raise ProtocolError("data without a request")

    def _closed(self) -> bool:
        self.open = False
        if self.slot < 0:
            raise ConnectionResetError("closed by the server while idle")
        if self.answer.closed():
            return True
        reused = "" if self.fresh else ", which had been kept alive"
        raise ConnectionResetError(f"the server closed the connection{reused} before the answer was complete")

    def _connected(self) -> None:
        tls = self._endpoint.tls
        if tls is None:
            self.open = True
            self._ready(_clock())
            return
        self.sock = tls.wrap_socket(self.sock, do_handshake_on_connect=False, server_hostname=self._endpoint.name)
        self._shaking = True
        self._shake()

    def _shake(self) -> None:
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.wants_write = False
            return
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return
        self._shaking, self.open = False, True
        self._ready(_clock())

    def _ready(self, now_ns: int) -> None:
        self.ready_ns = now_ns
        self._out = memoryview(self.request)
        self._send()

    def _send(self) -> None:
        while self._out:
            try:
                self._out = self._out[self.sock.send(self._out) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self.wants_write = True
                return
            except ssl.SSLWantReadError:
                self.wants_write = False
                return
        self.wants_write = False
        if not self.sent_ns and self.slot >= 0 and self.answer.request_sent:
            self.sent_ns = _clock()
