"""Collections are logged with their thread, generation and length."""

from __future__ import annotations

import gc
import json
import threading
import time
from typing import Any

from latfix.profilers.probes.gc_probe import GcPauses
from latfix.profilers.probes.stage_recorder import EventLog


def _rows(log: EventLog) -> list[list[Any]]:
    return [json.loads(line) for line in log.drain(0).splitlines()]


def test_a_forced_collection_is_logged_in_its_thread() -> None:
    log = EventLog()
    thread_ids: list[int] = []

    def collect() -> None:
        thread_ids.append(threading.get_native_id())
        gc.collect()

    with GcPauses(log) as pauses:
        before = time.perf_counter_ns()
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join()
        after = time.perf_counter_ns()

    full = [row for row in _rows(log) if row[6]["generation"] == 2 and row[3] == thread_ids[0]]
    assert len(full) == 1
    start, duration, kind, *_ = full[0]
    assert kind == "gc"
    assert before <= start <= start + duration <= after
    assert pauses.count >= 1 and pauses.cost_ns > 0


def test_what_was_collected_is_counted() -> None:
    log = EventLog()
    with GcPauses(log):
        for _ in range(100):
            cycle: list[Any] = []
            cycle.append(cycle)
        del cycle
        gc.collect()
    assert sum(row[6]["collected"] for row in _rows(log)) >= 100


def test_nothing_is_logged_afterwards() -> None:
    log = EventLog()
    with GcPauses(log):
        pass
    gc.collect()
    assert not _rows(log)
    assert not any(getattr(callback, "__self__", None).__class__ is GcPauses for callback in gc.callbacks)


def test_registered_in_the_middle_of_a_collection_it_waits_for_the_next() -> None:
    log = EventLog()
    pauses = GcPauses(log)
    pauses._callback("stop", {"generation": 0, "collected": 0})
    assert not _rows(log)
