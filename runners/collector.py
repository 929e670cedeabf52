"""Garbage collection out of the requests' way: frozen after load, collected between batches when idle."""

from __future__ import annotations

import gc
import threading

#: New container objects after which a collection is worth an idle moment …
IDLE_OBJECTS = 2_000
#: … and after which it is done although requests wait, so that memory cannot grow without bound.
FORCED_OBJECTS = 200_000
#: Young collections between two full ones; after a freeze a full one walks only what came since.
_FULL_EVERY = 200


class IdleCollector:
    """Takes over from Python's automatic collector.

    Freezing alone can make p99.9 worse, because it resets the rule that delays full collections; hence the
    automatic collector is off and young generations are collected here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._young = 0
        self.frozen = 0

    def install(self) -> None:
        """Collect once, move everything alive out of the collector's sight, and switch the automatic one off."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self.frozen = gc.get_freeze_count()

    def remove(self) -> None:
        """Back to Python's own way."""
        gc.enable()
        gc.unfreeze()

    def between_batches(self, *, idle: bool) -> None:
        """Collect if enough objects have come since and the moment is right."""
        fresh = gc.get_count()[0]
        if fresh < (IDLE_OBJECTS if idle else FORCED_OBJECTS) or not self._lock.acquire(blocking=False):
            return
        try:
            self._young += 1
            gc.collect(2 if idle and self._young % _FULL_EVERY == 0 else 1)
        finally:
            self._lock.release()
