"""A gRPC connection: one call at a time over HTTP/2, encoded by the package ``h2``."""

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

#: Unacknowledged bytes of answers that may be in flight.
_WINDOW = 1 << 28
#: Kept bytes of an answer: a model's metadata is longer than an error message.
_KEPT = 1 << 16
_NO_STATUS = 502
_SETTINGS = b"\x04"


class GrpcAnswer(AnswerReader):
    """Both directions of a connection's HTTP/2: sends requests as the server allows, reads answers.

    :param scheme: ``http``, or ``https`` over TLS.
    :ivar status: the HTTP status that corresponds to gRPC's code; 200 if the call succeeded.
    :ivar body: the error message, or the beginning of the answer's message.
    """

    __slots__ = ("_answering", "_codes", "_h2", "_received_any", "_rest", "_scheme", "_stream", "_terminated")

    def __init__(self, scheme: str) -> None:
        # Headers are not validated: that costs more than reading them.
        self._h2 = H2Connection(
            H2Configuration(client_side=True, validate_inbound_headers=False, validate_outbound_headers=False)
        )
        initial = {SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW, SettingCodes.ENABLE_PUSH: 0}
        self._h2.local_settings = Settings(client=True, initial_values=initial)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        self._stream, self._scheme = 0, scheme
        self._received_any = self._terminated = False
        super().__init__()

    def reset(self) -> None:
        """Prepare for the next call."""
        super().reset()
        self._answering, self._rest = False, memoryview(b"")
        self._codes: dict[str, str] = {}
        self.keep = not self._terminated

    @property
    def begun(self) -> bool:
        """True if part of the answer has arrived; HTTP/2 control frames do not count."""
        return self._answering

    @property
    def request_sent(self) -> bool:
        """True if the whole request was sent."""
        return not self._rest

    def send_request(self, request: bytes) -> None:
        """Send a request in the form of :func:`latfix.runners.http_target.http_messages.whole_request`."""
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
        """The bytes to send now."""
        return self._h2.data_to_send()

    def feed(self, data: bytes, now_ns: int) -> bool:
        """Process received data. True once the call has ended; a ProtocolError if it is not HTTP/2."""
        del now_ns
        self.received += len(data)
        # A server starts with its settings frame; other text would be parsed as a frame that never ends.
        if not self._received_any and data[3:4] not in (b"", _SETTINGS):
            raise ProtocolError(f"an answer that begins with {data[:24]!r}; expected gRPC (HTTP/2)")
        self._received_any = True
        try:
            ended = [self._event(event) for event in self._h2.receive_data(data)]
            if not any(ended):
                self._pump()
                return False
            if self._rest:  # answered before the whole request was sent: cancel the remainder
                self._h2.reset_stream(self._stream, ErrorCodes.CANCEL)
        except H2Error as error:
            raise ProtocolError(f"invalid HTTP/2 ({error}); expected gRPC") from error
        self._judge()
        return True

    def closed(self) -> bool:
        """The server closed the connection, which does not complete a call."""
        self.keep = False
        return False

    def _pump(self) -> None:
        """Send as much of the request as the server's window allows."""
        while self._rest:
            room = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            part, self._rest = self._rest[:room], self._rest[room:]
            self._h2.send_data(self._stream, bytes(part), end_stream=not self._rest)

    def _event(self, event: Event) -> bool:
        """Process an event. True if it ends the call."""
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
        code = self._codes.get("grpc-status", "")
        if code == "0":
            self.status = 200
            return
        if code.isdigit():
            name, self.status = CODES.get(int(code), (f"code {code}", 500))
            self.body = f"gRPC {name}: {unquote(self._codes.get('grpc-message', ''))}".encode()
            return
        status = self._codes.get(":status", "")
        self.status = int(status) if status.isdigit() and status != "200" else _NO_STATUS
        self.body = self.body or b"an answer without grpc-status"


class GrpcConnection(Connection):
    """A non-blocking connection that speaks gRPC."""

    __slots__ = ()
    answer: GrpcAnswer

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.answer = GrpcAnswer("http" if endpoint.tls is None else "https")

    def readable(self, now_ns: int) -> bool:
        """Like HTTP's, and sends HTTP/2's replies."""
        done = super().readable(now_ns)
        if self.open:
            self._flush()
        return done

    def _ready(self, now_ns: int) -> None:
        self.ready_ns = now_ns
        self.answer.send_request(self.request)
        self._flush()

    def _flush(self) -> None:
        if more := self.answer.to_send():
            self._out = memoryview(bytes(self._out) + more)
            self._send()

    def _received_idle(self, data: bytes) -> None:
        """Process settings, pings and goodbyes that arrive between calls."""
        self.answer.feed(data, 0)
        if not self.answer.keep:
            raise ConnectionResetError("closed by the server while idle")


def call(endpoint: Endpoint, request: bytes, timeout_s: float) -> bytes:
    """The message that answers one call, within ``timeout_s``; empty if there is none."""
    connection, until = GrpcConnection(endpoint), time.monotonic() + timeout_s
    try:
        connection.begin(0, request, time.perf_counter_ns())
        while (remaining := until - time.monotonic()) > 0:
            writes = [connection.sock] if connection.wants_write else []
            reads, can_write, _ = select.select([connection.sock], writes, (), remaining)
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
