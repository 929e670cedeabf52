"""Declared spans: ``with latfix.span("feature_store"):`` marks time spent outside the service."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One finished span: its name and its ends on ``time.perf_counter_ns``'s clock."""

    name: str
    start_ns: int
    end_ns: int


class _Sink(threading.local):
    records: list[SpanRecord] | None = None
    depth: int = 0


_sink = _Sink()


class span:
    """Declare that the enclosed time is spent outside: a network call, a database, a disk.

    Usable in ``prepare`` and ``finish``. Outside a latfix run it does nothing and costs about a
    microsecond. Nested spans are counted once, as their outermost.

    :param name: the dependency's name, as it should read in the report.
    """

    __slots__ = ("_start", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._start = 0

    def __enter__(self) -> span:
        _sink.depth += 1
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _sink.depth -= 1
        if _sink.records is not None and _sink.depth == 0:
            _sink.records.append(SpanRecord(self.name, self._start, time.perf_counter_ns()))


def collect_spans(records: list[SpanRecord] | None) -> None:
    """Send this thread's finished spans to ``records`` from now on; ``None`` stops collecting."""
    _sink.records = records
