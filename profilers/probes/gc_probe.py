"""Pauses of Python's garbage collector, through ``gc.callbacks``."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from latfix.profilers.probes.stage_recorder import EventLog


class GcPauses:
    """Logs each collection as an event of kind ``gc``, in the thread that it ran in.

    A collection holds the interpreter lock, so it delays every thread that needs Python, not only its own.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._start = 0
        self.cost_ns = 0
        self.count = 0

    def __enter__(self) -> GcPauses:
        gc.callbacks.append(self._callback)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._callback)

    def _callback(self, phase: str, info: dict[str, Any]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._start = now
            return
        if not self._start:  # registered while a collection was under way
            return
        detail = {"generation": info["generation"], "collected": info["collected"]}
        self._log.add("gc", self._start, now - self._start, thread=threading.get_native_id(), detail=detail)
        self.count += 1
        self.cost_ns += time.perf_counter_ns() - now
