"""Work that grows with a service's age, together with memory, a cache, sessions, or nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

from latfix.runners.selftest.faults.fault_log import Done, Stopwatch, fastest_ns
from latfix.runners.selftest.faults.injectors import ExtraWork

#: Kinds of growth, each the last part of a cause's id.
GROWTHS: tuple[str, ...] = ("memory", "cache", "sessions", "unknown", "shift", "scan")
#: Numbers in an entry of the cache.
_ENTRY = 64
#: Growths with another name in the catalogue.
_NAMES = {"shift": "unknown", "scan": "cache"}
#: Number of entries for measuring the time of a step.
_STEPS = 20_000


class Growth:
    """Slows requests down as the service ages.

    :param kind: one of :data:`GROWTHS`; ``shift`` is a level shift without visible cause, ``scan`` a list that Python
        iterates over.
    :param most_ms: additional time of the last of ``requests``, compared with the first.
    """

    def __init__(self, kind: str, most_ms: float, requests: int) -> None:
        self.cause = f"drift.{_NAMES.get(kind, kind)}"
        self._most_ms, self._requests = most_ms, max(requests, 1)
        self._work = ExtraWork()
        self._seen: set[str] = set()
        self._cached: dict[str, list[float]] = {}
        self._served = 0
        self._lock = threading.Lock()
        self._kind = kind
        self._blocks: list[Any] = []
        self._block = _block_for(most_ms / self._requests) if kind == "memory" else 0
        self._entries: list[tuple[int, str]] = []
        self._added = _entries_for(most_ms / self._requests) if kind == "scan" else 0

    def __call__(self, session: str) -> Done:
        """Slow one request down."""
        if self._kind == "scan":  # the interpreter lock is enough
            self._served += 1
            return self._scan(session)
        with self._lock:
            self._served += 1
            if self._kind == "memory":
                return self._read_all()
            return self._work(self._most_ms * min(self._share(session), 1.0))

    def _share(self, session: str) -> float:
        """The service's age: 1 after all planned requests."""
        if self._kind == "cache":  # one more entry, never evicted; the work is proportional to their number
            self._cached[f"{session}/{self._served}"] = [self._served + 1 / k for k in range(1, _ENTRY + 1)]
            return len(self._cached) / self._requests
        if self._kind == "sessions":  # grows with the number of sessions, not of requests
            self._seen.add(session)
            return 2.0 * len(self._seen) / self._requests
        share = self._served / self._requests
        return float(share > 0.5) if self._kind == "shift" else share

    def _scan(self, session: str) -> Done:
        """Add some entries, and search all of them in Python."""
        watch = Stopwatch()
        self._entries += [(self._served, f"{session}/{k}") for k in range(self._added)]
        _found(self._entries, -1)
        return watch.stop()

    def _read_all(self) -> Done:
        """Add a buffer, and read all of them."""
        import numpy as np

        watch = Stopwatch()
        self._blocks.append(np.ones(self._block))
        for block in self._blocks:
            block.sum()
        return watch.stop()


def _found(entries: list[tuple[int, str]], wanted: int) -> int:
    """Count the entries with that number, deliberately in a Python loop."""
    found = 0
    for number, _ in entries:
        if number == wanted:
            found += 1
    return found


def _entries_for(ms: float) -> int:
    """How many entries Python iterates over in ``ms``."""
    entries = [(k, "") for k in range(_STEPS)]
    return max(1, round(ms * 1e6 / fastest_ns(lambda: _found(entries, -1)) * _STEPS))


def _block_for(ms: float) -> int:
    """How many uncached numbers can be summed in ``ms``."""
    import numpy as np

    blocks = [np.ones(1 << 16) for _ in range(64)]
    best = 0.0
    for _ in range(3):
        start = time.perf_counter_ns()
        for block in blocks:
            block.sum()
        best = max(best, 64 * (1 << 16) / (time.perf_counter_ns() - start))
    return max(512, int(ms * 1e6 * best))
