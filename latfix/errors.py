"""The errors of latfix: one tree, each with the exit code of the command line.

An error is raised where its cause is known and caught once, in :mod:`latfix.cli.app`. Its message is one
line: the file, line or option, what was found, what was expected, and what to do.
"""

from __future__ import annotations

import errno
from pathlib import Path

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_RUNNER = 4
EXIT_INTERRUPTED = 130


class LatfixError(Exception):
    """Base of every error that latfix reports to its user.

    :param message: one line: where, what was found, what was expected, what to do.
    """

    exit_code = EXIT_RUNNER

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InputError(LatfixError):
    """The input or the usage is wrong; nothing was replayed."""

    exit_code = EXIT_INPUT


class RunnerError(LatfixError):
    """The model or the runner failed; what was recorded is kept."""

    exit_code = EXIT_RUNNER


def disk_is_full(error: OSError) -> bool:
    """True if a disk, a quota or a limit of file sizes ended a write: what was written before is right."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def input_error(file: Path | str, line: int | None, found: str, expected: str, todo: str = "") -> InputError:
    """An :class:`InputError` in the standard form ``file:line: found …; expected …; what to do``."""
    where = f"{file}:{line}" if line is not None else str(file)
    message = f"{where}: found {found}; expected {expected}"
    return InputError(f"{message}; {todo}" if todo else message)
