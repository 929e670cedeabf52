"""Declared spans: collected by thread, nested ones once, and none at all outside a run."""

from __future__ import annotations

import threading

import pytest

from latfix import span
from latfix.spans import SpanRecord, collect_spans


@pytest.fixture
def records() -> list[SpanRecord]:
    return []


def test_outside_a_run_a_span_does_nothing() -> None:
    with span("store"):
        pass


def test_nested_spans_count_once_as_their_outermost(records: list[SpanRecord]) -> None:
    collect_spans(records)
    try:
        with span("outer"):
            with span("inner"), span("innermost"):
                pass
            with span("inner again"):
                pass
        with span("second"):
            pass
    finally:
        collect_spans(None)
    assert [record.name for record in records] == ["outer", "second"]
    assert records[0].start_ns <= records[0].end_ns <= records[1].start_ns


def test_an_exception_ends_a_span_and_goes_on(records: list[SpanRecord]) -> None:
    collect_spans(records)
    try:
        with pytest.raises(ValueError, match="no"), span("outer"), span("inner"):
            raise ValueError("no")
        with span("after"):
            pass
    finally:
        collect_spans(None)
    assert [record.name for record in records] == ["outer", "after"]


def test_spans_of_other_threads_are_not_mixed_in(records: list[SpanRecord]) -> None:
    collect_spans(records)
    others: list[SpanRecord] = []

    def other() -> None:
        collect_spans(others)
        with span("theirs"):
            pass

    try:
        with span("ours"):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
    finally:
        collect_spans(None)
    assert [record.name for record in records] == ["ours"]
    assert [record.name for record in others] == ["theirs"]
