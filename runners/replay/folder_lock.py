"""Claims folders for this process, so that no other process writes into one of them at the same time.

An empty folder does not show that a process is about to write into it: a run's first file appears long after the
check. A lock file, created exclusively and held locked, marks the claim until the command ends. The lock ends with
the process, so a killed command's folder can be reopened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import BinaryIO

CLAIM = ".latfix-claim"
#: Output of the model's process. It alone in a folder is of a service that failed before anything was recorded.
LOG = "runner.log"
#: Large enough that an almost full disk refuses it.
_BYTES = b"\0" * 4096
_claimed: dict[Path, BinaryIO] = {}


def unused(folder: Path, *, claimed: bool = False) -> bool:
    """True if a folder has no results, nor, unless ``claimed``, a claim."""
    return {one.name for one in folder.iterdir()} <= {LOG, *([CLAIM] if claimed else [])}


def claim(folder: Path) -> bool:
    """Claim an existing folder. True if it was unused and unclaimed; an OSError if it cannot be written."""
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
    # Another process may have come, written and ended between the check of the folder and the claim.
    if unused(folder, claimed=True):
        return True
    _give_up(file)
    return False


def claim_again(folder: Path) -> bool:
    """Claim a folder that an earlier command has written into. True if no other process works in it."""
    file = folder / CLAIM
    stream = file.open("ab")
    # The other process may have ended and removed the file since it was opened; a lock on a removed file is no claim.
    if _lock(stream) and file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
        _claimed[file] = stream
        return True
    stream.close()
    return False


def release_all() -> None:
    """End this process's claims; the files that it wrote remain."""
    for file in tuple(_claimed):
        _give_up(file)


def _lock(stream: BinaryIO) -> bool:
    """True if no other process holds the file, or if its disk does not support locks."""
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
