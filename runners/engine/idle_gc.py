"""Garbage collection off the request path: objects frozen after load, young garbage collected between batches."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass

#: New container objects that justify a collection while idle.
IDLE_OBJECTS = 2_000
#: New container objects that force a collection while requests wait, so that memory stays bounded.
FORCED_OBJECTS = 200_000
#: Survivors of young collections that justify a full collection while idle. It walks all living objects, and a
#: request that arrives meanwhile waits for all of it, so neither too rarely nor too often.
IDLE_SURVIVORS = 100_000
#: Survivors that force a full collection while requests wait. Python's own rule is a quarter of the living objects.
FORCED_SURVIVORS = 400_000
_SHARE_ALIVE = 0.25


@dataclass(slots=True)
class Collections:
    """What an :class:`IdleCollector` did.

    :param young: young collections while no request was inside.
    :param forced: young collections that could not wait for that.
    :param full: full collections of everything since the freeze, while no request was inside.
    :param full_forced: full collections that could not wait: garbage came faster than idle moments.
    :param collected: objects found to be garbage.
    :param longest_ns: duration of the longest collection.
    :param frozen: objects that were alive at the start and are never visited again.
    """

    young: int = 0
    forced: int = 0
    full: int = 0
    full_forced: int = 0
    collected: int = 0
    longest_ns: int = 0
    frozen: int = 0


class IdleCollector:
    """Replaces Python's automatic collector.

    Freezing alone can worsen p99.9, because it resets the rule that delays full collections. Therefore the automatic
    collector is off, and young generations are collected here. Their survivors accumulate until a full collection,
    which walks only objects created since the freeze. It runs when idle, or when the number of survivors reaches a
    bound.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._survivors = 0
        self._alive = 0
        self._was_enabled = True
        self.done = Collections()

    def install(self) -> None:
        """Collect once, freeze all living objects, and disable the automatic collector."""
        gc.collect()
        gc.freeze()
        self._was_enabled = gc.isenabled()
        gc.disable()
        self.done.frozen = gc.get_freeze_count()

    def remove(self) -> None:
        """Restore the previous state: a program may have disabled the automatic collector itself."""
        if self._was_enabled:
            gc.enable()
        gc.unfreeze()

    def between_batches(self, *, idle: bool) -> None:
        """Collect if enough objects were created since and the moment is suitable."""
        fresh = gc.get_count()[0]
        if fresh < (IDLE_OBJECTS if idle else FORCED_OBJECTS) or not self._lock.acquire(blocking=False):
            return
        try:
            least = IDLE_SURVIVORS if idle else FORCED_SURVIVORS
            # In proportion to the living objects, which a full collection walks.
            full = self._survivors > max(least, _SHARE_ALIVE * self._alive)
            self._collect(fresh, full=full, idle=idle)
        finally:
            self._lock.release()

    def _collect(self, fresh: int, *, full: bool, idle: bool) -> None:
        started = time.perf_counter_ns()
        collected = gc.collect(2 if full else 1)
        done = self.done
        if full:
            # Objects freed by their reference count are not reported, so living objects are counted again.
            self._alive, self._survivors = len(gc.get_objects(generation=2)), 0
            done.full, done.full_forced = done.full + idle, done.full_forced + (not idle)
        else:
            self._survivors = max(self._survivors + fresh - collected, 0)
            done.young, done.forced = done.young + idle, done.forced + (not idle)
        done.collected += collected
        done.longest_ns = max(done.longest_ns, time.perf_counter_ns() - started)
