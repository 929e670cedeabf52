"""Faults on no request's path: a thread that spins or runs garbage collections, in phases.

They run inside the service's process and are enabled by an environment variable, like a service's own background
work by its configuration.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from latfix.runners.selftest.faults.fault_log import Done, FaultLog, Stopwatch, fastest_ns
from latfix.runners.selftest.faults.injectors import Collections


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Phases of ``on_s`` seconds, one in every ``period_s``, at a random place that depends on ``seed``."""

    on_s: float
    period_s: float
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Phases:
        """Parse ``ON_S/PERIOD_S/SEED``, the output of :meth:`text`."""
        on_s, period_s, seed = text.split("/")
        return cls(on_s=float(on_s), period_s=float(period_s), seed=int(seed))

    def text(self) -> str:
        """The phases as one word, for an environment variable or an argument."""
        return f"{self.on_s:g}/{self.period_s:g}/{self.seed}"

    def starts_s(self) -> Iterator[float]:
        """Start of each phase in seconds from the beginning; endless."""
        rng = np.random.default_rng(self.seed)
        period = 0
        while True:
            yield (period + rng.uniform(0.1, max(0.1, 0.9 - self.on_s / self.period_s))) * self.period_s
            period += 1

    def waited(self, stop: threading.Event) -> Iterator[None]:
        """Yields at the start of each phase, from now on, until ``stop`` is set."""
        began = time.perf_counter()
        for start_s in self.starts_s():
            if stop.wait(max(0.0, began + start_s - time.perf_counter())):
                return
            yield


def spin(until_ns: int) -> None:
    """Run only Python bytecode, which releases the interpreter lock only on request."""
    k = 0
    while time.perf_counter_ns() < until_ns:
        for _ in range(200):
            k += 1


class PythonWork:
    """A fixed amount of bytecode that takes about ``ms``. It holds the interpreter lock except for switches."""

    _STEPS = 20_000

    def __init__(self, ms: float) -> None:
        self._steps = self._STEPS
        self._steps = round(self._STEPS * ms * 1e6 / fastest_ns(self))

    def __call__(self) -> None:
        for _ in range(self._steps):
            pass


class PhasedThread:
    """A thread that acts in phases and logs each, until it is stopped.

    :param phase: called with the length of a phase in seconds.
    """

    def __init__(self, kind: str, cause: str, phases: Phases, log: FaultLog, phase: Callable[[float], Done]) -> None:
        self._kind, self._cause, self._phases, self._log, self._phase = kind, cause, phases, log, phase
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=kind, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current phase."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for _ in self._phases.waited(self._stop):
            self._log.note(self._cause, self._kind, self._phase(self._phases.on_s))


def start_spinner(phases: Phases, log: FaultLog) -> PhasedThread:
    """A thread that spins in phases (``python.gil``)."""

    def phase(seconds: float) -> Done:
        watch = Stopwatch()
        spin(watch.start_ns + int(seconds * 1e9))
        return watch.stop()

    return PhasedThread("spinner", "python.gil", phases, log, phase)


def start_collector(phases: Phases, heap_ms: float, log: FaultLog) -> PhasedThread:
    """A thread that runs one full collection of about ``heap_ms`` per phase (``python.gc``)."""
    collections = Collections(heap_ms)
    return PhasedThread("collector", "python.gc", phases, log, lambda _seconds: collections(heap_ms))
