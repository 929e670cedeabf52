"""Transparent decompression and decoding of files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from latfix.files.parquet_reader import arrow_file


def _zstandard(path: Path) -> Any:
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(arrow_file(path), "zstd"))


_OPENERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\x28\xb5\x2f\xfd": _zstandard,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
#: Exceptions from reading a truncated or damaged compressed file.
CUT_OFF = (EOFError, zlib.error, lzma.LZMAError, OSError)


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file, decompressed if it is compressed.

    :raises OSError: it cannot be opened; reading raises :data:`CUT_OFF`.
    """
    with path.open("rb") as file:
        head = file.read(8)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    return path.open("rb") if opener is None else opener(path)


class _Utf8(io.RawIOBase):
    """A text as UTF-8 without a byte order mark; UTF-16 is recoded, invalid bytes are replaced."""

    def __init__(self, path: Path) -> None:
        self._file: Any = open_decompressed(path)
        begin = self._file.read(2)
        wide = begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        self._decode = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace").decode
        self._left = self._decode(begin).encode()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._left and (read := self._file.read(len(into))):
            self._left = self._decode(read).encode()
        part = self._left[: len(into)] or self._decode(b"", True).encode()
        self._left = self._left[len(part) :]
        into[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_text(path: Path) -> IO[bytes]:
    """Open a text as UTF-8, decompressed.

    :raises OSError: it cannot be opened; reading raises :data:`CUT_OFF`.
    """
    return io.BufferedReader(_Utf8(path), 1 << 20)
