"""A file that ends: what is opened without a look may be a pipe that nobody writes to, or a device without end."""

from __future__ import annotations

from pathlib import Path

from latfix.errors import InputError


def check_regular(path: Path, expected: str) -> None:
    """Refuse what is there and is no regular file; what is not there is left to whoever opens it.

    :param expected: in words, for the message.
    :raises InputError: it is a folder, a pipe, a socket or a device.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: found no regular file; expected {expected}")
