"""The requests inside a live runner, and those in line for room: admission, answers, refusals."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeVar

from latfix.profilers.probes.ring_recorder import RingRecorder
from latfix.request import Request
from latfix.runners.calls.model_call import USER_ERRORS
from latfix.runners.engine.worker import Outcome
from latfix.runners.live.requests import RequestError, RequestFailed, RequestShed, RequestTimedOut, RunnerClosed
from latfix.stages import Status

E = TypeVar("E", bound=RequestError)

_ERRORS: dict[Status, type[RequestError]] = {
    Status.ERROR: RequestFailed,
    Status.TIMEOUT: RequestTimedOut,
    Status.SHED: RequestShed,
}


@dataclass(slots=True, eq=False)
class Call:
    """One request and who waits for its answer.

    :param arrival_ns: when its caller asked, on the clock of ``time.perf_counter_ns``; its latency counts from here.
    :param limit_ms: how long the caller waits; 0 for as long as it takes.
    """

    request: Request
    arrival_ns: int
    limit_ms: float
    future: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)

    @property
    def left_s(self) -> float | None:
        """Seconds that the caller still waits; ``None`` without end."""
        if not self.limit_ms:
            return None
        return max(self.limit_ms / 1e3 - (time.perf_counter_ns() - self.arrival_ns) / 1e9, 0.0)

    def answer(self, outcome: Outcome) -> str:
        """Answer the caller if it still waits; returns what the request is counted as."""
        if not self.future.set_running_or_notify_cancel():
            return self.given_up_as
        with contextlib.suppress(*USER_ERRORS):  # sys.exit() in a callback of the future must not end our thread
            if outcome.status is Status.OK:
                self.future.set_result(outcome.output)
            else:
                self.future.set_exception(self.error(_ERRORS[outcome.status], outcome.error))
        return outcome.status.name.lower()

    def gave_up(self) -> str:
        """The caller cancelled while it stood in line; returns what the request is counted as."""
        self.future.set_running_or_notify_cancel()
        return self.given_up_as

    @property
    def given_up_as(self) -> str:
        """Why its caller gave up: the deadline, or another reason of its own."""
        return "timeout" if self.left_s == 0.0 else "cancelled"

    def refuse(self, error: RequestError) -> bool:
        """Refuse an answer; true if somebody still waited."""
        waited = self.future.set_running_or_notify_cancel()
        if waited:
            with contextlib.suppress(*USER_ERRORS):  # as above: others wait for their refusal
                self.future.set_exception(error)
        return waited

    def error(self, kind: type[E], why: str) -> E:
        """An error of ``kind`` that names the request."""
        return kind(f"request {self.request.id}: {why}", self.request.id)


class Intake:
    """Calls by their row in the recorder's ring, and a line of those that wait for a row.

    Each call is taken out once, by whoever ends it: the engine, a close, or a failure of the runner.

    :param most: calls that may hold a row at once.
    :ivar empty: set while nobody is inside or in line.
    """

    def __init__(self, recorder: RingRecorder, most: int) -> None:
        self._recorder = recorder
        self._most = most
        self._inside = 0
        self._by_row: list[Call | None] = [None] * recorder.slots
        self._line: deque[Call] = deque()
        self._lock = threading.Lock()
        self._refusal = ""
        self.empty = threading.Event()
        self.empty.set()

    @property
    def inside(self) -> int:
        """Requests that hold a row."""
        return self._inside

    @property
    def waiting(self) -> int:
        """Requests in line for a row."""
        return len(self._line)

    def enter(self, call: Call, *, may_wait: bool) -> int | None:
        """The call's row; ``None`` where all are in use, then it stands in line if it may.

        :raises RunnerClosed: nobody is let in any more.
        """
        with self._lock:
            if self._refusal:
                raise call.error(RunnerClosed, self._refusal)
            if self._inside < self._most and not self._line:
                return self._open(call)
            if may_wait:
                self._line.append(call)
                self.empty.clear()
            return None

    def close(self, why: str) -> None:
        """Let nobody in from here on; who is inside or in line stays. The first reason stays."""
        with self._lock:
            self._refusal = self._refusal or why

    def next(self) -> tuple[int | None, Call] | None:
        """The first in line and its row, where one is free; no row for one that was cancelled meanwhile."""
        with self._lock:
            if not self._line or self._inside >= self._most:
                return None
            call = self._line.popleft()
            row = None if call.future.cancelled() else self._open(call)
            self._tell_empty()
            return row, call

    def drop(self, call: Call) -> bool:
        """Take a cancelled call out of the line; whether it still stood there."""
        with self._lock:
            try:
                self._line.remove(call)
            except ValueError:
                return False
            self._tell_empty()
            return True

    def at(self, row: int) -> Call | None:
        """The call in a row; ``None`` where it was taken out."""
        return self._by_row[row]

    def leave(self, row: int) -> Call | None:
        """The engine is done with a row: it is free; the call that was in it, unless it was taken out before."""
        with self._lock:
            call = self._by_row[row]
            self._by_row[row] = None
            self._inside -= 1
            self._recorder.give_back(row)
            self._tell_empty()
            return call

    def take_all(self) -> list[Call]:
        """Every call, inside and in line. Rows stay in use until the engine is done with them."""
        with self._lock:
            calls = [call for call in self._by_row if call is not None]
            calls += self._line
            self._by_row = [None] * len(self._by_row)
            self._line.clear()
            self._tell_empty()
            return calls

    def _open(self, call: Call) -> int:
        row = self._recorder.open(call.arrival_ns)
        self._by_row[row] = call
        self._inside += 1
        self.empty.clear()
        return row

    def _tell_empty(self) -> None:
        if not self._inside and not self._line:
            self.empty.set()
