"""Declared spans: ``with latfix.span("feature_store"):`` marks time spent outside the service."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One finished span: its name, start and end on ``time.perf_counter_ns``'s clock."""

    name: str
    start_ns: int
    end_ns: int


class Collector(Protocol):
    """Receives finished spans; a list is one."""

    def append(self, record: SpanRecord, /) -> object:
        """Add a span."""


#: Per thread, and in an event loop per task, because tasks of one thread take turns.
collected: ContextVar[Collector | None] = ContextVar("latfix_spans", default=None)
#: The outermost open span.
_outermost: ContextVar[span | None] = ContextVar("latfix_outermost_span", default=None)


class span:
    """Declare that the enclosed time is spent outside: a network call, a database, a disk.

    Works in ``prepare``, ``finish`` and code that :class:`latfix.record` records. Elsewhere it does nothing and
    costs about a microsecond. Nested spans count once, as their outermost.

    :param name: the dependency's name, as reports show it.
    """

    __slots__ = ("_outer", "_records", "_start", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._start = 0
        self._outer: span | None = None
        self._records: Collector | None = None

    def __enter__(self) -> span:
        self._records, self._outer = collected.get(), _outermost.get()
        if self._records is not None:
            # A generator's span of another request may still be open here.
            if self._outer is not None and self._outer._records is self._records:
                self._records = None
            else:
                _outermost.set(self)
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        records, self._records = self._records, None
        if records is None:
            return
        records.append(SpanRecord(self.name, self._start, time.perf_counter_ns()))
        if _outermost.get() is self:
            outer = self._outer
            _outermost.set(outer if outer is not None and outer._records is not None else None)


def collect_spans(records: Collector | None) -> None:
    """Send finished spans of this thread or task to ``records`` from now on; ``None`` stops collecting."""
    collected.set(records)
