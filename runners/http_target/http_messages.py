"""HTTP/1.1 for a client with one request at a time (RFC 9112): requests as bytes, answers parsed incrementally.

Written by hand because a library costs the client several times as much per request
(``benchmarks/replay/http_replay.py``).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

#: Maximum length of an answer's head, and of a line of streamed events.
_LONGEST_HEAD, _LONGEST_EVENT = 1 << 17, 1 << 24
#: Makes zlib detect the format from the first bytes.
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
#: Kept bytes of an answer, to quote it if it is an error.
_KEPT = 2048
#: Content types of streamed output, and the prefix of their lines.
_STREAMED = {b"text/event-stream": b"data:"} | dict.fromkeys(
    (b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/jsonlines"), b""
)
#: Keys of text for the client in events.
_TEXTS = ("content", "text", "reasoning_content", "reasoning", "thinking", "partial_json", "tool_calls", "response")
#: Event types without output, in Anthropic's messages.
_FRAMES = {"ping", *(f"message_{word}" for word in ("start", "delta", "stop"))}
_FRAMES |= {"content_block_start", "content_block_stop"}
_END = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"\s*([0-9A-Fa-f]{1,16})\s*")
#: The first frame of HTTP/2, of settings, after its length (RFC 9113).
_SETTINGS = b"\x04\x00\x00\x00\x00\x00"


class ProtocolError(Exception):
    """The answer is not HTTP/1.1."""


def request_head(method: str, target: str, host: str, headers: Mapping[str, str], *, keep_alive: bool) -> bytes:
    """The part of a request's head that all requests share, without the final blank line."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    present = {name.lower() for name in headers}
    usual = {"User-Agent": "latfix", "Accept": "*/*", "Content-Type": "application/json"}
    lines += [f"{name}: {value}" for name, value in usual.items() if name.lower() not in present]
    if not keep_alive:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("ascii") + b"\r\n"


def whole_request(head: bytes, request_id: str, trace: str, body: bytes) -> bytes:
    """The bytes of a request; ``trace`` is its ``traceparent`` (W3C Trace Context)."""
    own = f"X-Request-Id: {request_id}\r\ntraceparent: {trace}\r\nContent-Length: {len(body)}\r\n\r\n"
    return b"".join((head, own.encode("ascii"), body))


class AnswerReader:
    """Parses the answers that a connection receives, one after the other.

    :ivar status: of the current answer; 0 before its head is complete.
    :ivar keep: the connection can carry another request.
    :ivar body: the first bytes of the body.
    :ivar received: number of bytes, head and body.
    :ivar events: parser of streamed output; ``None`` if the answer is not streamed.
    """

    __slots__ = ("_chunk", "_held", "_left", "_mode", "_unpacked", "body", "events", "keep", "received", "status")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Prepare for the next answer."""
        self._held = b""
        self._mode = "head"
        self._left = 0
        self._chunk = ""
        self._unpacked: Callable[[bytes, int], bytes] | None = None
        self.status, self.keep, self.received = 0, True, 0
        self.body = b""
        self.events: StreamedOutput | None = None

    @property
    def begun(self) -> bool:
        """True if part of the answer has arrived."""
        return self.received > 0

    @property
    def request_sent(self) -> bool:
        """True if the whole request was passed to the connection."""
        return True

    def feed(self, data: bytes, now_ns: int) -> bool:
        """Process received data. True once the answer is complete; a ProtocolError if it is not HTTP/1.1."""
        self.received += len(data)
        if self._mode == "head":
            self._held += data
            if not self._read_head():
                return self._mode == "done"
            data, self._held = self._held, b""
        if self._mode == "length":
            self._take(data[: self._left], now_ns)
            self._left -= len(data)
            if self._left < 0:
                self.keep = False  # more than announced: the next answer's start would be unknown
            return self._left <= 0
        if self._mode == "chunked":
            return self._read_chunks(data, now_ns)
        if self._mode == "until close":
            self._take(data, now_ns)
        return self._mode == "done"

    def closed(self) -> bool:
        """The server closed the connection. True if that properly ends the answer."""
        self.keep = False
        return self._mode == "until close"

    def _read_head(self) -> bool:
        """Parse the head as far as it has arrived. True if a body follows."""
        while True:
            end = self._held.find(_END)
            if end < 0:
                if len(self._held) > _LONGEST_HEAD or not b"HTTP/1.".startswith(self._held[:7]):
                    if self._held[3:9] == _SETTINGS:
                        raise ProtocolError("an answer in HTTP/2; expected HTTP/1.1, or grpc:// for KServe v2")
                    raise ProtocolError(f"an answer that begins with {self._held[:24]!r}; expected HTTP/1.1")
                return False
            head, self._held = self._held[:end], self._held[end + 4 :]
            status = self._status(head)
            if status >= 200 or status == 101:
                break
        self._begin_body(head, status)
        return self._mode != "done"

    @staticmethod
    def _status(head: bytes) -> int:
        words = head[:64].split(None, 2)
        if not head.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise ProtocolError(f"an answer that begins with {head[:24]!r}; expected HTTP/1.1")
        return int(words[1])

    def _begin_body(self, head: bytes, status: int) -> None:
        fields = _fields(head)
        self.status = status
        connection = fields.get(b"connection", b"").lower()
        self.keep = b"close" not in connection and (head.startswith(b"HTTP/1.1") or b"keep-alive" in connection)
        prefix = _STREAMED.get(fields.get(b"content-type", b"").lower().partition(b";")[0].strip())
        if prefix is not None:
            self.events = StreamedOutput(prefix)
        if fields.get(b"content-encoding", b"").lower() in (b"gzip", b"x-gzip", b"deflate"):
            self._unpacked = zlib.decompressobj(_GZIP_OR_ZLIB).decompress
        if 300 <= status < 400 and b"location" in fields:
            self.body = b"to " + fields[b"location"].partition(b"?")[0]
        if status in (204, 304):
            self._mode = "done"
        elif b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            self._mode = "chunked"
        elif b"content-length" in fields:
            length = fields[b"content-length"]
            if not length.isdigit():
                raise ProtocolError(f"Content-Length {length[:24]!r}")
            self._left = int(length)
            self._mode = "length" if self._left else "done"
        else:
            self._mode, self.keep = "until close", False

    def _read_chunks(self, data: bytes, now_ns: int) -> bool:
        """Decode the chunked coding; trailers are skipped."""
        data = self._held + data
        at = 0
        while True:
            if self._left > 0:
                part = data[at : at + self._left]
                self._take(part, now_ns)
                self._left -= len(part)
                at += len(part)
                if self._left > 0:
                    break
                self._chunk = "end"
            if self._chunk == "end":  # the line break after a chunk's data
                if len(data) - at < 2:
                    break
                at, self._chunk = at + 2, ""
            line = data.find(b"\r\n", at)
            if line < 0:
                if len(data) - at > _LONGEST_HEAD:
                    raise ProtocolError("a chunk without a size")
                break
            text = data[at:line]
            at = line + 2
            if self._chunk == "trailers":
                if not text:
                    return True
                continue
            size = _CHUNK_SIZE.fullmatch(text.partition(b";")[0])
            if size is None:
                raise ProtocolError(f"a chunk of size {text[:24]!r}")
            self._left = int(size[1], 16)
            if self._left == 0:
                self._chunk = "trailers"
        self._held = data[at:]
        return False

    def _take(self, data: bytes, now_ns: int) -> None:
        if self._unpacked is not None and (self.events is not None or len(self.body) < _KEPT):
            try:
                data = self._unpacked(data, _LONGEST_EVENT)
            except zlib.error:  # unknown compression: only quotes and streams need the content
                self._unpacked = None
        if self.events is not None:
            self.events.feed(data, now_ns)
        if len(self.body) < _KEPT:
            self.body += data[: _KEPT - len(self.body)]


class StreamedOutput:
    """Times of the parts of streamed output: server-sent events, or lines of JSON.

    A part is an event whose JSON has text for the client, in the forms of OpenAI's chat, completions and responses,
    Anthropic's messages, Ollama, TGI and others. An event of an unknown form counts as a part.

    :param prefix: start of a line with an event.
    :ivar at_ns: time of each part.
    :ivar tokens: number of tokens that the answer reports; 0 if it reports none.
    :ivar failure: an error reported in the stream.
    """

    __slots__ = ("_held", "_prefix", "at_ns", "failure", "tokens")

    def __init__(self, prefix: bytes = b"data:") -> None:
        self._held, self._prefix = b"", prefix
        self.at_ns: list[int] = []
        self.tokens = 0
        self.failure = ""

    def feed(self, data: bytes, now_ns: int) -> None:
        """Process the next bytes of the stream."""
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            if line.startswith(self._prefix):
                self._event(line[len(self._prefix) :].strip(), now_ns)
        if len(self._held) > _LONGEST_EVENT:
            raise ProtocolError("a streamed event without an end")

    def _event(self, text: bytes, now_ns: int) -> None:
        if not text or text == b"[DONE]":
            return
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            self.at_ns.append(now_ns)
            return
        if isinstance(event, dict):
            self._usage(event)
            failure = event.get("message") if event.get("object") == "error" else event.get("error")
            if failure:
                self.failure = str(failure)[:200]
        if _brings_output(event):
            self.at_ns.append(now_ns)

    def _usage(self, event: dict[str, Any]) -> None:
        response = event.get("response")
        holders = [
            response.get("usage") if isinstance(response, dict) else None,
            event.get("usage"),
            event.get("details"),
            event,
        ]
        for inner in holders:
            for key in ("completion_tokens", "output_tokens", "generated_tokens", "eval_count"):
                count = inner.get(key) if isinstance(inner, dict) else None
                if isinstance(count, int) and not isinstance(count, bool):
                    self.tokens = max(self.tokens, count)


def _brings_output(event: Any) -> bool:
    """True if an event has text for the reader; a role, usage or stop reason alone is not output."""
    if not isinstance(event, dict):
        return True
    choices, kind = event.get("choices"), event.get("type")
    if isinstance(choices, list):
        return any(_has_text(choice.get("delta") or choice) for choice in choices if isinstance(choice, dict))
    if isinstance(kind, str) and (kind in _FRAMES or (kind.startswith("response.") and not kind.endswith(".delta"))):
        return False
    if event.get("done") is True:  # Ollama's last line
        return _has_text(event) or _has_text(event.get("message"))
    return "error" not in event and event.get("object") != "error"


def _has_text(holder: Any) -> bool:
    return isinstance(holder, dict) and any(holder.get(key) for key in _TEXTS)


def error_words(status: int, body: bytes) -> str:
    """Describe an error answer in one line."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    text = " ".join(body[:400].decode("utf-8", "replace").split())[:160]
    return f"HTTP {status} {phrase}".strip() + (f": {text}" if text else "")


def _fields(head: bytes) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip()
    return fields
