"""Atomic writes: a reader, or a crash, finds either the old file or all of the new one."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yields the name of a temporary file next to ``path``; at the end it is moved to ``path``.

    Its bytes are on disk before it is moved; it is removed if the block raises. A pipe or device receives the bytes
    itself and is never replaced. Of a link, such as ``/dev/stdout``, the file that it names is replaced.

    :raises OSError: the file cannot be written or moved; its ``filename`` is ``path``, also if a write failed.
    """
    device = is_device(path)
    path = Path(os.path.realpath(path)) if path.is_symlink() and not device else path
    temporary = path if device else path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        if not device:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        if not device:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file.

    :raises OSError: it cannot be written.
    """
    with replacement(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8.

    :raises OSError: it cannot be written.
    :raises UnicodeEncodeError: the text holds half of a surrogate pair.
    """
    write_bytes(path, text.encode())


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document.

    :raises OSError: the file cannot be written.
    :raises ValueError: a number is not finite.
    """
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def is_device(path: Path) -> bool:
    """True if the path exists and is neither file nor folder, such as a pipe or ``/dev/null``."""
    return path.exists() and not path.is_file() and not path.is_dir()
