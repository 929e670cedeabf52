"""Threads' units of work one after the other, and how much of something grew in each between any two moments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.profilers.evidence.work_model import Floats, Ints

_REPLAYER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Timeline:
    """Quantities that grow evenly within each of a thread's units, which follow one another.

    :param start: ``(u,)``; ``end`` likewise; ``so_far`` ``(q, u + 1)`` sums of each quantity before each unit.
    """

    start: Ints
    end: Ints
    so_far: Floats

    @classmethod
    def of(cls, start: Ints, end: Ints, values: Floats) -> Timeline:
        order = np.argsort(start, kind="stable")
        so_far = np.zeros((len(values), len(start) + 1))
        np.cumsum(values[:, order], axis=1, out=so_far[:, 1:])
        return cls(start[order], end[order], so_far)

    def between(self, start: Ints, end: Ints) -> Floats:
        """``(q, n)``: by how much each quantity grew between two moments."""
        return self._until(end) - self._until(start)

    def _until(self, t: Ints) -> Floats:
        if not len(self.start):
            return np.zeros((len(self.so_far), len(t)))
        k = np.maximum(np.searchsorted(self.start, t, side="right") - 1, 0)
        length = np.maximum(self.end[k] - self.start[k], 1)
        part = np.clip((t - self.start[k]) / length, 0.0, 1.0)
        before = self.so_far[:, k]
        return np.asarray(before + part * (self.so_far[:, k + 1] - before), dtype=np.float64)


def places(name: str, thread: Ints) -> Ints:
    """A number for each thread: prepare threads from zero up, workers from minus one down; the replayer is none."""
    if name == "dispatch":
        return np.full(len(thread), _REPLAYER, np.int64)
    return thread if name == "prepare" else -1 - thread
