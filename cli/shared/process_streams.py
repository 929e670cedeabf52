"""The process around a command: standard streams that are closed, full or not UTF-8; signals that ask it to end."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

#: How job schedulers, container runtimes and terminals ask a program to end. Each is an interruption, like Ctrl-C.
_ASKING_TO_END = (signal.SIGTERM, signal.SIGHUP)


def mend_streams() -> None:
    """Have all three standard streams there, and able to take any text.

    A file that is opened later would otherwise get the number of a stream that is closed, and be written to by
    whoever means the stream. Characters that an output's encoding lacks are written as escapes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the lowest number that is free: this one
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    nowhere = Path(os.devnull)
    sys.stdin = sys.stdin or nowhere.open(encoding="utf-8")
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def tell(line: str) -> None:
    """A line on standard error; where that takes nothing any more, the exit code alone has to tell."""
    try:
        sys.stderr.write(f"latfix: {line}\n")
        sys.stderr.flush()
    except OSError:
        discard(2)


def discard(number: int) -> None:
    """Let a standard stream go nowhere: what is still buffered for it has no place to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


@contextlib.contextmanager
def asked_to_end_is_interrupted() -> Iterator[None]:
    """Being asked to end raises :class:`KeyboardInterrupt`, so that what was recorded is closed and reported.

    Signals that somebody handles or ignores already (``nohup``) stay theirs.
    """

    def interrupted(_number: int, _frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in _ASKING_TO_END if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupted)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
