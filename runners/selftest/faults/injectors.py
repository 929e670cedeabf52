"""Faults on a request's path.

Every injector blocks or works for about the requested milliseconds and returns its own measurement as :class:`Done`.
They are made for the self-test's service, and also used in tests.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from latfix.runners.selftest.faults.fault_log import Done, FaultLog, Stopwatch, fastest_ns
from latfix.runners.selftest.faults.memory import Fragments, Heap, HeapGrowth, PageFaults, touch, touch_held
from latfix.runners.selftest.faults.neighbor import GROUP_VARIABLE, Neighbor
from latfix.spans import span

Inject = Callable[[float], Done]
#: Denormal numbers are a fault if they are more than this many times slower than others.
_SLOWER = 3.0
#: Roots of a vector in one measurement of their time.
_ROUNDS = 20


def sleep(ms: float) -> Done:
    """Wait, as for a reply, without a span."""
    watch = Stopwatch()
    time.sleep(ms / 1e3)
    return watch.stop()


def declared_sleep(ms: float) -> Done:
    """Wait inside a declared span."""
    watch = Stopwatch()
    with span("dependency"):
        time.sleep(ms / 1e3)
    return watch.stop()


class ExtraWork:
    """CPU work unrelated to any feature of the request: operators on a small matrix, outside the interpreter lock."""

    _SIZE = 128

    def __init__(self) -> None:
        import torch

        self._matrix = torch.full((self._SIZE, self._SIZE), 1.0 / self._SIZE)

    def __call__(self, ms: float) -> Done:
        """Work until this thread has used ``ms`` of processor time."""
        watch = Stopwatch()
        end = time.thread_time_ns() + int(ms * 1e6)
        while time.thread_time_ns() < end:
            self._matrix = self._matrix @ self._matrix
        return watch.stop()


class Collections:
    """Full garbage collections of a heap, whose size is chosen so that one takes a given time.

    Earlier objects are frozen, so that only this heap is traversed.

    :param ms: requested duration of a full collection.
    """

    _OBJECTS = 10_000
    _MOST_OBJECTS = 4_000_000
    _TRIES = 12

    def __init__(self, ms: float) -> None:
        gc.collect()
        gc.freeze()
        # Prevent automatic full collections, which would traverse this heap too.
        gc.set_threshold(100_000, 50, 1_000_000)
        self.heap: list[Any] = self._objects(self._OBJECTS)
        for _ in range(self._TRIES):
            self()  # the first collection after a change is slower than later ones
            took_ms = sorted(self().ns for _ in range(3))[1] / 1e6
            if abs(took_ms - ms) < 0.08 * ms:
                break
            # Time grows faster than the number of objects, as larger heaps exceed the caches: resize in steps.
            factor = min(max(ms / max(took_ms, 1e-3), 0.5), 3.0)
            count = min(int(len(self.heap) * factor), self._MOST_OBJECTS)
            del self.heap[count:]
            self.heap += self._objects(count - len(self.heap))

    @staticmethod
    def _objects(count: int) -> list[Any]:
        return [[k, {"key": k}] for k in range(count)]

    def __call__(self, _ms: float = 0.0) -> Done:
        """Run a full collection; its duration depends on the heap only."""
        watch = Stopwatch()
        gc.collect()
        return watch.stop()


def retry(most_ms: float, ms: float) -> Done:
    """Sleep for a quarter of ``most_ms`` as often as comes nearest to ``ms``, as retries do."""
    watch, sleep_ms = Stopwatch(), most_ms / 4
    for _ in range(max(1, round(ms / sleep_ms))):
        time.sleep(sleep_ms / 1e3)
    return watch.stop()


class Denormals:
    """Square roots of denormal numbers: same operators and shapes as for others, but slow.

    Their products are slow on some processors only.
    """

    _ELEMENTS = 8192

    def __init__(self) -> None:
        import torch

        self._tiny, usual = (torch.full((self._ELEMENTS,), value) for value in (1e-39, 1.0))
        self._answer = torch.empty(self._ELEMENTS)
        self._slow_ns, self._fast_ns = (
            fastest_ns(partial(self._roots, values, _ROUNDS)) / _ROUNDS for values in (self._tiny, usual)
        )

    @property
    def times_slower(self) -> float:
        """How many times slower they are on this processor."""
        return self._slow_ns / self._fast_ns

    def _roots(self, values: Any, times: int) -> None:
        import torch

        for _ in range(times):
            torch.sqrt(values, out=self._answer)

    def __call__(self, ms: float) -> Done:
        """Compute as many roots as take ``ms`` longer than those of other numbers."""
        times = max(1, round(ms * 1e6 / max(self._slow_ns - self._fast_ns, 1.0)))
        watch = Stopwatch()
        self._roots(self._tiny, times)
        done = watch.stop()
        return watch.stop(max(done.ns - round(times * self._fast_ns), 0))


class HeldLock:
    """A lock that another thread holds while it sleeps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._taken = threading.Event()
        threading.Thread(target=self._hold, name="lock-holder", daemon=True).start()

    def _hold(self) -> None:
        while True:
            ms = self._requests.get()
            with self._lock:
                self._taken.set()
                time.sleep(ms / 1e3)

    def __call__(self, ms: float) -> Done:
        """Wait for the lock, which is held for ``ms``."""
        watch = Stopwatch()
        self._taken.clear()
        self._requests.put(ms)
        self._taken.wait()
        with self._lock:
            return watch.stop()


def _page_faults(reach: Callable[[int, int], int], most_ms: float) -> Inject:
    faults = PageFaults(reach)
    faults.reserve(most_ms)
    return faults


#: Kinds of faults that traffic can plan: the cause (empty for waits), and what makes the injector for faults of at
#: most so many milliseconds.
_KINDS: Mapping[str, tuple[str, Callable[[float], Inject]]] = {
    "sleep": ("", lambda _: sleep),
    "span": ("external.dependency", lambda _: declared_sleep),
    "gc": ("python.gc", Collections),
    "faults": ("memory.page_faults", partial(_page_faults, touch)),
    "work": ("host.slowdown", lambda _: ExtraWork()),
    "trim": ("memory.allocator", lambda _: HeapGrowth()),
    "fragment": ("memory.fragmentation", lambda _: Fragments()),
    "lock": ("unexplained", lambda _: HeldLock()),
    "held_faults": ("memory.page_faults", partial(_page_faults, touch_held)),
    "retry": ("", lambda most_ms: partial(retry, most_ms)),
    "denormals": ("numerics.denormals", lambda _: Denormals()),
    "neighbor": ("", lambda _: Neighbor(Path(os.environ[GROUP_VARIABLE]))),
}
#: A fault's code in the model's input is the place of its kind.
KINDS: tuple[str, ...] = ("none", *_KINDS)


def cause_of(kind: str, where: str) -> str:
    """The catalogue's cause of a fault; no listed cause covers waits inside the model."""
    return _KINDS[kind][0] or ("unexplained" if where == "model" else "external.dependency")


class Injectors:
    """The injectors that a run needs, made before it starts.

    :param kinds: the largest milliseconds of each needed kind of :data:`KINDS`.
    """

    def __init__(self, kinds: dict[str, float], log: FaultLog) -> None:
        self._log = log
        self._by_kind = {kind: _KINDS[kind][1](most_ms) for kind, most_ms in kinds.items()}

    def strike(self, where: str, kind: str, ms: float, request: str) -> None:
        """Inject one planned fault into a request and log it."""
        self._log.note(cause_of(kind, where), kind, self._by_kind[kind](ms), where=where, request=request)


def supported(kind: str) -> str:
    """Why a kind cannot be injected on this system; empty if it can."""
    if kind in ("trim", "fragment"):
        try:
            Heap()
        except (OSError, TypeError) as error:
            return str(error)
    if kind in ("faults", "held_faults") and sys.platform != "linux":
        return "madvise(MADV_DONTNEED) empties a mapping on Linux only"
    if kind == "denormals":
        return _no_slow_denormals()
    return ""


@cache
def _no_slow_denormals() -> str:
    slower = Denormals().times_slower
    return "" if slower > _SLOWER else f"denormal numbers are only {slower:.1f} times slower on this processor"
