"""A connection that speaks gRPC: one call at a time over HTTP/2, which the package ``h2`` reads and writes."""

from __future__ import annotations

import select
import time
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from latfix.runners.http_target.connection import Connection, Endpoint
from latfix.runners.http_target.grpc_messages import CODES
from latfix.runners.http_target.http_messages import AnswerReader, ProtocolError

#: How much of answers may be under way before it is acknowledged.
_WINDOW = 1 << 28
#: Of an answer so much is kept: what a model tells of itself is longer than an error's words.
_KEPT = 1 << 16
_NO_STATUS = 502
_SETTINGS = b"\x04"


class GrpcAnswer(AnswerReader):
    """Both directions of a connection's HTTP/2: requests go out as the server makes room, answers come in.

    :param scheme: ``http``, or ``https`` over TLS.
    :ivar status: the HTTP status that stands for gRPC's code; 200 where the call went well.
    :ivar body: of an error its words, else the beginning of the answer's message.
    """

    __slots__ = ("_answering", "_codes", "_h2", "_heard", "_rest", "_scheme", "_stream", "_terminated")

    def __init__(self, scheme: str) -> None:
        # What a server sends is measured, not judged: checks of headers cost more than reading them.
        self._h2 = H2Connection(
            H2Configuration(client_side=True, validate_inbound_headers=False, validate_outbound_headers=False)
        )
        told = {SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW, SettingCodes.ENABLE_PUSH: 0}
        self._h2.local_settings = Settings(client=True, initial_values=told)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        self._stream, self._scheme = 0, scheme
        self._heard = self._terminated = False
        super().__init__()

    def reset(self) -> None:
        """Begin the next call."""
        super().reset()
        self._answering, self._rest = False, memoryview(b"")
        self._codes: dict[str, str] = {}
        self.keep = not self._terminated

    @property
    def begun(self) -> bool:
        """Something of the answer is there; what HTTP/2 says of itself is none of it."""
        return self._answering

    @property
    def asked(self) -> bool:
        """All of the request has gone out."""
        return not self._rest

    def ask(self, request: bytes) -> None:
        """Send a request, as :func:`latfix.runners.http_target.http_messages.whole_request` makes it."""
        head, _, message = request.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        method, path, _ = first.split(" ")
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        host = next(value for name, value in pairs if name == "host")
        self._stream = self._h2.get_next_available_stream_id()
        own = [(":method", method), (":scheme", self._scheme), (":authority", host), (":path", path)]
        own.append(("te", "trailers"))
        dropped = ("host", "content-length", "connection", "accept")
        self._h2.send_headers(self._stream, own + [pair for pair in pairs if pair[0] not in dropped])
        self._rest = memoryview(message)
        self._pump()

    def to_send(self) -> bytes:
        """What is to go out now."""
        return self._h2.data_to_send()

    def feed(self, data: bytes, now_ns: int) -> bool:
        """Take what was received; true once the call has ended.

        :raises ProtocolError: it is no HTTP/2.
        """
        del now_ns
        self.received += len(data)
        # A server begins with its settings; other text would be taken for a frame that never ends.
        if not self._heard and data[3:4] not in (b"", _SETTINGS):
            raise ProtocolError(f"an answer that begins with {data[:24]!r}; expected gRPC (HTTP/2)")
        self._heard = True
        try:
            ended = [self._event(event) for event in self._h2.receive_data(data)]
            if not any(ended):
                self._pump()
                return False
            if self._rest:  # answered before all of the request was out: the rest is not wanted
                self._h2.reset_stream(self._stream, ErrorCodes.CANCEL)
        except H2Error as error:
            raise ProtocolError(f"what is no HTTP/2 ({error}); expected gRPC") from error
        self._judge()
        return True

    def closed(self) -> bool:
        """The server closed the connection: no call ends by that."""
        self.keep = False
        return False

    def _pump(self) -> None:
        """Send as much of the request as the server has room for."""
        while self._rest:
            room = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            part, self._rest = self._rest[:room], self._rest[room:]
            self._h2.send_data(self._stream, bytes(part), end_stream=not self._rest)

    def _event(self, event: Event) -> bool:
        """Whether the call has ended with an event."""
        if isinstance(event, ConnectionTerminated):
            self._terminated, self.keep = True, False
            return False
        if getattr(event, "stream_id", None) != self._stream:
            return False
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._answering = True
            for name, value in event.headers:
                self._codes[_text(name)] = _text(value)
        elif isinstance(event, DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if len(self.body) < _KEPT:
                self.body += event.data[: _KEPT - len(self.body)]
        elif isinstance(event, StreamReset):
            self._answering = True
            self._codes = {"grpc-status": "14", "grpc-message": f"the server reset the call ({event.error_code!s})"}
            return True
        return isinstance(event, StreamEnded)

    def _judge(self) -> None:
        told = self._codes.get("grpc-status", "")
        if told == "0":
            self.status = 200
            return
        if told.isdigit():
            name, self.status = CODES.get(int(told), (f"code {told}", 500))
            self.body = f"gRPC {name}: {unquote(self._codes.get('grpc-message', ''))}".encode()
            return
        status = self._codes.get(":status", "")
        self.status = int(status) if status.isdigit() and status != "200" else _NO_STATUS
        self.body = self.body or b"an answer without grpc-status"


class GrpcConnection(Connection):
    """A non-blocking connection whose answers are gRPC's."""

    __slots__ = ()
    answer: GrpcAnswer

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.answer = GrpcAnswer("http" if endpoint.tls is None else "https")

    def readable(self, now_ns: int) -> bool:
        """As of HTTP; what HTTP/2 has to say to it goes out."""
        done = super().readable(now_ns)
        if self.open:
            self._go_on()
        return done

    def _ready(self, now_ns: int) -> None:
        self.ready_ns = now_ns
        self.answer.ask(self.request)
        self._go_on()

    def _go_on(self) -> None:
        if more := self.answer.to_send():
            self._out = memoryview(bytes(self._out) + more)
            self._send()

    def _unasked(self, data: bytes) -> None:
        """Settings, pings and goodbyes come while nothing is asked."""
        self.answer.feed(data, 0)
        if not self.answer.keep:
            raise ConnectionResetError("closed by the server while idle")


def call(endpoint: Endpoint, request: bytes, timeout_s: float) -> bytes:
    """The message that answers one call, whatever it takes up to ``timeout_s``; empty where there is none."""
    connection, until = GrpcConnection(endpoint), time.monotonic() + timeout_s
    try:
        connection.begin(0, request, time.perf_counter_ns())
        while (left := until - time.monotonic()) > 0:
            writes = [connection.sock] if connection.wants_write else []
            reads, can_write, _ = select.select([connection.sock], writes, (), left)
            if can_write:
                connection.writable()
            if reads and connection.readable(time.perf_counter_ns()):
                return connection.answer.body[5:] if connection.answer.status == 200 else b""
    except (OSError, ProtocolError):
        return b""
    finally:
        connection.close()
    return b""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
