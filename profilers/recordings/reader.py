"""What a reader of recordings is, and what it sees of a file before it reads it."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from latfix.errors import InputError, input_error
from latfix.files.decompressed import CUT_OFF, open_decompressed
from latfix.files.regular_file import check_regular
from latfix.results.diagnosis import Diagnosis

#: How much of a file is looked at to tell what it is, decompressed.
_HEAD_BYTES = 1 << 16
#: Files of a folder that are looked at, and how deep.
_MOST_FILES, _DEEPEST = 400, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a user may ask of a recording.

    :param percentile: where the tail begins; ``None`` for the reader's own choice.
    :param step: a regular expression that names the steps of a device's recording; empty for the reader's own choice.
    :param mapping: ``NAME=EXPRESSION`` for logs whose columns have names of their own.
    :param pattern: a regular expression with named groups that reads a text log; empty for known formats.
    """

    percentile: float | None = None
    seed: int = 0
    step: str = ""
    mapping: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A file or folder, as far as it takes to tell what it holds.

    :param head: the first bytes of a file, decompressed; empty for a folder.
    :param inside: the files of a folder, in order of their names; none for a file.
    """

    path: Path
    head: bytes = b""
    inside: tuple[Recorded, ...] = ()

    @property
    def files(self) -> tuple[Recorded, ...]:
        """The file itself, or those of the folder."""
        return self.inside or (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of recording.

    :param kind: ``source.kind`` of its diagnoses.
    :param reads: what it reads, for the line that lists all of them.
    :param knows: whether a file or folder is one, by its content.
    :param read: its diagnosis; raises :class:`InputError` where it is damaged, cut off or empty.
    """

    kind: str
    reads: str
    knows: Callable[[Recorded], bool]
    read: Callable[[Recorded, ReadOptions], Diagnosis]


def recorded_at(path: Path) -> Recorded:
    """What lies at a path.

    :raises InputError: nothing that can be read.
    """
    try:
        if path.is_dir():
            files = tuple(_files(path, _DEEPEST))[:_MOST_FILES]
            return Recorded(path=path, inside=tuple(Recorded(path=file, head=_head(file)) for file in files))
        check_regular(path, "a recording")
        return Recorded(path=path, head=_head(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); expected a recording") from error


def damaged(path: Path, what: str, reason: object, *, todo: str = "record it again, or copy it again") -> NoReturn:
    """Refuse a file in one line.

    :param what: it should be.
    :raises InputError: always.
    """
    words = " ".join(str(reason).split())[:160] or type(reason).__name__
    raise input_error(path, None, words, what, todo)


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and depth:
            yield from _files(path, depth - 1)


def _head(path: Path) -> bytes:
    found = b""
    file: Any = open_decompressed(path)
    with file, contextlib.suppress(*CUT_OFF):  # what there is of a damaged one tells what it was
        while len(found) < _HEAD_BYTES and (part := file.read1(_HEAD_BYTES - len(found))):
            found += part
    if found.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return found.decode("utf-16", "ignore").encode()
    return found.removeprefix(codecs.BOM_UTF8)
