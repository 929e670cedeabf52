"""Stack samples of the service's threads, taken each time the lock probe has the interpreter lock.

Sampling does not take the lock more often than the probe does. A thread is sampled only when it has released the
lock: if C code held it, the sample shows the next line of Python, so such time is attributed there.
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
#: Sampled threads by prefix of their name, which is followed by their number.
_ROLES = {"latfix-worker-": f"{SERIES}worker.", "latfix-prepare-": f"{SERIES}prepare."}
_PACKAGE = str(Path(latfix.__file__).parent)
_SAMPLES = str(Path(latfix.__file__).parent / "sample_workloads")
#: Number of innermost frames kept per stack, and of distinct stacks per run.
_DEEPEST, _MOST_STACKS = 24, 2000
_LONGEST = 300

Key = tuple[tuple[CodeType, int], ...]


class StackLog:
    """Logs ``stack.<role>.<number>``: the index in :attr:`stacks` of a thread's stack.

    :ivar stacks: frames as ``file:line function``, innermost first; only those of the user's code and libraries.
    """

    def __init__(self, samples: SampleLog) -> None:
        self._samples = samples
        self._known: dict[Key, int] = {}
        self._series: dict[int, str] = {}
        self._users: dict[str, bool] = {}
        self.stacks: list[tuple[str, ...]] = []

    def watch(self) -> None:
        """Select the service's threads that are running now."""
        for thread in threading.enumerate():
            for start, series in _ROLES.items():
                if thread.name.startswith(start) and thread.ident is not None:
                    self._series[thread.ident] = series + thread.name.removeprefix(start)

    def look(self, now_ns: int) -> None:
        """Log the stack of each thread, except of threads that run only latfix's code."""
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
                users = self._users[code.co_filename] = is_user_code(code.co_filename)
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
    """The current frame of each thread by its identifier; walk frames only within the context.

    CPython 3.11 creates frame objects on demand. A collection triggered by that may let another thread run and leave
    the frame whose object is being created, which then refers to freed memory (python/cpython#106883). So collection
    is disabled in the context.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield sys._current_frames()
    finally:
        if enabled:
            gc.enable()


def is_user_code(file: str) -> bool:
    """True if a file is neither latfix's nor ``threading``, which is at the root of all stacks."""
    if file == threading.__file__:
        return False
    return not file.startswith(_PACKAGE) or file.startswith(_SAMPLES)
