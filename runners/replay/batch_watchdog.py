"""Detects batches and prepares that do not end, and reports the thread, the duration and the stack."""

from __future__ import annotations

import math
import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType

from latfix.formatting import counted
from latfix.profilers.code_lines.stack_samples import running_frames
from latfix.profilers.probes.stage_recorder import OpenBatch, StageRecorder
from latfix.runners.engine.engine import Engine
from latfix.runners.replay.pipe_protocol import STALL_S

#: Work is noted at this share of the limit, before it ends the run.
_NOTED = 1 / 6
_FRAMES = 12
#: After this many new shapes, the next one may take this many times as long as the slowest of them.
_FEW_SHAPES, _TIMES_LONGER = 8, 10
#: Frames of this file are on a thread's stack only while torch compiles for it.
_COMPILING = "torch/_dynamo/convert_frame.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Work that has not ended.

    :param what: ``batch 40 of 8 requests``, ``a step of 3 requests`` or ``prepare of request 12``.
    :param thread: ``worker 0``; ``native_id`` its id.
    :param since_ns: when it began, on the clock of the stamps.
    :param limit_s: how long it may take.
    :param stack: one line per frame, the innermost last.
    """

    what: str
    thread: str
    native_id: int
    batch_id: int
    since_ns: int
    limit_s: float
    stack: tuple[str, ...]

    @property
    def took_s(self) -> float:
        """Seconds until now."""
        return (time.perf_counter_ns() - self.since_ns) / 1e9

    @property
    def words(self) -> str:
        """``worker 0 has been in batch 40 of 8 requests for 12 s (model.py:31 in forward)``."""
        where = f" ({self.stack[-1]})" if self.stack else ""
        return f"{self.thread} has been in {self.what} for {self.took_s:.3g} s{where}"


class BatchWatchdog:
    """Watches the threads of a service during a replay.

    :param limit_s: maximum duration of a batch, of a step of continuous batching, or of a ``prepare``; 0: no limit,
        and nothing is noted. At least :data:`STALL_S` if torch compiles for it, if it is the first of its worker, or
        the first of its shape while the process has seen few shapes. Later new shapes get ten times the longest that
        one has taken. If a worker has several batches, they share its thread, and the longest of their limits.
    :ivar patience_s: how long nothing at all may end: :data:`STALL_S`, or ``limit_s`` if it is longer or 0.
    """

    def __init__(self, engine: Engine, recorder: StageRecorder, limit_s: float) -> None:
        self._engine, self._recorder, self._limit_s = engine, recorder, limit_s
        self.patience_s = max(limit_s, STALL_S) if limit_s else math.inf
        self._noted: dict[tuple[str, int], Stuck] = {}

    def look(self) -> tuple[Stuck | None, Stuck | None]:
        """Newly detected stuck work, and work that exceeds its limit; ``None`` for none."""
        found = self._stuck()
        fresh = next((stuck for key, stuck in found.items() if key not in self._noted), None)
        beyond = next((stuck for stuck in found.values() if stuck.took_s > stuck.limit_s), None)
        self._noted = found  # what has ended is forgotten
        return fresh, beyond

    @property
    def worst(self) -> Stuck | None:
        """The stuck work that has taken longest, as of the last look; ``None`` if there is none."""
        return min(self._noted.values(), key=lambda stuck: stuck.since_ns, default=None)

    def log(self) -> None:
        """Log the stuck work in the run's events, with its duration so far."""
        for stuck in self._stuck().values():
            detail = {"message": stuck.words, "what": stuck.what, "stack": list(stuck.stack)}
            self._engine.events.add(
                "hang",
                stuck.since_ns,
                time.perf_counter_ns() - stuck.since_ns,
                thread=stuck.native_id,
                batch_id=stuck.batch_id,
                detail=detail,
            )

    def _stuck(self) -> dict[tuple[str, int], Stuck]:
        """Work that was noted or has used enough of its limit, by its thread and begin."""
        if not self._limit_s:
            return {}
        found = {}
        for stuck in self._candidates(time.perf_counter_ns() - int(_NOTED * self._limit_s * 1e9)):
            key = (stuck.thread, stuck.since_ns)
            if key in self._noted or stuck.took_s > _NOTED * stuck.limit_s:
                found[key] = stuck
        return found

    def _candidates(self, begun_before_ns: int) -> list[Stuck]:
        """Work that began before a time and has not ended."""
        threads = self._engine.thread_ids()
        idents = {thread.native_id: thread.ident for thread in threading.enumerate()}
        work: list[Stuck] = []

        def add(what: str, thread: str, native_id: int, batch_id: int, since_ns: int, limit_s: float) -> None:
            stack, compiling = _stack(frames.get(idents.get(native_id) or 0))
            work.append(
                Stuck(
                    what=what,
                    thread=thread,
                    native_id=native_id,
                    batch_id=batch_id,
                    since_ns=since_ns,
                    limit_s=self.patience_s if compiling else limit_s,
                    stack=stack,
                )
            )

        by_worker: dict[int, list[OpenBatch]] = {}
        for batch in self._recorder.open_batches(begun_before_ns, self._engine.settings.places):
            by_worker.setdefault(batch.worker, []).append(batch)
        with running_frames() as frames:
            for number, batches in by_worker.items():
                step_ns = self._engine.workers[number].step_ns
                limit_s = max(self._limit_of(one, new=one.since_ns >= step_ns) for one in batches)
                begun = [(f"batch {one.batch_id} of {counted(one.size, 'request')}", one.since_ns) for one in batches]
                if step_ns:  # a batch lasts as long as its answer: only a step shows a hang
                    begun = [(f"a step of {counted(len(batches), 'request')}", step_ns)]
                for (what, since_ns), batch in zip(begun, batches, strict=False):
                    if since_ns < begun_before_ns:
                        native_id = threads["worker"][number]
                        add(what, f"worker {number}", native_id, batch.batch_id, since_ns, limit_s)
            for index, k, since_ns in self._recorder.open_prepares(begun_before_ns):
                what = f"prepare of request {index}"
                add(what, f"prepare thread {k}", threads["prepare"][k], -1, since_ns, self._limit_s)
        return work

    def _limit_of(self, batch: OpenBatch, *, new: bool) -> float:
        """How long the worker may take.

        :param new: the batch was taken since; later steps do not run the shape of its inputs.
        """
        if batch.first_of_worker:
            return self.patience_s
        if not (batch.first_of_shape and new):
            return self._limit_s
        # Shapes that vary with the inputs are nearly always new: what they have cost so far is then known.
        took = self._recorder.first_shapes_ns()
        if len(took) < _FEW_SHAPES:
            return self.patience_s
        return max(self._limit_s, min(_TIMES_LONGER * float(took.max()) / 1e9, STALL_S))


def _stack(frame: FrameType | None) -> tuple[tuple[str, ...], bool]:
    """The innermost frames, one line each; and True if torch is compiling below them."""
    if frame is None:
        return (), False
    frames = traceback.extract_stack(frame)
    compiling = any(each.filename.replace("\\", "/").endswith(_COMPILING) for each in frames)
    own = [each for each in frames if "/latfix/runners/" not in each.filename.replace("\\", "/")] or frames
    lines = tuple(f"{each.filename.rpartition('/')[2]}:{each.lineno} in {each.name}" for each in own[-_FRAMES:])
    return lines, compiling
