"""Pauses with callbacks: collections by Python's garbage collector, compilations by ``torch._dynamo``."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from typing import Any

from latfix.profilers.probes.stage_recorder import EventLog

#: The series of :meth:`CompileEvents.read`.
LIMIT_SERIES = "compile.limit_hits"
#: Messages of several versions of torch.
_LIMIT = re.compile("recompile limit|cache_size_limit", re.IGNORECASE)


class GcPauses:
    """Logs each collection as an event of kind ``gc``, with its thread.

    A collection holds the interpreter lock, so it delays every thread that runs Python.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._start = 0
        self.cost_ns = 0

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
        self.cost_ns += time.perf_counter_ns() - now


class CompileEvents:
    """Logs each compilation as an event of kind ``compile``, with the thread that it delayed.

    This does not import ``torch._dynamo``, which is slow and fills the garbage collector's heap. :meth:`attach` is
    called repeatedly, and registers as soon as the workload has imported it.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._start = 0
        self._trigger = ""
        self._thread = 0
        self._attached = False
        self.count = 0
        self.total_ns = 0

    def attach(self) -> bool:
        """Register with dynamo if it is loaded. Returns True if registered."""
        if self._attached:
            return True
        module = sys.modules.get("torch._dynamo.callback")
        if module is None or not hasattr(module, "callback_handler"):
            return False
        module.callback_handler.register_start_callback(self._on_start)
        module.callback_handler.register_end_callback(self._on_end)
        self._attached = True
        return True

    def read(self) -> dict[str, float]:
        """For the sampler: how often torch reached the recompile limit of a function, from its own counters.

        Beyond the limit (``torch._dynamo.config.recompile_limit``), inputs that match no compiled version run
        uncompiled permanently. Empty until the compiler is loaded.
        """
        if not self.attach():
            return {}
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        breaks = [tuple(counters.get(kind, {}).items()) for kind in ("unimplemented", "graph_break")]
        hits = sum(times for messages in breaks for message, times in messages if _LIMIT.search(message))
        return {LIMIT_SERIES: float(hits)}

    def detach(self) -> None:
        if self._attached:
            handler = sys.modules["torch._dynamo.callback"].callback_handler
            handler.remove_start_callback(self._on_start)
            handler.remove_end_callback(self._on_end)
            self._attached = False

    # Dynamo's callbacks cover only the outermost compilation of the process, so one start is open at a time.
    def _on_start(self, args: Any) -> None:
        self._start = time.perf_counter_ns()
        self._trigger = str(getattr(args, "callback_trigger", "")).rpartition(".")[2].lower()
        self._thread = threading.get_native_id()

    def _on_end(self, args: Any) -> None:
        del args
        if not self._start:  # attached while it was compiling
            return
        duration = time.perf_counter_ns() - self._start
        self.count += 1
        self.total_ns += duration
        self._log.add("compile", self._start, duration, thread=self._thread, detail={"trigger": self._trigger})
        self._start = 0
