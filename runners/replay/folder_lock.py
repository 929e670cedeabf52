"""Folders that this process has taken for what it writes, so that no other process takes one of them too.

An empty folder says nothing about who is about to write into it: the first file of a run comes long after the look
at the folder. A file that only one process can make stands for the claim until the command ends.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

CLAIM = ".latfix-claim"
#: As much as a disk that is almost full may refuse.
_BYTES = b"\0" * 4096
_claimed: list[Path] = []


def claim(folder: Path) -> bool:
    """Take a folder that exists; whether it was empty, and nobody else's.

    :raises OSError: the folder cannot be written, or its disk is full.
    """
    file = folder / CLAIM
    try:
        with file.open("xb") as stream:
            _claimed.append(file)
            stream.write(_BYTES)
    except FileExistsError:
        return False
    except OSError:
        _give_up(file)
        raise
    # Between a look at the folder and the claim another process may have come, written and gone.
    if [one.name for one in folder.iterdir()] == [CLAIM]:
        return True
    _give_up(file)
    return False


def release_all() -> None:
    """End the claims of this process: what it wrote speaks for itself, and the folders hold nothing else."""
    for file in tuple(_claimed):
        _give_up(file)


def _give_up(file: Path) -> None:
    if file in _claimed:  # another process's claim stays
        _claimed.remove(file)
        with contextlib.suppress(OSError):
            file.unlink()
