"""The open-loop replay over HTTP: one thread that sends at the recorded times and stamps the answers.

A request is sent when it is due, regardless of earlier ones, over an idle or a new connection. Nothing is sent twice.
The loop reads answers between two requests and stops when the next request is due, so that answers never delay
requests.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from latfix.runners.calls.model_call import SameFailure
from latfix.runners.http_target.connection import Connection, Endpoint
from latfix.runners.http_target.http_messages import ProtocolError, error_words
from latfix.runners.http_target.request_log import RequestLog
from latfix.runners.replay.open_loop import LEAST_SPIN_NS, MOST_SPIN_NS, sharp_timer
from latfix.stages import Status

_clock = time.perf_counter_ns
#: Longest sleep without checking if the replay is to stop.
_LONGEST_SLEEP_NS = 50_000_000
#: Minimum gap between requests for other work, such as rendering bodies ahead.
_SLACK_NS = 600_000
#: Maximum number of bodies rendered ahead, and of their bytes.
_AHEAD, _AHEAD_BYTES = 4096, 64 << 20
#: In dense traffic, the loop checks for answers, timeouts and the next report after this many requests.
_BEHIND = 8
_REPORT_NS = 250_000_000
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class ReplayLoop:
    """One replay.

    :param request: returns the bytes of request k.
    :param timeout_ns: time after its scheduled time at which a request is given up.
    :param report: called four times a second with the number of ended and of in-flight requests, and if all are sent.
    :param connect: makes a connection.
    :ivar opened: number of connections; ``rendered_late`` of bodies that were not rendered ahead.
    :ivar hopeless: why the replay was given up; empty if it was not.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        request: Callable[[int], bytes],
        log: RequestLog,
        stop: threading.Event,
        *,
        timeout_ns: int,
        keep_alive: bool,
        report: Callable[[int, int, bool], None],
        connect: Callable[[Endpoint], Connection] = Connection,
    ) -> None:
        self._connect = connect
        self._endpoint, self._request = endpoint, request
        self._scheduled: list[int] = []
        self._log, self._stop = log, stop
        self._timeout_ns, self._keep_alive, self._report = timeout_ns, keep_alive, report
        self._selector = selectors.DefaultSelector()
        self._idle: list[Connection] = []
        self._carriers: dict[int, Connection] = {}
        self._deadlines: deque[tuple[int, int]] = deque()
        self._ahead: deque[bytes] = deque()
        self._ahead_bytes, self._made, self._render_ns = 0, 0, 0
        self._next, self._reported = 0, 0
        self._failures = SameFailure()
        self.opened = self.rendered_late = 0
        self.hopeless = ""

    def prepare(self, count: int) -> None:
        """Render the bodies of the first of ``count`` requests, before the run's clock starts."""
        while self._made < min(count, _AHEAD) and self._ahead_bytes < _AHEAD_BYTES:
            self._render()

    def schedule(self, scheduled_ns: list[int]) -> None:
        """Set when each request is due, on the clock of ``time.perf_counter_ns``."""
        self._scheduled = scheduled_ns

    def run(self) -> int:
        """Replay all requests; returns the number handed over. If stopped, those in flight are ``unfinished``."""
        try:
            with sharp_timer():
                while self._step():
                    pass
            now = _clock()
            for connection in tuple(self._carriers.values()):
                self._lose(connection, Status.UNFINISHED, "", now)
        finally:
            for connection in [*self._carriers.values(), *self._idle]:
                connection.close()
            self._selector.close()
        return self._next

    def _step(self) -> bool:
        now = _clock()
        sending = self._next < len(self._scheduled) and not self._stop.is_set() and not self.hopeless
        if not sending and (not self._carriers or self._stop.is_set() or self.hopeless):
            return False
        due = self._scheduled[self._next] if sending else now + _LONGEST_SLEEP_NS
        if now >= due:
            self._hand_over(now)
            if self._next % _BEHIND == 0:
                self._expire(now)
                self._tell(now)
                self._look(0, now)
            return True
        remaining = due - now
        if remaining > _SLACK_NS:
            self._between(now, remaining)
            remaining = due - _clock()
        spin = min(max(remaining // 100, LEAST_SPIN_NS), MOST_SPIN_NS) if sending else 0
        if remaining > spin:
            self._look(min(remaining - spin, _LONGEST_SLEEP_NS), due)
            return True
        while _clock() < due:
            pass
        return True

    def _between(self, now: int, remaining: int) -> None:
        """Do work that can wait for a gap between requests."""
        self._expire(now)
        self._tell(now)
        if self._made < len(self._scheduled) and len(self._ahead) < _AHEAD and self._ahead_bytes < _AHEAD_BYTES:
            while self._made < len(self._scheduled) and remaining > 2 * self._render_ns + LEAST_SPIN_NS:
                self._render()
                remaining -= self._render_ns
                if len(self._ahead) >= _AHEAD or self._ahead_bytes >= _AHEAD_BYTES:
                    break

    def _tell(self, now: int) -> None:
        """Report progress, also where requests leave no gap: a silent replay counts as hung."""
        if now - self._reported > _REPORT_NS:
            self._reported = now
            self._report(self._log.ended, len(self._carriers), self._next >= len(self._scheduled))

    def _expire(self, now: int) -> None:
        while self._deadlines and (
            self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._carriers
        ):  # requests that have ended are skipped
            deadline, slot = self._deadlines.popleft()
            if deadline <= now and slot in self._carriers:
                self._lose(self._carriers[slot], Status.TIMEOUT, "no answer in time", now)

    def _render(self) -> None:
        begun = _clock()
        body = self._request(self._made)
        self._ahead.append(body)
        self._ahead_bytes += len(body)
        self._made += 1
        self._render_ns = max(self._render_ns, min(_clock() - begun, _SLACK_NS)) if self._made > 1 else 0

    def _hand_over(self, now: int) -> None:
        slot = self._next
        self._next += 1
        if not self._ahead:
            self.rendered_late += 1
            self._render()
        request = self._ahead.popleft()
        self._ahead_bytes -= len(request)
        now = _clock()
        connection = self._idle.pop() if self._idle else None
        try:
            fresh = connection is None
            connection = connection or self._connect(self._endpoint)
            self.opened += fresh
            self._carriers[slot] = connection
            self._deadlines.append((self._scheduled[slot] + self._timeout_ns, slot))
            connection.begin(slot, request, now)
            if fresh:
                self._selector.register(connection.sock, self._wanted(connection), connection)
            elif connection.wants_write:
                self._selector.modify(connection.sock, _READ | _WRITE, connection)
        except OSError as error:
            if connection is None:  # out of sockets
                due, end = self._scheduled[slot], _clock()
                self._log.add((slot, due, now - due, end - now, 0, 0, end - due, int(Status.ERROR), *(0,) * 9))
                self._failed(slot, end, failure_words(error), "connect")
            else:
                self._lose(connection, Status.ERROR, failure_words(error), _clock())

    @staticmethod
    def _wanted(connection: Connection) -> int:
        return _READ | _WRITE if connection.wants_write else _READ

    def _look(self, wait_ns: int, due: int) -> None:
        """Wait for answers, and read them until ``due``."""
        if wait_ns > 0 and not select.select([self._selector.fileno()], (), (), wait_ns / 1e9)[0]:
            return
        now = _clock()
        for key, mask in self._selector.select(0):
            self._serve(key.data, mask, now)
            if _clock() >= due:
                return

    def _serve(self, connection: Connection, mask: int, now: int) -> None:
        before = connection.wants_write
        sock = connection.sock
        try:
            if mask & _WRITE:
                connection.writable()
            done = bool(mask & _READ) and connection.readable(now)
        except (OSError, ProtocolError) as error:
            self._lose(connection, Status.ERROR, failure_words(error), now)
            return
        if connection.wants_write != before or connection.sock is not sock:
            self._selector.modify(connection.sock, self._wanted(connection), connection)
        if done:
            self._answered(connection, now)

    def _answered(self, connection: Connection, now: int) -> None:
        answer = connection.answer
        if answer.events is not None:
            answer.events.feed(b"\n", now)  # a stream's last line may lack its end
        status, message = _verdict(answer.status, answer.body, answer.events.failure if answer.events else "")
        # Its timeout may have passed since the last check.
        if now > self._scheduled[connection.slot] + self._timeout_ns:
            status, message = Status.TIMEOUT, "answered after its time"
        request_sent = connection.sent_ns > 0  # else the server would read the next request as the rest of this one
        self._write(connection, status, message, now)
        if self._keep_alive and answer.keep and connection.open and request_sent:
            connection.slot = -1
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _lose(self, connection: Connection, status: Status, message: str, now: int) -> None:
        """End a request without a complete answer, or drop an idle connection that was closed."""
        if connection.slot >= 0:
            self._write(connection, status, message, now)
        elif connection in self._idle:
            self._idle.remove(connection)
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it failed before it was registered
            self._selector.unregister(connection.sock)
        connection.close()

    def _write(self, connection: Connection, status: Status, message: str, now: int) -> None:
        """Log the row of a connection's request, which ended ``now``."""
        slot, begun = connection.slot, connection.begun_ns
        del self._carriers[slot]
        end = max(now, connection.sent_ns, connection.first_ns, begun)
        # A step that was not reached is set to the request's end, so later stages are 0.
        ready = min(connection.ready_ns or end, end)
        sent = max(min(connection.sent_ns or end, end), ready)
        first = max(min(connection.first_ns or end, end), sent)
        answer, due = connection.answer, self._scheduled[slot]
        chunks = tokens = first_token = 0
        if answer.events is not None and answer.events.at_ns:
            at = answer.events.at_ns
            chunks, tokens, first_token = len(at), answer.events.tokens or len(at), max(at[0], first) - due
            gaps = [(later - earlier) // 1000 for earlier, later in pairwise(at)]
            self._log.event("stream", at[0], at[-1] - at[0], slot, {"gaps_us": gaps})
        stages = (begun - due, sent - begun, first - sent, end - first, end - due)
        exchanged = (answer.status, int(connection.fresh), connection.port, len(connection.request), answer.received)
        self._log.add((slot, due, *stages, int(status), sent - ready, *exchanged, chunks, tokens, first_token))
        if status not in (Status.OK, Status.UNFINISHED):
            self._failed(slot, end, message, "answer" if connection.ready_ns else "connect")
        if status == Status.ERROR:
            self._failures.add(message, end)
            self.hopeless = self._failures.given_up(self._log.ended, end)

    def _failed(self, slot: int, end: int, message: str, stage: str) -> None:
        self._log.event("error", end, 0, slot, {"message": message, "stage": stage})


def _verdict(http_status: int, body: bytes, failure: str) -> tuple[Status, str]:
    """The status of a request with this answer, and its message."""
    if 200 <= http_status < 300:
        return (Status.ERROR, f"the stream reported an error: {failure}") if failure else (Status.OK, "")
    if http_status == 429:
        return Status.SHED, error_words(http_status, body)
    return Status.ERROR, error_words(http_status, body)


def failure_words(error: OSError | ProtocolError) -> str:
    """Why there was no answer, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    if isinstance(error, ProtocolError):
        return f"found {error}"
    return error.strerror or str(error) or type(error).__name__
