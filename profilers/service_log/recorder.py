"""``latfix.record``: records requests of a user's own service while it serves.

On its own thread, a request costs two readings of counters and a row in memory: some microseconds in a busy loop, and
some tens after a pause, when neither code nor data are in the caches (docs/services.md).
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
from threading import get_ident
from time import perf_counter_ns, process_time_ns, thread_time_ns
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from latfix.errors import InputError
from latfix.formatting import shown
from latfix.profilers.service_log.request_counters import COLLECTIONS, NO_TIME_NS, OF_THREAD, RECENT_NS
from latfix.profilers.service_log.sampled_segments import RowWriter
from latfix.spans import SpanRecord, collected

F = TypeVar("F", bound=Callable[..., Any])

#: Measures of a request's amount of work, or a function that returns them from the recorded function's arguments.
Features = Mapping[str, float] | Callable[..., Mapping[str, float]] | None
_NONE: Mapping[str, float] = {}
#: Exceptions of a user's features function that must not fail the request.
_MISTAKES = (Exception,)
_LOGGER = logging.getLogger("latfix")


class OpenRequest:
    """A request in progress; :meth:`end` writes its row."""

    __slots__ = ("_before", "_in_flight", "_log", "_outer", "_spans")

    def __init__(self, log: ServiceLog) -> None:
        self._log, inside = log, log.inside
        inside.add(self)
        self._in_flight = len(inside)
        self._spans: Sequence[SpanRecord] = ()
        self._outer = collected.set(self)
        now, latest = perf_counter_ns(), OF_THREAD.latest
        if now - latest[1] > RECENT_NS:
            latest = OF_THREAD.latest = (OF_THREAD.read(), now)
        self._before = (now, thread_time_ns(), latest[0], process_time_ns(), COLLECTIONS.total_ns, get_ident())

    def append(self, span: SpanRecord, /) -> None:
        self._spans = (*self._spans, span)

    @property
    def running(self) -> bool:
        """True until it ends. False in a process forked meanwhile."""
        return self in self._log.inside

    def end(
        self,
        status: str,
        route: str,
        features: Features = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
    ) -> None:
        """End the request, on the thread or in the task in which it began; only the first call counts.

        :param features: a mapping, or a function of ``args`` and ``kwargs`` that returns one.
        """
        now, cpu, before, log = perf_counter_ns(), thread_time_ns(), self._before, self._log
        own, here = cpu - before[1], get_ident()
        if here == before[5] and now - before[0] - own <= NO_TIME_NS:
            after = (now, cpu, before[2], before[3] + own, COLLECTIONS.total_ns, here)
        else:
            text, _ = OF_THREAD.latest = OF_THREAD.read(), now
            after = (now, cpu, text, process_time_ns(), COLLECTIONS.total_ns, here)
        if collected.get() is self:  # a later request may be current, or a generator may end in another context
            outer = self._outer.old_value
            over = outer is Token.MISSING or (isinstance(outer, OpenRequest) and not outer.running)
            collected.set(None if over else outer)
        if self in log.inside:
            log.inside.discard(self)
            values = _NONE if features is None else log.features(features, args, kwargs)
            log.rows.add((before, after, status, route, self._in_flight, self._spans, values))


class ServiceLog:
    """The log of one folder in this process, shared by all its recorders.

    :ivar rows: writes the rows.
    :ivar inside: requests in progress.
    """

    inside: set[OpenRequest]
    rows: RowWriter

    def __init__(self, folder: Path, most_mb: float, rows_per_s: int) -> None:
        self._make = functools.partial(RowWriter, folder, int(most_mb * 1e6), rows_per_s)
        self._warned = False
        self.restart()

    def restart(self) -> None:
        """Start with an empty state, as after a fork."""
        self.inside = set()
        self.rows = self._make()

    def features(
        self, features: Mapping[str, float] | Callable[..., Mapping[str, float]], args: Any, kwargs: Any
    ) -> Mapping[str, float]:
        """A copy of the features; empty, with one warning, if a function for them fails."""
        try:
            return dict(features(*args, **kwargs) if callable(features) else features)
        except _MISTAKES as error:
            if not self._warned:
                self._warned = True
                _LOGGER.warning("latfix.record: requests have no features: %s: %s", type(error).__name__, error)
            return _NONE


_logs: dict[str, ServiceLog] = {}
_making = threading.Lock()


def log_of(folder: str | os.PathLike[str], most_mb: float, rows_per_s: int) -> ServiceLog:
    """The log of a folder, one per process; the first call sets its limits.

    :raises InputError: the folder cannot be written, or a limit is invalid.
    """
    if not isinstance(folder, str | os.PathLike):
        raise InputError(
            f"latfix.record: found {shown(folder)}; expected the folder to record into, as in record('DIR')"
        )
    name = os.fspath(folder)
    if (known := _logs.get(name)) is not None:
        return known
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
        raise InputError(
            f"{path}: cannot record there ({error.strerror}); name a folder that can be created"
        ) from error
    if not writable:
        raise InputError(f"{path}: cannot record there (no permission to write); name another folder")


@atexit.register
def flush() -> None:
    """Write all finished requests, in every folder."""
    for log in set(_logs.values()):
        log.rows.flush()


def _after_fork() -> None:
    OF_THREAD.open()
    for log in set(_logs.values()):
        log.rows.close()
        log.restart()


os.register_at_fork(after_in_child=_after_fork)

_open: ContextVar[tuple[OpenRequest, ...]] = ContextVar("latfix_open_requests", default=())


class record:
    """Record every call of a function, or every pass through a ``with`` block, as a request.

    ``@latfix.record("DIR")`` on a function or a coroutine function; ``with latfix.record("DIR"):`` anywhere.
    ``latfix diagnose DIR`` and ``latfix watch DIR`` read it while the service runs. :class:`latfix.span` inside
    declares a wait. An error is counted and propagates to the caller.

    :param folder: created if missing; several processes may write to one.
    :param route: the kind of request; by default the function's name.
    :param features: measures of a request's amount of work, or a function of the arguments that returns them.
    :param most_mb: megabytes on disk; the oldest rows are deleted.
    :param rows_per_s: rows kept at most; of more requests, the slow ones and a sample of the others
        (docs/services.md).
    :raises InputError: the folder cannot be written, or a limit is invalid.
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
            raise InputError(f"latfix.record: found route = {shown(route)}; expected a string")
        self._log = log_of(folder, most_mb, rows_per_s)
        self._route, self._features = route, features
        self._inside: list[OpenRequest] = []

    def __call__(self, function: F) -> F:
        """Wrap a function so that its calls are recorded.

        :raises InputError: it is a generator, which returns before its work is done.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"latfix.record: found the generator {shown(function)}; expected a function or a coroutine function; "
                "put the loop over it in a with block"
            )
        route = self._route or str(getattr(function, "__name__", type(function).__name__))
        log, features = self._log, self._features
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
                    request.end(status, route, features, args, kwargs)

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
                request.end(status, route, features, args, kwargs)

        return cast(F, recorded)

    def __enter__(self) -> Self:
        request = OpenRequest(self._log)
        self._inside.append(request)
        _open.set((*(one for one in _open.get() if one.running), request))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A generator may end in another context than it began in, and before one that began earlier.
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
    """The status of a request that ended with an exception."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "error"
