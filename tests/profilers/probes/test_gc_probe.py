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
        for _ in range(100):
            cycle: list[Any] = []
            cycle.append(cycle)
        del cycle
        gc.collect()

    with GcPauses(log) as pauses:
        before = time.perf_counter_ns()
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join()
        after = time.perf_counter_ns()

    full = [row for row in _rows(log) if row[6]["generation"] == 2 and row[3] == thread_ids[0]]
    assert len(full) == 1 and full[0][6]["collected"] > 0
    start, duration, kind, *_ = full[0]
    assert kind == "gc"
    assert before <= start <= start + duration <= after
    assert pauses.count >= 1 and pauses.cost_ns > 0


def test_nothing_is_logged_afterwards_or_of_a_collection_that_was_under_way_before() -> None:
    log = EventLog()
    with GcPauses(log) as pauses:
        pauses._callback("stop", {"generation": 0, "collected": 0})
    gc.collect()
    assert not _rows(log)
    assert not any(getattr(callback, "__self__", None).__class__ is GcPauses for callback in gc.callbacks)
