"""The requests inside a live runner, and the line of requests that wait for a slot."""

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
    """One request and the future of its caller.

    :param arrival_ns: time of the call, on the clock of ``time.perf_counter_ns``; the latency starts here.
    :param limit_ms: how long the caller waits; 0 for no limit.
    """

    request: Request
    arrival_ns: int
    limit_ms: float
    future: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)

    @property
    def left_s(self) -> float | None:
        """Seconds that the caller still waits; ``None`` for no limit."""
        if not self.limit_ms:
            return None
        return max(self.limit_ms / 1e3 - (time.perf_counter_ns() - self.arrival_ns) / 1e9, 0.0)

    def answer(self, outcome: Outcome) -> str:
        """Answer the caller if it still waits; returns the outcome to count."""
        if not self.future.set_running_or_notify_cancel():
            return self.given_up_as
        with contextlib.suppress(*USER_ERRORS):  # sys.exit() in a callback of the future must not end this thread
            if outcome.status is Status.OK:
                self.future.set_result(outcome.output)
            else:
                self.future.set_exception(self.error(_ERRORS[outcome.status], outcome.error))
        return outcome.status.name.lower()

    def gave_up(self) -> str:
        """The caller cancelled in line; returns the outcome to count."""
        self.future.set_running_or_notify_cancel()
        return self.given_up_as

    @property
    def given_up_as(self) -> str:
        """Why its caller gave up: the deadline, or another reason."""
        return "timeout" if self.left_s == 0.0 else "cancelled"

    def refuse(self, error: RequestError) -> bool:
        """End the request with an error. True if its caller still waited."""
        waited = self.future.set_running_or_notify_cancel()
        if waited:
            with contextlib.suppress(*USER_ERRORS):  # as above: other callers wait for their error
                self.future.set_exception(error)
        return waited

    def error(self, kind: type[E], why: str) -> E:
        """An error of ``kind`` that names the request."""
        return kind(f"request {self.request.id}: {why}", self.request.id)


class Intake:
    """Calls by their row in the recorder's ring, and a line of calls that wait for a row.

    Each call is removed once, by whatever ends it: the engine, a close, or a failure of the runner.

    :param most: maximum number of calls that hold a row at once.
    :ivar empty: set while no call is inside or in line.
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
        """The call's row; ``None`` if all are in use. The call then waits in line if it may.

        :raises RunnerClosed: no calls are admitted any more.
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
        """Admit no more calls; those inside or in line stay. The first reason is kept."""
        with self._lock:
            self._refusal = self._refusal or why

    def next(self) -> tuple[int | None, Call] | None:
        """The first call in line and its row, if one is free; the row is ``None`` if the call was cancelled."""
        with self._lock:
            if not self._line or self._inside >= self._most:
                return None
            call = self._line.popleft()
            row = None if call.future.cancelled() else self._open(call)
            self._check_empty()
            return row, call

    def drop(self, call: Call) -> bool:
        """Remove a cancelled call from the line. True if it was still there."""
        with self._lock:
            try:
                self._line.remove(call)
            except ValueError:
                return False
            self._check_empty()
            return True

    def at(self, row: int) -> Call | None:
        """The call in a row; ``None`` if it was removed."""
        return self._by_row[row]

    def leave(self, row: int) -> Call | None:
        """Free a row that the engine is done with; returns its call, unless it was removed before."""
        with self._lock:
            call = self._by_row[row]
            self._by_row[row] = None
            self._inside -= 1
            self._recorder.give_back(row)
            self._check_empty()
            return call

    def take_all(self) -> list[Call]:
        """Remove every call, inside and in line. Rows stay in use until the engine is done with them."""
        with self._lock:
            calls = [call for call in self._by_row if call is not None]
            calls += self._line
            self._by_row = [None] * len(self._by_row)
            self._line.clear()
            self._check_empty()
            return calls

    def _open(self, call: Call) -> int:
        row = self._recorder.open(call.arrival_ns)
        self._by_row[row] = call
        self._inside += 1
        self.empty.clear()
        return row

    def _check_empty(self) -> None:
        if not self._inside and not self._line:
            self.empty.set()
