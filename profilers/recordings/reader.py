"""The interface of a recording's reader, and the head of a file by which it is recognized."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from latfix.errors import InputError, input_error
from latfix.files.decompressed import CUT_OFF, open_decompressed, open_text
from latfix.files.regular_file import check_regular
from latfix.results.diagnosis import Diagnosis

#: Decompressed bytes by which a file is recognized; more if its first line is JSON and longer.
_HEAD_BYTES, _LONGEST_LINE = 1 << 16, 1 << 20
#: Limits on the files of a folder that are considered: how many, and how deep.
_MOST_FILES, _DEEPEST = 400, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a user for reading a recording.

    :param percentile: where the tail begins; ``None`` for the reader's own choice.
    :param step: a regular expression for the names of steps in a device recording; empty for the reader's own choice.
    :param mapping: ``NAME=EXPRESSION`` for logs with custom column names.
    :param pattern: a regular expression with named groups for a text log; empty for known formats.
    :param times_only: requests need a time only, no latency.
    """

    percentile: float | None = None
    seed: int = 0
    step: str = ""
    mapping: tuple[str, ...] = ()
    pattern: str = ""
    times_only: bool = False


#: Options that apply to some kinds of recordings only, and what each expects.
OF_A_KIND: Mapping[str, str] = {
    "--step": "a recording of a device",
    "--map": "a log whose columns may have any name: Parquet, CSV, JSON Lines or text",
    "--pattern": "one file with a text log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A file or folder before it is read.

    :param head: the first bytes of a file, decompressed; empty for a folder.
    :param inside: the files of a folder, sorted by name; empty for a file.
    """

    path: Path
    head: bytes = b""
    inside: tuple[Recorded, ...] = ()

    @property
    def files(self) -> tuple[Recorded, ...]:
        """The file itself, or the files of the folder."""
        return self.inside or (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of recording.

    :param kind: ``source.kind`` of its diagnoses.
    :param reads: its format in words, for messages.
    :param knows: recognizes a file or folder by its content.
    :param read: returns its diagnosis; raises :class:`InputError` if it is damaged, cut off or empty.
    :param takes: the options among :data:`OF_A_KIND` that it uses.
    """

    kind: str
    reads: str
    knows: Callable[[Recorded], bool]
    read: Callable[[Recorded, ReadOptions], Diagnosis]
    takes: frozenset[str] = frozenset()


def recorded_at(path: Path) -> Recorded:
    """The file or folder at a path.

    :raises InputError: it cannot be read.
    """
    try:
        if path.is_dir():
            files = tuple(_files(path, _DEEPEST))[:_MOST_FILES]
            return Recorded(path=path, inside=tuple(Recorded(path=file, head=_head(file)) for file in files))
        check_regular(path, "a recording")
        head = _head(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); expected a recording") from error
    if head[257:262] == b"ustar":  # the log in it would be read as one, with the archive's headers as lines
        raise InputError(f"{path}: found a tar archive; unpack it")
    return Recorded(path=path, head=head)


def damaged(path: Path, what: str, reason: object, *, todo: str = "record it again, or copy it again") -> NoReturn:
    """Refuse a file in one line.

    :param what: the expected content.
    :raises InputError: always.
    """
    words = " ".join(str(reason).split())[:160] or type(reason).__name__
    if "straddl" in words:  # what pyarrow says of a line that is longer than the block it reads
        words, todo = "a line of several MiB", "leave it out: awk 'length < 100000' FILE"
    raise input_error(path, None, words, what, todo)


@contextlib.contextmanager
def opened(path: Path, what: str, *, text: bool = True) -> Iterator[IO[bytes]]:
    """A file, decompressed.

    :param what: the expected content.
    :param text: as UTF-8.
    :raises InputError: its compression is damaged or cut off.
    """
    try:
        with open_text(path) if text else open_decompressed(path) as file:
            yield file
    except CUT_OFF as error:
        damaged(path, what, f"compressed data that is damaged or cut off ({error})")


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and depth:
            yield from _files(path, depth - 1)


def _head(path: Path) -> bytes:
    head = b""
    file: Any = open_decompressed(path)
    with file, contextlib.suppress(*CUT_OFF):  # the readable part of a damaged file is enough to recognize it
        most = _HEAD_BYTES
        while len(head) < most and (part := file.read1(most - len(head))):
            head += part
            if len(head) == _HEAD_BYTES and head.startswith(b"{") and b"\n" not in head:
                most = _LONGEST_LINE
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return head.decode("utf-16", "ignore").encode()
    return head.removeprefix(codecs.BOM_UTF8)
