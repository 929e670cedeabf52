"""Declared spans: ``with latfix.span("feature_store"):`` marks time spent outside the service."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One finished span: its name and its ends on ``time.perf_counter_ns``'s clock."""

    name: str
    start_ns: int
    end_ns: int


#: Of a thread, and in an event loop of a task: tasks of one thread take turns within their spans.
_records: ContextVar[list[SpanRecord] | None] = ContextVar("latfix_spans", default=None)
_depth: ContextVar[int] = ContextVar("latfix_span_depth", default=0)


class span:
    """Declare that the enclosed time is spent outside: a network call, a database, a disk.

    Usable in ``prepare`` and ``finish``, and in whatever :class:`latfix.record` records. Elsewhere it does nothing
    and costs about a microsecond. Nested spans are counted once, as their outermost.

    :param name: the dependency's name, as it should read in the report.
    """

    __slots__ = ("_outer", "_start", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._start = self._outer = 0

    def __enter__(self) -> span:
        self._outer = _depth.get()
        _depth.set(self._outer + 1)
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _depth.set(self._outer)
        records = _records.get()
        if records is not None and self._outer == 0:
            records.append(SpanRecord(self.name, self._start, time.perf_counter_ns()))


def collect_spans(records: list[SpanRecord] | None) -> list[SpanRecord] | None:
    """Send finished spans of this thread, or of this task, to ``records`` from now on; ``None`` stops collecting.

    :returns: where they went until now.
    """
    before = _records.get()
    _records.set(records)
    return before
