"""``latfix.record``: requests of a user's own service, recorded while it serves.

What a request costs on its own thread are two readings of counters and a row in memory, below 20 microseconds.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from latfix.errors import InputError
from latfix.formatting import shown
from latfix.profilers.service_log.request_counters import counters_at_begin, counters_at_end
from latfix.profilers.service_log.row_writer import Row, RowWriter
from latfix.spans import SpanRecord, collect_spans

F = TypeVar("F", bound=Callable[..., Any])

#: Numbers that tell how much work a request is: as they are, or made of a function's arguments.
Features = Mapping[str, float] | Callable[..., Mapping[str, float]] | None
_NONE: Mapping[str, float] = {}


class OpenRequest:
    """A request that has begun; :meth:`end` makes it a row."""

    __slots__ = ("_before", "_in_flight", "_log", "_outer", "_spans")

    def __init__(self, log: ServiceLog) -> None:
        self._log = log
        log.inside.add(self)
        self._in_flight = len(log.inside)
        self._spans: list[SpanRecord] = []
        self._outer = collect_spans(self._spans)
        self._before = counters_at_begin()

    def end(self, status: str, route: str, features: Mapping[str, float] = _NONE) -> None:
        """The request ended, on the thread or in the task in which it began."""
        after = counters_at_end(self._before)
        collect_spans(self._outer)
        self._log.inside.discard(self)
        row = (self._before, after, status, route, self._in_flight, self._spans, features)
        self._log.rows.add(tuple.__new__(Row, row))  # without the frame of Python that Row(...) is


class ServiceLog:
    """The rows of one folder in this process, whoever records them.

    :ivar rows: where they go.
    :ivar inside: requests that have not ended.
    """

    inside: set[OpenRequest]
    rows: RowWriter

    def __init__(self, folder: Path, most_mb: float, rows_per_s: int) -> None:
        self._make = functools.partial(RowWriter, folder, int(most_mb * 1e6), rows_per_s)
        self.restart()

    def restart(self) -> None:
        """Begin anew, as in a process that was forked from the one that recorded."""
        self.inside = set()
        self.rows = self._make()


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
        self._log = log_of(folder, most_mb, rows_per_s)
        self._route, self._features = route, features

    def __call__(self, function: F) -> F:
        """The function, recorded.

        :raises InputError: it returns before its work is done: a generator.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"latfix.record: found the generator {shown(function)}; expected a function or a coroutine function; "
                "put the loop over it into a with block"
            )
        route = self._route or getattr(function, "__name__", type(function).__name__)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            @functools.wraps(function)
            async def recorded_async(*args: Any, **kwargs: Any) -> Any:
                request, status = OpenRequest(self._log), "ok"
                try:
                    return await function(*args, **kwargs)
                except BaseException as error:
                    status = status_of(error)
                    raise
                finally:
                    request.end(status, route, self._told(args, kwargs))

            return cast(F, recorded_async)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            request, status = OpenRequest(self._log), "ok"
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                status = status_of(error)
                raise
            finally:
                request.end(status, route, self._told(args, kwargs))

        return cast(F, recorded)

    def _told(self, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NONE) -> Mapping[str, float]:
        features = self._features
        return _NONE if features is None else features(*args, **kwargs) if callable(features) else features

    def __enter__(self) -> Self:
        _open.set((*_open.get(), OpenRequest(self._log)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        *outer, request = _open.get()
        _open.set(tuple(outer))
        request.end("ok" if error is None else status_of(error), self._route, self._told())

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
