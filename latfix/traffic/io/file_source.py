"""The bytes of a traffic file: read, unpacked if compressed, and classified by content."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latfix.errors import InputError, input_error
from latfix.files.regular_file import check_regular

#: More text than this after unpacking is refused: a decompression bomb, or not a traffic file.
MAX_UNPACKED_BYTES = 8 * 1024**3

_EXPECTED = "recorded traffic as JSON Lines, CSV or Parquet (gzip allowed)"
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\x00": "an xz archive",
    b"ARROW1": "an Arrow IPC file",
    b"SQLite format 3": "an SQLite database",
    b"\x89PNG": "a PNG picture",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program",
    b"\x80\x04\x95": "a pickle",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file's content.

    :param path: as the user named it.
    :param sha256: of the file on disk, compressed or not.
    :param kind: ``parquet`` or ``text``.
    :param data: unpacked bytes.
    :param compressed: True if it was gzip.
    """

    path: Path
    sha256: str
    kind: Literal["parquet", "text"]
    data: bytes
    compressed: bool


def read_source(path: Path) -> Source:
    """Read and unpack ``path``.

    :raises InputError: it is missing, unreadable, empty, damaged or not a kind of file that holds traffic.
    """
    raw = _read_bytes(path)
    compressed = raw.startswith(_GZIP)
    data = _unpack(raw, path) if compressed else raw
    if not data.strip():
        raise input_error(path, None, "an empty file", _EXPECTED)
    if data.startswith(_PARQUET):
        kind: Literal["parquet", "text"] = "parquet"
    else:
        _refuse_binary(data, path)
        kind = "text"
    return Source(path=path, sha256=hashlib.sha256(raw).hexdigest(), kind=kind, data=data, compressed=compressed)


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise input_error(path, None, "a directory", _EXPECTED, "name the file inside it")
        check_regular(path, _EXPECTED)
        return path.read_bytes()
    except FileNotFoundError as error:
        raise input_error(path, None, "no such file", _EXPECTED) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{str(path)!r}: cannot be read ({reason}); expected {_EXPECTED}") from error


def _unpack(raw: bytes, path: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            data = stream.read(MAX_UNPACKED_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise input_error(path, None, f"a damaged gzip file ({error})", "a whole one", "copy it again") from error
    if len(data) > MAX_UNPACKED_BYTES:
        raise input_error(path, None, "more than 8 GiB after unpacking", _EXPECTED, "split the file")
    return data


def _refuse_binary(data: bytes, path: Path) -> None:
    for magic, name in _FOREIGN.items():
        if data.startswith(magic):
            todo = "save it as UTF-8" if name.startswith("UTF-16") else "unpack or convert it first"
            raise input_error(path, None, name, _EXPECTED, todo)
    if b"\x00" in data:
        line = data.count(b"\n", 0, data.index(b"\x00")) + 1
        raise input_error(path, line, "a NUL byte, so binary data", _EXPECTED)
