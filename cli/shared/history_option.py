"""``--history``: the file that runs are recorded in, and that ``history`` in a gate reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.errors import InputError

if TYPE_CHECKING:
    from latfix.gates.reference_level import Past
    from latfix.gates.syntax import Gate
    from latfix.history.rows import HistoryRow, Series
    from latfix.history.store import History

HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="FILE",
        help="Record the run in this history, for gates such as p99<history*1.1: a file, default, or off.",
    ),
]


@dataclass(frozen=True, slots=True)
class Recording:
    """The history of a command.

    :param history: ``None`` without one.
    :param records: the run is recorded; otherwise the history is only read.
    :param named: it was named on the command line, so that failing to use it is an error.
    :param missing: why there is no history to compare with.
    """

    history: History | None = None
    records: bool = False
    named: bool = False
    missing: str = ""

    @classmethod
    def open(cls, option: str | None, gates: Sequence[Gate], *, record: bool = True) -> Recording:
        """Open the history that the option, else ``LATFIX_HISTORY``, else a gate requires; none without them.

        A file that was not named on the command line and cannot be written is skipped, with a line on standard error.

        :param record: false for a command that only reads runs.
        :raises InputError: the named file cannot be written, or a file is not a history, is damaged, or newer.
        """
        from latfix.history.store import VARIABLE, History, Unwritable

        chosen = option if option is not None else (os.environ.get(VARIABLE) or None)
        wanted = any(gate.needs_history for gate in gates)
        if chosen == "off" or (chosen is None and not wanted) or (not record and not wanted):
            return cls()
        path, named = history_file(chosen), option not in (None, "default")
        if not record:
            known = path.exists() or option
            return cls(History.read(path), named=named) if known else cls(missing=f"there is no history {path}")
        try:
            return cls(History.open(path), records=True, named=named)
        except Unwritable as error:
            if named:
                raise
            _report_unrecorded(error)
            if not path.is_file():
                return cls(missing=f"there is no history {path}")
            return cls(History.read(path))

    def past(self, series: Series, *, but: str) -> Past:
        """The earlier runs that ``history`` in a gate compares with.

        :param but: the run itself.
        :raises InputError: the named file can no longer be read, or is damaged.
        """
        from latfix.gates.reference_level import Past
        from latfix.history.store import Unwritable

        if self.history is None:
            return Past(missing=self.missing or "there is no history")
        try:
            return self.history.past(series, but=but)
        except Unwritable as error:
            if self.named:
                raise
            return Past(missing=error.message)

    def add(self, row: HistoryRow) -> None:
        """Record the run, if runs are recorded.

        :raises InputError: the named file can no longer be written, or is damaged.
        """
        from latfix.history.store import Unwritable

        if self.history is None or not self.records:
            return
        try:
            self.history.add(row)
        except Unwritable as error:
            if self.named:
                raise
            _report_unrecorded(error)


def _report_unrecorded(error: InputError) -> None:
    sys.stderr.write(f"latfix: this run is not recorded: {error.message}\n")


def is_off(option: str | None) -> bool:
    """True if the history is turned off."""
    from latfix.history.store import VARIABLE

    return (option if option is not None else os.environ.get(VARIABLE)) == "off"


def history_file(chosen: str | None) -> Path:
    """The file that the option names.

    :param chosen: a path, ``default``, or ``None`` for the default.
    :raises InputError: it is empty, or there is no home folder for the default.
    """
    from latfix.history.store import default_file

    if chosen is not None and not chosen.strip():
        raise InputError("--history: found an empty name; expected a file, default or off")
    try:
        return default_file() if chosen in (None, "default") else Path(str(chosen)).expanduser().absolute()
    except RuntimeError as error:  # what pathlib raises without a home
        raise InputError(f"--history: found no home folder ({error}); name a file") from error
