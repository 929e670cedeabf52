"""Small files of the kernel's, kept open: opening one takes longer than reading it, and a read makes it anew."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

#: No line of these files is longer.
_BUFFER = 128
_pread = ctypes.PyDLL(None).pread


class KeptOpen:
    """A file whose readings may let go of the interpreter lock.

    :raises OSError: it cannot be opened.
    """

    def __init__(self, path: str | Path, size: int = 4096) -> None:
        self._fd = -1  # what ``__del__`` finds where it cannot be opened
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        """Its content now."""
        return os.pread(self._fd, self._size, 0)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class LockHeldFile:
    """A file of one line that is read without letting go of the interpreter lock, for the requests' path.

    A read that lets go hands the lock to any thread that wants it, and takes it back milliseconds later where that
    thread runs Python: the probe would then cause the wait that it is to measure. The kernel makes these files up in
    memory, in about a microsecond.
    """

    __slots__ = ("_arguments", "_buffer", "_fd")

    def __init__(self, path: str) -> None:
        self._buffer = ctypes.create_string_buffer(_BUFFER)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        # Made once: converting them takes longer than the call.
        where, size, offset = ctypes.byref(self._buffer), ctypes.c_size_t(_BUFFER), ctypes.c_ssize_t(0)
        self._arguments = (ctypes.c_int(self._fd), where, size, offset)

    @property
    def open(self) -> bool:
        """Whether it can be read."""
        return self._fd >= 0

    def read(self) -> bytes:
        """Its content now; empty where it cannot be read."""
        length = _pread(*self._arguments)
        return self._buffer.raw[:length] if length > 0 else b""

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._arguments = (ctypes.c_int(-1), *self._arguments[1:])

    def __del__(self) -> None:
        self.close()
