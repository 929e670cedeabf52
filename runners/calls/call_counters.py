"""Counters of a worker's model calls, kept by the thread that serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


class Tally(threading.local):
    """Per-thread count and duration of runs that replace a model's own operators.

    A compiled graph or converted model counts itself here, which shows a model that silently falls back to its own
    operators.
    """

    runs = 0
    ns = 0

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` so that each run is counted and timed here."""

        def counted(*args: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return function(*args)
            finally:
                self.runs += 1
                self.ns += time.perf_counter_ns() - start

        return counted


#: Maximum number of distinct shapes outside the engine kept for the report.
_EXAMPLES = 6
#: Runs and nanoseconds of a thread's tally, and its clock before a call. A tuple: one is made per batch.
TallyStart = tuple[int, int, int]


@dataclass(slots=True)
class Calls:
    """A worker's batches since its engine was made.

    :param tally: counts what replaces the model's own operators; ``None`` if nothing does.
    :param batches: model calls that returned.
    :param replaced: those in which a compiled graph or converted model ran; ``runs`` how often it ran in total.
    :param inference: those that ran in ``torch.inference_mode``.
    :param compute_ns: total duration of all calls; ``replaced_ns`` is the part inside the replacement.
    """

    tally: Tally | None = None
    batches: int = 0
    replaced: int = 0
    runs: int = 0
    inference: int = 0
    compute_ns: int = 0
    replaced_ns: int = 0

    def begin(self) -> TallyStart:
        """Take a reading before a call."""
        tally = self.tally
        if tally is None:
            return 0, 0, time.perf_counter_ns()
        return tally.runs, tally.ns, time.perf_counter_ns()

    def end(self, before: TallyStart, *, inference: bool) -> None:
        """Account for the call since ``before``, in the same thread."""
        runs, ns, at_ns = before
        self.batches += 1
        self.inference += inference
        self.compute_ns += time.perf_counter_ns() - at_ns
        if self.tally is not None:
            self.replaced += self.tally.runs > runs
            self.runs += self.tally.runs - runs
            self.replaced_ns += self.tally.ns - ns

    def reset(self) -> None:
        self.batches = self.replaced = self.runs = self.inference = self.compute_ns = self.replaced_ns = 0


def summary(every: Iterable[Calls]) -> dict[str, Any]:
    """All workers' counters together, as evidence for ``verify`` of the fixes."""
    calls = list(every)
    compute = sum(one.compute_ns for one in calls)
    return {
        "batches_run": sum(one.batches for one in calls),
        "batches_replaced": sum(one.replaced for one in calls),
        "replacing_runs": sum(one.runs for one in calls),
        "batches_inference": sum(one.inference for one in calls),
        "replaced_share": round(sum(one.replaced_ns for one in calls) / compute, 4) if compute else 0.0,
    }


class Outside:
    """Batches whose shapes a converted model was not built for, so the original model ran them.

    Counts for all workers of a service since its last engine was made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = 0
        self._shapes: list[str] = []

    def add(self, shapes: str) -> None:
        """Count a batch; from any thread."""
        with self._lock:
            self._batches += 1
            if shapes not in self._shapes and len(self._shapes) < _EXAMPLES:
                self._shapes.append(shapes)

    def reset(self) -> None:
        with self._lock:
            self._batches = 0
            self._shapes = []

    def to_json(self) -> dict[str, Any]:
        """The number of batches, and some of their shapes."""
        with self._lock:
            return {"batches": self._batches, "shapes": list(self._shapes)}

    def note(self) -> str:
        """A line for the run's record; empty if there were none."""
        counts = self.to_json()
        if not counts["batches"]:
            return ""
        return (
            f"{counts['batches']} batch(es) of shapes that no engine was built for ran on the original model:"
            f" {'; '.join(counts['shapes'])}"
        )
