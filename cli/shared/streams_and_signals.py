"""The process of a command: standard streams that are closed, full or not UTF-8, and signals that terminate it."""

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

#: Termination signals of job schedulers, container runtimes and terminals: interruptions, like Ctrl-C.
_TERMINATION = (signal.SIGTERM, signal.SIGHUP)


def repair_streams() -> None:
    """Open closed standard streams, and make output streams accept any text.

    Otherwise a file opened later could get the number of a closed stream, and receive its output. Characters that the
    encoding lacks are written as escapes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # gets the lowest free number: this one
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    nowhere = Path(os.devnull)
    sys.stdin = sys.stdin or nowhere.open(encoding="utf-8")
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_error(line: str) -> None:
    """Print a line on standard error; if that fails, only the exit code remains."""
    try:
        sys.stderr.write(f"latfix: {line}\n")
        sys.stderr.flush()
    except OSError:
        discard(2)


def discard(number: int) -> None:
    """Redirect a standard stream to the null device, including its buffered output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Turn termination signals into :class:`KeyboardInterrupt`, so that records are closed and reported.

    Signals with a handler, or ignored (``nohup``), are left alone.
    """

    def interrupted(_number: int, _frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    replaced = []
    if threading.current_thread() is threading.main_thread():
        replaced = [number for number in _TERMINATION if signal.getsignal(number) == signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, interrupted)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)
