"""Small kernel files that are kept open: opening takes longer than reading, and each read returns current values."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

#: No line of these files is longer.
_BUFFER = 128
_pread = ctypes.PyDLL(None).pread


class KeptOpen:
    """A file whose readings may release the interpreter lock.

    :raises OSError: it cannot be opened.
    """

    def __init__(self, path: str | Path, size: int = 4096) -> None:
        self._fd = -1  # for ``__del__`` if opening fails
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        return os.pread(self._fd, self._size, 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class LockHeldFile(KeptOpen):
    """A file of one line that is read while holding the interpreter lock, for the requests' path.

    A read that releases the lock may get it back milliseconds later, if another thread runs Python: the probe would
    cause the wait that it measures. The kernel generates these files in about a microsecond.
    """

    def __init__(self, path: str) -> None:
        self._buffer = ctypes.create_string_buffer(_BUFFER)
        with contextlib.suppress(OSError):
            super().__init__(path)
        # Converted once: the conversion takes longer than the call.
        where, size, offset = ctypes.byref(self._buffer), ctypes.c_size_t(_BUFFER), ctypes.c_ssize_t(0)
        self._arguments = (ctypes.c_int(self._fd), where, size, offset)

    @property
    def open(self) -> bool:
        return self._fd >= 0

    def read(self) -> bytes:
        """Its current content; empty if it cannot be read."""
        length = _pread(*self._arguments)
        return self._buffer.raw[:length] if length > 0 else b""

    def close(self) -> None:
        super().close()
        self._arguments = (ctypes.c_int(-1), *self._arguments[1:])
