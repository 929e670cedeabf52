"""Detects batches and prepares that do not end, and reports the thread, the duration and the stack."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType

from latfix.profilers.code_lines.stack_samples import running_frames
from latfix.profilers.probes.stage_recorder import StageRecorder
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

    :param what: ``batch 40 of 8 requests`` or ``prepare of request 12``.
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
    def words(self) -> str:
        """``worker 0 has been in batch 40 of 8 requests for 12 s (model.py:31 in forward)``."""
        seconds = (time.perf_counter_ns() - self.since_ns) / 1e9
        where = f" ({self.stack[-1]})" if self.stack else ""
        return f"{self.thread} has been in {self.what} for {seconds:.3g} s{where}"


class BatchWatchdog:
    """Watches the threads of a service during a replay.

    :param limit_s: maximum duration of a batch or a ``prepare``; 0: no limit, and nothing is noted. At least
        :data:`STALL_S` if torch compiles for it, if it is the first of its worker, or the first of its shape while
        the process has seen few shapes. Later new shapes get ten times the longest that one has taken.
    """

    def __init__(self, engine: Engine, recorder: StageRecorder, limit_s: float) -> None:
        self._engine, self._recorder, self._limit_s = engine, recorder, limit_s
        self._noted: dict[tuple[str, int], Stuck] = {}

    def look(self) -> tuple[Stuck | None, bool]:
        """Newly detected stuck work, if any; and True if some work exceeds its limit."""
        if not self._limit_s:
            return None, False
        fresh, beyond = None, False
        for stuck in self._candidates(time.perf_counter_ns() - int(_NOTED * self._limit_s * 1e9)):
            took = (time.perf_counter_ns() - stuck.since_ns) / 1e9
            beyond = beyond or took > stuck.limit_s
            key = (stuck.thread, stuck.since_ns)
            if key in self._noted or took > _NOTED * stuck.limit_s:
                fresh = fresh if key in self._noted else stuck
                self._noted[key] = stuck
        return fresh, beyond

    @property
    def worst(self) -> Stuck | None:
        """The noted work that has taken longest; ``None`` if there is none."""
        return min(self._noted.values(), key=lambda stuck: stuck.since_ns, default=None)

    def log(self) -> None:
        """Log the noted work that has not ended in the run's events, with its duration so far."""
        now = time.perf_counter_ns()
        unfinished = {(stuck.thread, stuck.since_ns) for stuck in self._candidates(now)}
        for key, stuck in self._noted.items():
            if key in unfinished:
                detail = {"message": stuck.words, "what": stuck.what, "stack": list(stuck.stack)}
                self._engine.events.add(
                    "hang",
                    stuck.since_ns,
                    now - stuck.since_ns,
                    thread=stuck.native_id,
                    batch_id=stuck.batch_id,
                    detail=detail,
                )

    def _candidates(self, begun_before_ns: int) -> list[Stuck]:
        """Work that began before a time and has not ended."""
        threads = self._engine.thread_ids()
        idents = {thread.native_id: thread.ident for thread in threading.enumerate()}
        work: list[Stuck] = []
        patient_s = max(self._limit_s, STALL_S)
        settings = self._engine.settings
        # With continuous batching, a batch's worker is one of the places of a worker.
        stepping = settings.batching == "continuous"
        places = settings.max_batch_size if stepping else 1

        def add(what: str, thread: str, native_id: int, batch_id: int, since_ns: int, limit_s: float) -> None:
            stack, compiling = _stack(frames.get(idents.get(native_id) or 0))
            work.append(
                Stuck(
                    what=what,
                    thread=thread,
                    native_id=native_id,
                    batch_id=batch_id,
                    since_ns=since_ns,
                    limit_s=patient_s if compiling else limit_s,
                    stack=stack,
                )
            )

        with running_frames() as frames:
            for batch in self._recorder.open_batches(begun_before_ns):
                what = f"batch {batch.batch_id} of {batch.size} request{'' if batch.size == 1 else 's'}"
                number = batch.worker // places
                limit_s = self._limit_s
                if batch.first_of_worker or stepping:
                    limit_s = patient_s
                elif batch.first_of_shape:
                    limit_s = self._new_shape_limit_s()
                add(what, f"worker {number}", threads["worker"][number], batch.batch_id, batch.since_ns, limit_s)
            for index, k, since_ns in self._recorder.open_prepares(begun_before_ns):
                what = f"prepare of request {index}"
                add(what, f"prepare thread {k}", threads["prepare"][k], -1, since_ns, self._limit_s)
        return work

    def _new_shape_limit_s(self) -> float:
        """Shapes that vary with the inputs are nearly always new: what they have cost so far is then known."""
        took = self._recorder.first_shapes_ns()
        if len(took) < _FEW_SHAPES:
            return max(self._limit_s, STALL_S)
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
