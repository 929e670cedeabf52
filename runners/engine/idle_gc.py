"""Garbage collection out of the requests' way: frozen after load, collected between batches when idle."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass

#: New container objects after which a collection is worth an idle moment …
IDLE_OBJECTS = 2_000
#: … and after which it is done although requests wait, so that memory cannot grow without bound.
FORCED_OBJECTS = 200_000
#: Objects that outlived a young collection after which an idle moment goes to a full one: a request that comes
#: meanwhile waits for all of it, and what is alive is walked each time, so neither many nor few …
IDLE_SURVIVORS = 100_000
#: … and after which it is done although requests wait. Python's own rule adds a quarter of what is alive.
FORCED_SURVIVORS = 400_000
_SHARE_ALIVE = 0.25


@dataclass(slots=True)
class Collections:
    """What an :class:`IdleCollector` did.

    :param young: collections of young objects while no request was inside.
    :param forced: those that could not wait for such a moment.
    :param full: collections of everything that came since the freeze, while no request was inside.
    :param full_forced: those that could not wait: garbage came faster than idle moments.
    :param collected: objects found to be garbage.
    :param longest_ns: the longest of all.
    :param frozen: objects that were alive at the start and are never looked at again.
    """

    young: int = 0
    forced: int = 0
    full: int = 0
    full_forced: int = 0
    collected: int = 0
    longest_ns: int = 0
    frozen: int = 0


class IdleCollector:
    """Takes over from Python's automatic collector.

    Freezing alone can make p99.9 worse, because it resets the rule that delays full collections; hence the
    automatic collector is off and young generations are collected here. What survives them piles up until a full
    collection, which walks only what came since the freeze: it is done when idle, and in any case before
    the pile is larger than a bound, counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._survivors = 0
        self._alive = 0
        self._was_enabled = True
        self.done = Collections()

    @property
    def frozen(self) -> int:
        """Objects out of the collector's sight."""
        return self.done.frozen

    def install(self) -> None:
        """Collect once, move everything alive out of the collector's sight, and switch the automatic one off."""
        gc.collect()
        gc.freeze()
        self._was_enabled = gc.isenabled()
        gc.disable()
        self.done.frozen = gc.get_freeze_count()

    def remove(self) -> None:
        """Back to what was there before: a program may have switched the automatic collector off itself."""
        if self._was_enabled:
            gc.enable()
        gc.unfreeze()

    def between_batches(self, *, idle: bool) -> None:
        """Collect if enough objects have come since and the moment is right."""
        fresh = gc.get_count()[0]
        if fresh < (IDLE_OBJECTS if idle else FORCED_OBJECTS) or not self._lock.acquire(blocking=False):
            return
        try:
            full = self._survivors > self._bound(IDLE_SURVIVORS if idle else FORCED_SURVIVORS)
            self._collect(fresh, full=full, idle=idle)
        finally:
            self._lock.release()

    def _bound(self, least: int) -> float:
        """The pile of survivors that calls for a full collection: its cost stays in proportion to what came."""
        return max(least, _SHARE_ALIVE * self._alive)

    def _collect(self, fresh: int, *, full: bool, idle: bool) -> None:
        started = time.perf_counter_ns()
        found = gc.collect(2 if full else 1)
        done = self.done
        if full:
            # Those that died by their reference count were never reported, so what is alive is counted anew.
            self._alive, self._survivors = len(gc.get_objects(generation=2)), 0
            done.full, done.full_forced = done.full + idle, done.full_forced + (not idle)
        else:
            self._survivors = max(self._survivors + fresh - found, 0)
            done.young, done.forced = done.young + idle, done.forced + (not idle)
        done.collected += found
        done.longest_ns = max(done.longest_ns, time.perf_counter_ns() - started)
