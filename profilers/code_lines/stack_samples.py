"""Where the service's threads are in the user's Python, looked at each time the lock probe has the interpreter lock.

It takes the lock no more often than that probe does anyway. A look is possible only where a thread has let go of the
lock: one that C code held is seen on the next line that Python gets to, so that such time is charged there.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import latfix
from latfix.profilers.probes.stage_recorder import SampleLog

SERIES = "stack."
#: Threads that are looked at, by the beginning of their name; its end is their number.
_ROLES = {"latfix-worker-": f"{SERIES}worker.", "latfix-prepare-": f"{SERIES}prepare."}
_PACKAGE = str(Path(latfix.__file__).parent)
_SAMPLES = str(Path(latfix.__file__).parent / "sample_workloads")
#: Frames of a stack that are kept, the innermost, and stacks of a run.
_DEEPEST, _MOST_STACKS = 24, 2000
_LONGEST = 300

Key = tuple[tuple[CodeType, int], ...]


class StackLog:
    """Logs ``stack.<role>.<number>``: which of :attr:`stacks` a thread was in.

    :ivar stacks: frames as ``file:line function``, the innermost first; only those of the user's code and libraries.
    """

    def __init__(self, samples: SampleLog) -> None:
        self._samples = samples
        self._known: dict[Key, int] = {}
        self._series: dict[int, str] = {}
        self._users: dict[str, bool] = {}
        self.stacks: list[tuple[str, ...]] = []

    def watch(self) -> None:
        """Look at the service's threads that are running now."""
        for thread in threading.enumerate():
            for start, series in _ROLES.items():
                if thread.name.startswith(start) and thread.ident is not None:
                    self._series[thread.ident] = series + thread.name.removeprefix(start)

    def look(self, now_ns: int) -> None:
        """Log where each thread is; nothing of one that is in no code but latfix's."""
        with running_frames() as frames:
            for ident, series in self._series.items():
                key = self._key(frames.get(ident))
                if key and (number := self._number(key)) is not None:
                    self._samples.add(now_ns, series, number)

    def _key(self, frame: FrameType | None) -> Key:
        found: list[tuple[CodeType, int]] = []
        while frame is not None and len(found) < _DEEPEST:
            code = frame.f_code
            users = self._users.get(code.co_filename)
            if users is None:
                users = self._users[code.co_filename] = is_users(code.co_filename)
            if users:
                found.append((code, frame.f_lineno or code.co_firstlineno))
            frame = frame.f_back
        return tuple(found)

    def _number(self, key: Key) -> int | None:
        number = self._known.get(key)
        if number is None and len(self.stacks) < _MOST_STACKS:
            number = self._known[key] = len(self.stacks)
            self.stacks.append(
                tuple(f"{code.co_filename[-_LONGEST:]}:{line} {code.co_qualname}" for code, line in key)
            )
        return number


@contextmanager
def running_frames() -> Iterator[dict[int, FrameType]]:
    """What each thread runs, by its identifier; frames are to be walked within.

    CPython 3.11 makes the objects of frames only when they are asked for, and a collection that this sets off may let
    another thread go on: it leaves the frame whose object is being made, which then refers to freed memory
    (python/cpython#106883). So nothing is collected meanwhile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield sys._current_frames()
    finally:
        if enabled:
            gc.enable()


def is_users(file: str) -> bool:
    """Whether a file is neither latfix's nor the module of threads, which is at the root of all stacks."""
    if file == threading.__file__:
        return False
    return not file.startswith(_PACKAGE) or file.startswith(_SAMPLES)
