"""Refuses to read pipes and devices, which may block or never end."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

from latfix.errors import input_error


def check_regular(path: Path, expected: str, *, folders: bool = True) -> None:
    """Validate that a path is a regular file. A missing one passes, because opening it reports that.

    :param expected: what the file should be, for the message.
    :param folders: a folder passes, too, because the caller reports it.
    :raises InputError: it is a pipe, a socket or a device; or a folder, unless ``folders``.
    """
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not (folders and stat.S_ISDIR(mode)):
            raise input_error(path, None, "no regular file", expected)
