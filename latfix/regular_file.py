"""Refusing pipes and devices before they are read: they may wait, or go on, for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from latfix.errors import input_error


def check_regular(path: Path, expected: str) -> None:
    """See that reading a path comes to an end. A directory is let through: opening it says what it is.

    :param expected: what the file should be, for the message.
    :raises InputError: it is a pipe, a socket or a device.
    :raises OSError: it is missing or cannot be looked at, as opening it would.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise input_error(path, None, "no regular file", expected)
