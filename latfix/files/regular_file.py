"""Refusing pipes and devices before they are read: they may wait, or go on, for ever."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

from latfix.errors import input_error


def check_regular(path: Path, expected: str, *, folders: bool = True) -> None:
    """See that reading a path comes to an end. What is missing is let through: opening it says so.

    :param expected: what the file should be, for the message.
    :param folders: a folder is let through, too, for who opens it to tell.
    :raises InputError: it is a pipe, a socket or a device; or a folder, where that is not let through.
    """
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not (folders and stat.S_ISDIR(mode)):
            raise input_error(path, None, "no regular file", expected)
