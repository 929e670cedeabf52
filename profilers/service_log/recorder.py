"""``latfix.record``: requests of a user's own service, recorded while it serves.

What a request costs on its own thread are two readings of counters and a row in memory, below 20 microseconds.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from latfix.errors import InputError
from latfix.formatting import shown
from latfix.profilers.service_log.request_counters import counters_at_begin, counters_at_end
from latfix.profilers.service_log.row_writer import Row, RowWriter
from latfix.spans import SpanRecord, collected

F = TypeVar("F", bound=Callable[..., Any])

#: Numbers that tell how much work a request is: as they are, or made of a function's arguments.
Features = Mapping[str, float] | Callable[..., Mapping[str, float]] | None
_NONE: Mapping[str, float] = {}
#: What a user's function may raise and the request it was asked about must survive.
_MISTAKES = (Exception,)
_WORDS = logging.getLogger("latfix")


class OpenRequest:
    """A request that has begun; :meth:`end` makes it a row."""

    __slots__ = ("_before", "_in_flight", "_log", "_outer", "_spans")

    def __init__(self, log: ServiceLog) -> None:
        self._log, inside = log, log.inside
        inside.add(self)
        self._in_flight = len(inside)
        self._spans: Sequence[SpanRecord] = ()
        self._outer = collected.set(self)
        self._before = counters_at_begin()

    def append(self, span: SpanRecord, /) -> None:
        """A span of it is over."""
        self._spans = (*self._spans, span)

    @property
    def running(self) -> bool:
        """It has not ended, and is not of the process that this one was forked from."""
        return self in self._log.inside

    def end(
        self,
        status: str,
        route: str,
        told: Features = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
    ) -> None:
        """The request ended, on the thread or in the task in which it began; only the first time counts.

        :param told: its features, or what makes them of ``args`` and ``kwargs``.
        """
        after, log = counters_at_end(self._before), self._log
        if collected.get() is self:  # not a request that began later, or this one's generator goes on elsewhere
            outer = self._outer.old_value
            over = outer is Token.MISSING or (isinstance(outer, OpenRequest) and not outer.running)
            collected.set(None if over else outer)
        if self in log.inside:
            log.inside.discard(self)
            features = _NONE if told is None else log.features(told, args, kwargs)
            row = (self._before, after, status, route, self._in_flight, self._spans, features)
            log.rows.add(tuple.__new__(Row, row))  # without the frame of Python that Row(...) is


class ServiceLog:
    """The rows of one folder in this process, whoever records them.

    :ivar rows: where they go.
    :ivar inside: requests that have not ended.
    """

    inside: set[OpenRequest]
    rows: RowWriter

    def __init__(self, folder: Path, most_mb: float, rows_per_s: int) -> None:
        self._make = functools.partial(RowWriter, folder, int(most_mb * 1e6), rows_per_s)
        self._warned = False
        self.restart()

    def restart(self) -> None:
        """Begin anew, as in a process that was forked from the one that recorded."""
        self.inside = set()
        self.rows = self._make()

    def features(
        self, told: Mapping[str, float] | Callable[..., Mapping[str, float]], args: Any, kwargs: Any
    ) -> Mapping[str, float]:
        """Features as they are now; none, and a warning, where they cannot be had: the request has its answer."""
        try:
            return dict(told(*args, **kwargs) if callable(told) else told)
        except _MISTAKES as error:
            if not self._warned:
                self._warned = True
                _WORDS.warning("latfix.record: requests have no features: %s: %s", type(error).__name__, error)
            return _NONE


_logs: dict[str, ServiceLog] = {}
_making = threading.Lock()


def log_of(folder: str | os.PathLike[str], most_mb: float, rows_per_s: int) -> ServiceLog:
    """The log of a folder, one in a process; the first to name it says how much is kept.

    :raises InputError: the folder cannot be one, or a limit is none.
    """
    if not isinstance(folder, str | os.PathLike):
        raise InputError(
            f"latfix.record: found {shown(folder)}; expected the folder to record into, as in record('DIR')"
        )
    name = os.fspath(folder)
    found = _logs.get(name)
    if found is not None:
        return found
    for limit, value, least in (("most_mb", most_mb, 1), ("rows_per_s", rows_per_s, 10)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < 1e9:
            raise InputError(f"latfix.record: found {limit} = {value!r}; expected a number of {least} or more")
    path = Path(name).absolute()
    with _making:
        log = _logs.get(str(path))
        if log is None:
            _make_folder(path)
            log = _logs[str(path)] = ServiceLog(path, most_mb, int(rows_per_s))
        _logs[name] = log
    return log


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise InputError(f"{path}: cannot record there ({error.strerror}); name a folder that can be made") from error
    if not writable:
        raise InputError(f"{path}: cannot record there (no right to write); name another folder")


@atexit.register
def flush() -> None:
    """Write what ended until now, in every folder."""
    for log in set(_logs.values()):
        log.rows.flush()


def _after_fork() -> None:
    for log in set(_logs.values()):
        log.restart()


os.register_at_fork(after_in_child=_after_fork)

_open: ContextVar[tuple[OpenRequest, ...]] = ContextVar("latfix_open_requests", default=())


class record:
    """Record every call of a function, or every pass through a ``with`` block, as a request.

    ``@latfix.record("DIR")`` on a plain function or a coroutine function; ``with latfix.record("DIR"):`` anywhere.
    ``latfix diagnose DIR`` and ``latfix watch DIR`` read it while the service runs. :class:`latfix.span` inside
    declares what is waited for. An error is counted and goes on to the caller.

    :param folder: made where it is not there; several processes may write to one.
    :param route: what kind of request it is; the function's name where none is given.
    :param features: numbers that tell how much work a request is, or a function that makes them of the arguments.
    :param most_mb: megabytes on disk; the oldest rows go.
    :param rows_per_s: rows kept at most; of more the slow ones and a sample of the others (docs/services.md).
    :raises InputError: the folder cannot be written, or a limit is none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        route: str = "",
        features: Features = None,
        most_mb: float = 256.0,
        rows_per_s: int = 1000,
    ) -> None:
        if not isinstance(route, str):
            raise InputError(f"latfix.record: found route = {shown(route)}; expected a text")
        self._log = log_of(folder, most_mb, rows_per_s)
        self._route, self._features = route, features
        self._inside: list[OpenRequest] = []

    def __call__(self, function: F) -> F:
        """The function, recorded.

        :raises InputError: it returns before its work is done: a generator.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"latfix.record: found the generator {shown(function)}; expected a function or a coroutine function; "
                "put the loop over it into a with block"
            )
        route = self._route or str(getattr(function, "__name__", type(function).__name__))
        log, told = self._log, self._features
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            @functools.wraps(function)
            async def recorded_async(*args: Any, **kwargs: Any) -> Any:
                request, status = OpenRequest(log), "ok"
                try:
                    return await function(*args, **kwargs)
                except BaseException as error:
                    status = status_of(error)
                    raise
                finally:
                    request.end(status, route, told, args, kwargs)

            return cast(F, recorded_async)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            request, status = OpenRequest(log), "ok"
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                status = status_of(error)
                raise
            finally:
                request.end(status, route, told, args, kwargs)

        return cast(F, recorded)

    def __enter__(self) -> Self:
        request = OpenRequest(self._log)
        self._inside.append(request)
        _open.set((*(one for one in _open.get() if one.running), request))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A generator may be ended in another context than it began in, and before one that began earlier.
        inside = self._inside
        request = next((one for one in reversed(_open.get()) if one in inside), inside[-1])
        inside.remove(request)
        request.end("ok" if error is None else status_of(error), self._route, self._features)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def status_of(error: BaseException) -> str:
    """How a request ended that ended with an error."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "error"
