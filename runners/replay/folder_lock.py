"""Folders that this process has taken for what it writes, so that no other process writes into one of them too.

An empty folder says nothing about who is about to write into it: the first file of a run comes long after the look
at the folder. A file that only one process can make, and that it holds locked, stands for the claim until the command
ends; the lock ends with the process, however it ends, and so a killed command's folder can be gone on with.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import BinaryIO

CLAIM = ".latfix-claim"
#: As much as a disk that is almost full may refuse.
_BYTES = b"\0" * 4096
_claimed: dict[Path, BinaryIO] = {}


def claim(folder: Path) -> bool:
    """Take a folder that exists; whether it was empty, and nobody else's.

    :raises OSError: the folder cannot be written, or its disk is full.
    """
    file = folder / CLAIM
    try:
        stream = _claimed[file] = file.open("xb")
        _lock(stream)
        stream.write(_BYTES)
        stream.flush()
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


def claim_again(folder: Path) -> bool:
    """Take a folder that an earlier command has written into; whether no other process is at work in it.

    :raises OSError: the folder cannot be written.
    """
    file = folder / CLAIM
    stream = file.open("ab")
    # The other one may have ended, and removed the file, since it was opened: a lock on it claims nothing then.
    if _lock(stream) and file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
        _claimed[file] = stream
        return True
    stream.close()
    return False


def release_all() -> None:
    """End the claims of this process: what it wrote speaks for itself, and the folders hold nothing else."""
    for file in tuple(_claimed):
        _give_up(file)


def _lock(stream: BinaryIO) -> bool:
    """Whether nobody else holds the file; where its disk knows no locks, nobody is known to."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _give_up(file: Path) -> None:
    if file in _claimed:  # another process's claim stays
        with contextlib.suppress(OSError):
            file.unlink()
        with contextlib.suppress(OSError):  # what a full disk did not take
            _claimed.pop(file).close()
