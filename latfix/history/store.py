"""The history of runs: an embedded SQLite file with one row per run, safe for several writers at once.

The file identifies itself as one of latfix (``application_id``) with a schema (``user_version``). Every change is
one immediate transaction, so that writers wait for each other and readers never see half a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.errors import InputError
from latfix.gates.reference_level import MOST_RUNS, Past
from latfix.history.rows import HistoryRow, Series, figures_json, read_figures

if TYPE_CHECKING:
    import sqlite3

#: Location of the history unless an option overrides it: a file's path, ``default`` or ``off``.
VARIABLE = "LATFIX_HISTORY"
#: How long a writer waits for another, seconds.
WAIT_S = 15.0
#: "lfix": the ``application_id`` of history files.
_APPLICATION_ID = 0x6C666978
#: Entry ``k`` upgrades schema ``k`` to ``k + 1``. Nothing else rewrites rows in place.
_MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL UNIQUE,
        started TEXT NOT NULL,
        workload TEXT NOT NULL,
        machine TEXT NOT NULL,
        device TEXT NOT NULL,
        command TEXT NOT NULL,
        traffic TEXT NOT NULL,
        plan TEXT NOT NULL,
        settings TEXT NOT NULL,
        verdict TEXT NOT NULL,
        mean_ms REAL, p50_ms REAL, p90_ms REAL, p95_ms REAL, p99_ms REAL, p99_9_ms REAL, max_ms REAL,
        throughput_rps REAL, error_rate REAL, accuracy REAL,
        unusable TEXT NOT NULL,
        folder TEXT NOT NULL,
        figures TEXT NOT NULL,
        machine_facts TEXT NOT NULL,
        versions TEXT NOT NULL,
        gates TEXT NOT NULL
    );
    CREATE INDEX runs_by_series ON runs (workload, machine, device, command, traffic, plan, started);
    """,
)
_SUMMARY = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")
_COLUMNS = (
    *("run", "started", "workload", "machine", "device", "command", "traffic", "plan", "settings", "verdict"),
    *(f"{key}_ms" for key in _SUMMARY),
    *("throughput_rps", "error_rate", "accuracy", "unusable", "folder"),
    *("figures", "machine_facts", "versions", "gates"),
)
_SERIES = ("workload", "machine", "device", "command", "traffic", "plan")


def default_file(environment: Mapping[str, str] = os.environ) -> Path:
    """``latfix/history.sqlite3`` under the user's data folder (XDG Base Directory Specification).

    A relative ``XDG_DATA_HOME`` is ignored, as the specification requires.
    """
    named = environment.get("XDG_DATA_HOME", "")
    base = Path(named) if named and Path(named).is_absolute() else Path.home() / ".local" / "share"
    return base / "latfix" / "history.sqlite3"


class Unwritable(InputError):
    """The file cannot be created or changed here; it may still be readable."""


@dataclass(frozen=True, slots=True)
class History:
    """A history's file."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> History:
        """Open a history for writing; created if missing, upgraded if its schema is older.

        :raises Unwritable: it cannot be created or changed.
        :raises InputError: the file is not a history, is damaged, or is of a newer latfix.
        """
        path = path.absolute()
        _check_file(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error.strerror or str(error)) from error
        history = cls(path)
        with history._connected() as connection, _changing(connection):
            version = _version(connection, path)
            for script in _MIGRATIONS[version:]:
                for statement in script.split(";"):
                    if statement.strip():
                        connection.execute(statement)
            if version < len(_MIGRATIONS):
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
        return history

    @classmethod
    def read(cls, path: Path) -> History:
        """Open a history for reading; the file is not changed.

        :raises InputError: there is none, or this latfix cannot read it.
        """
        path = path.absolute()
        _check_file(path)
        if not path.exists():
            raise InputError(
                f"{path}: found no history; latfix diagnose WORKLOAD --history {shlex.quote(str(path))} creates one, "
                "--history FILE names another"
            )
        history = cls(path)
        with history._connected(write=False) as connection:
            version = _version(connection, path)
            if 0 < version < len(_MIGRATIONS):
                raise InputError(
                    f"{path}: found a history of schema {version}; expected {len(_MIGRATIONS)}; "
                    "the next run that is recorded in it upgrades it"
                )
        return history

    def add(self, row: HistoryRow) -> None:
        """Record a run; replaces an earlier row of the same run.

        :raises InputError: the file cannot be written.
        """
        values = _values(row)
        marks = ", ".join("?" for _ in _COLUMNS)
        with self._connected() as connection, _changing(connection):
            connection.execute("DELETE FROM runs WHERE run = ?", (_stored(row.run),))
            connection.execute(f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({marks})", values)

    def rows(self, *, workload: str | None = None) -> list[HistoryRow]:
        """All runs, or those of a workload, oldest first.

        :raises InputError: the file is damaged.
        """
        where, arguments = ("", ()) if workload is None else (" WHERE workload = ?", (_stored(workload),))
        return self._select(f"{where} ORDER BY started, id", arguments)

    def workloads(self) -> list[str]:
        """Names of the recorded workloads, sorted."""
        with self._connected(write=False) as connection:
            if not _version(connection, self.path):
                return []
            return [str(name) for (name,) in connection.execute("SELECT DISTINCT workload FROM runs ORDER BY 1")]

    def past(self, series: Series, *, but: str = "", most: int = MOST_RUNS) -> Past:
        """The last comparable runs of a series.

        :param but: a run to leave out: the current one, if it is recorded already.
        """
        match = " AND ".join(f"{name} = ?" for name in _SERIES)
        rows = self._select(
            f" WHERE {match} AND unusable = '' AND run <> ? ORDER BY started DESC, id DESC LIMIT ?",
            (*(_stored(getattr(series, name)) for name in _SERIES), _stored(but), most),
        )
        return Past(runs=tuple(row.subject for row in reversed(rows)))

    def _select(self, rest: str, arguments: tuple[Any, ...]) -> list[HistoryRow]:
        with self._connected(write=False) as connection:
            if not _version(connection, self.path):
                return []
            found = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM runs{rest}", arguments).fetchall()
        try:
            return [_row(dict(zip(_COLUMNS, values, strict=True))) for values in found]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise _damaged(self.path, f"a row that latfix did not write ({error})") from error

    @contextlib.contextmanager
    def _connected(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """A connection for one operation; its errors become one-line messages."""
        try:
            import sqlite3
        except ImportError as error:  # Python can be built without it
            raise InputError(f"{self.path}: found a Python without sqlite3, which the history needs") from error
        connection = None
        try:
            uri = f"{self.path.as_uri()}?mode={'rwc' if write else 'ro'}"
            connection = sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
            yield connection
        except sqlite3.OperationalError as error:
            raise _unwritable(self.path, str(error)) from error
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, str(error)) from error
        finally:
            if connection is not None:
                connection.close()


@contextlib.contextmanager
def _changing(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that takes the write lock at its start, so that a second writer waits before it reads."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite may have rolled back on its own
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema of a history; 0 for an empty file.

    :raises InputError: the file is of another program, or of a newer latfix.
    """
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application == _APPLICATION_ID and 1 <= version <= len(_MIGRATIONS):
        columns = {str(column[1]) for column in connection.execute("PRAGMA table_info(runs)")}
        if version == len(_MIGRATIONS) and not columns.issuperset(_COLUMNS):
            raise _damaged(path, f"a history without {', '.join(sorted({*_COLUMNS} - columns)[:3])}")
        return version
    if application == _APPLICATION_ID and version > len(_MIGRATIONS):
        raise InputError(
            f"{path}: found a history of schema {version}, which a newer latfix wrote; "
            f"expected at most {len(_MIGRATIONS)}; update latfix, or name another file with --history"
        )
    if application == 0 and version == 0 and tables == 0:
        return 0
    raise _damaged(path, "a database of another program")


def _check_file(path: Path) -> None:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: found no regular file; expected a history's file; name one with --history")
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: Path, why: str) -> Unwritable:
    return Unwritable(f"{path}: the history cannot be opened or written ({why}); name another file with --history")


def _damaged(path: Path, found: str) -> InputError:
    return InputError(
        f"{path}: found {found}; expected a history that latfix wrote; the file was not changed: move it away, "
        "or name another file with --history"
    )


def _values(row: HistoryRow) -> tuple[Any, ...]:
    subject, figures = row.subject, figures_json(row.subject)
    columns: dict[str, Any] = {
        "run": row.run,
        "started": row.started,
        **{name: getattr(row.series, name) for name in _SERIES},
        "settings": row.settings,
        "verdict": row.verdict,
        **{f"{key}_ms": figures["latency_ms"].get(key) for key in _SUMMARY},
        "throughput_rps": figures["throughput_rps"],
        "error_rate": subject.lost_share,
        "accuracy": figures["accuracy"],
        "unusable": row.unusable,
        "folder": row.folder,
        "figures": figures,
        "machine_facts": dict(row.machine),
        "versions": dict(row.versions),
        "gates": [dict(gate) for gate in row.gates],
    }
    return tuple(_stored(columns[name]) for name in _COLUMNS)


def _stored(value: Any) -> Any:
    """A value for SQLite; a lone surrogate, which it refuses, becomes an escape."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _row(columns: Mapping[str, Any]) -> HistoryRow:
    return HistoryRow(
        run=str(columns["run"]),
        started=str(columns["started"]),
        series=Series(**{name: str(columns[name]) for name in _SERIES}),
        subject=read_figures(json.loads(columns["figures"])),
        verdict=str(columns["verdict"]),
        folder=str(columns["folder"]),
        machine=dict(json.loads(columns["machine_facts"])),
        versions=dict(json.loads(columns["versions"])),
        settings=str(columns["settings"]),
        gates=tuple(dict(gate) for gate in json.loads(columns["gates"])),
        unusable=str(columns["unusable"]),
    )
