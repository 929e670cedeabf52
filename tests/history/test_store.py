"""The history's file: rows are read as written, writers do not interfere, and no other file is damaged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latfix.errors import InputError
from latfix.gates.subject import GateSubject
from latfix.history import store as module
from latfix.history.rows import HistoryRow, Series, machine_fingerprint, row_of, run_name, series_of
from latfix.history.store import History, Unwritable, default_file
from latfix.run_record.run_record import RunRecord
from tests.records import build_record

HOSTILE = "'; DROP TABLE runs; --\x00\x1b[31m\ud800<script>&|`推薦"
SERIES = Series(workload="ranker", machine="m", device="cpu", command="diagnose", traffic="t")


def _row(k: int = 0, *, p99: float = 100.0, series: Series = SERIES, **changes: Any) -> HistoryRow:
    values: dict[str, Any] = {
        "run": f"run {k}",
        "started": f"2026-01-{k + 1:02d}T00:00:00+00:00",
        "series": series,
        "subject": GateSubject(
            latency_ms={"mean": 20.0, "p50": 18.5, "p99": p99, "p97_5": 0.1 + 0.2, "max": 300.0},
            requests={"ok": 498, "error": 2, "timeout": 0, "shed": 0},
            throughput_rps=24.75,
            accuracy=0.9123,
            unexplained_share=-0.05,
            cause_shares={"python.gc": 0.61, "unexplained": -0.05},
        ),
        "verdict": "python.gc",
        "folder": "/runs/1",
        "machine": {"cpu": "a processor", "cores": 2},
        "versions": {"torch": "2.13.0"},
        "settings": "0123456789ab",
        "gates": ({"gate": "p99<200ms", "passed": True, "value": p99},),
    }
    return HistoryRow(**{**values, **changes})


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = History.open(tmp_path / "new" / "folder" / "h.sqlite3")
    rows = [_row(0), _row(1, unusable="it did not reach its end", gates=())]
    for row in rows:
        history.add(row)
    assert History.read(history.path).rows() == rows
    for row in rows:
        history.add(replace(row, verdict="again"))
    assert [row.verdict for row in history.rows()] == ["again"] * 2, "the same run has one row"


@pytest.mark.parametrize("accuracy", [None, 0.0])
def test_unmeasured_figures_stay_unknown(tmp_path: Path, accuracy: float | None) -> None:
    subject = GateSubject(
        latency_ms={"p99": 1.0, "max": float("nan")}, requests={"ok": 1}, accuracy=accuracy, cause_shares=None
    )
    history = History.open(tmp_path / "h")
    history.add(_row(subject=subject))
    (back,) = history.rows()
    assert back.subject.accuracy == accuracy
    assert back.subject.figure("max") is None and back.subject.figure("cause:python.gc") is None


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    history = History.open(tmp_path / "h")
    series = replace(SERIES, workload=HOSTILE, plan=HOSTILE)
    row = _row(series=series, run=HOSTILE, verdict=HOSTILE, folder=HOSTILE, machine={HOSTILE: HOSTILE})
    history.add(row)
    history.add(_row(1))
    shown = HOSTILE.encode("utf-8", "backslashreplace").decode()
    assert history.workloads() == sorted([shown, "ranker"])
    (back,) = history.rows(workload=HOSTILE)
    assert (back.series.workload, back.verdict, back.machine) == (shown, shown, {HOSTILE: HOSTILE})
    assert len(history.past(series, but="").runs) == 1
    assert len(history.past(series, but=HOSTILE).runs) == 0


def test_columns_can_be_queried_with_plain_sql(tmp_path: Path) -> None:
    history = History.open(tmp_path / "h")
    history.add(_row(p99=123.5))
    found = _sql(history.path, "SELECT workload, p99_ms, error_rate, accuracy FROM runs")
    assert found == [("ranker", 123.5, 0.004, 0.9123)]


def test_the_past_is_the_last_valid_runs_of_the_same_series(tmp_path: Path) -> None:
    history = History.open(tmp_path / "h")
    for k in range(14):
        history.add(_row(k, p99=float(k)))
    history.add(_row(20, p99=1000.0, unusable="it failed p99<history"))
    for place, key in enumerate(("workload", "machine", "device", "command", "traffic", "plan")):
        history.add(_row(21 + place, p99=2000.0, series=replace(SERIES, **{key: "other"})))
    past = history.past(SERIES, but="run 13")
    assert past.figures("p99") == [float(k) for k in range(3, 13)]
    assert past.figures("p97_5") == [0.1 + 0.2] * 10
    assert history.past(SERIES, but="", most=2).figures("p99") == [12.0, 13.0]


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    """Both start without a file; each writes forty rows and reads in between, and no row is missing at the end."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom latfix.gates.subject import GateSubject\n"
        "from latfix.history.store import History\nfrom latfix.history.rows import HistoryRow, Series\n"
        "who, path = sys.argv[1], Path(sys.argv[2])\n"
        "series = Series(workload='w', machine='m', device='cpu', command='diagnose', traffic='t')\n"
        "for k in range(40):\n"
        "    history = History.open(path)\n"
        "    subject = GateSubject(latency_ms={'p99': float(k)}, requests={'ok': 1})\n"
        "    history.add(HistoryRow(run=f'{who} {k}', started=f'{k:03d}', series=series, subject=subject,\n"
        "                           verdict='steady', folder='/'))\n"
        "    assert len(history.rows()) >= k + 1\n"
    )
    path = tmp_path / "h.sqlite3"
    writers = [
        subprocess.Popen([sys.executable, "-c", program, who, str(path)], stderr=subprocess.PIPE, text=True)
        for who in ("one", "two")
    ]
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert len(History.read(path).rows()) == 80
    assert sorted(file.name for file in tmp_path.iterdir()) == ["h.sqlite3"], "no other file is left"


def _lock(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_file_that_stays_locked_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History.open(tmp_path / "h")
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    connection = _lock(history.path)
    try:
        with pytest.raises(Unwritable, match="database is locked"):
            history.add(_row())
        assert history.rows() == [], "it can be read all the same"
    finally:
        connection.close()


def _sql(path: Path, statement: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(statement, arguments).fetchall()
    connection.close()
    return found


def _changed(statement: str) -> Callable[[Path], object]:
    """A history on which a statement was run."""
    return lambda path: (History.open(path), _sql(path, statement))


def _torn(path: Path) -> None:
    history = History.open(path)
    for k in range(30):
        history.add(_row(k))
    data = path.read_bytes()
    path.write_bytes(data[:2048] + b"\xff" * (len(data) - 2048))


FILES: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("not a database\n" * 100),
    "zeros": lambda path: path.write_bytes(b"\0" * 8192),
    "foreign": lambda path: _sql(path, "CREATE TABLE theirs (x)"),
    "newer": _changed("PRAGMA user_version = 999"),
    "columnless": _changed("ALTER TABLE runs RENAME COLUMN verdict TO other"),
    "tableless": _changed("DROP TABLE runs"),
    "torn": _torn,
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", FILES)
def test_another_file_is_refused_and_not_changed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "h"
    FILES[kind](path)
    before = path.read_bytes() if path.is_file() else None
    for use in (History.open, History.read):
        with pytest.raises(InputError, match="found") as caught:
            use(path).rows()
        assert str(path) in caught.value.message and caught.value.message.count("\n") == 0
        assert caught.value.exit_code == 2
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_row_that_latfix_did_not_write_is_one_line(tmp_path: Path) -> None:
    history = History.open(tmp_path / "h")
    history.add(_row())
    for text in (
        "{}",
        "[]",
        "no",
        '{"latency_ms": 3, "requests": {}}',
        '{"latency_ms": {}, "requests": {"ok": 1e999}}',
    ):
        _sql(history.path, "UPDATE runs SET figures = ?", (text,))
        with pytest.raises(InputError, match="a row that latfix did not write"):
            history.rows()


def test_an_older_schema_is_brought_up_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h"
    History.open(path).add(_row())
    later = (*module._MIGRATIONS, "ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT ''; CREATE TABLE more (x);")
    monkeypatch.setattr(module, "_MIGRATIONS", later)
    with pytest.raises(InputError, match=r"schema 1; expected 2; the next run that is recorded"):
        History.read(path)
    history = History.open(path)
    assert history.rows() == [_row()]
    assert _sql(path, "PRAGMA user_version") == [(2,)]
    assert _sql(path, "SELECT note FROM runs") == [("",)]


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h"
    History.open(path).add(_row())
    before = path.read_bytes()
    monkeypatch.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, "CREATE TABLE more (x); CREATE TABLE runs (x);"))
    with pytest.raises(InputError, match="already exists"):
        History.open(path)
    monkeypatch.undo()
    assert path.read_bytes()[100:] == before[100:]
    assert History.open(path).rows() == [_row()]


@pytest.mark.parametrize("where", ["/proc/nothing/h", "/dev/null/h", "file/h"])
def test_a_history_that_cannot_be_created(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    with pytest.raises(Unwritable, match="cannot be opened or written"):
        History.open(Path(where))


def test_reading_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no history"):
        History.read(tmp_path / "h")
    assert not (tmp_path / "h").exists()
    (tmp_path / "h").touch()
    assert History.read(tmp_path / "h").rows() == [] and (tmp_path / "h").read_bytes() == b""
    with pytest.raises(InputError, match=f"--history '{tmp_path}/my h' creates one"):
        History.read(tmp_path / "my h")


def test_names_that_sqlite_reads_as_something_else_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "h?mode=memory", "h#x", "a b%20c"):
        History.open(Path(name)).add(_row())
        assert History.read(Path(name)).rows() == [_row()] and Path(name).is_file()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_DATA_HOME": "/data"}, "/data/latfix/history.sqlite3"),
        ({"XDG_DATA_HOME": "relative"}, None),
        ({"XDG_DATA_HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_default_follows_the_specification(environment: dict[str, str], expected: str | None) -> None:
    home = Path.home() / ".local" / "share" / "latfix" / "history.sqlite3"
    assert default_file(environment) == (Path(expected) if expected else home)


def test_a_machine_is_its_hardware() -> None:
    machine = {"cpu": "a", "cores": 2, "memory_bytes": 8_200_000_000, "os": "Linux 6.1", "torch": "2.12", "gpu": None}
    same = {**machine, "os": "Linux 6.8", "torch": "2.13", "memory_bytes": 8_201_000_000}
    assert machine_fingerprint(machine) == machine_fingerprint(same)
    for key, value in (("cpu", "b"), ("cores", 4), ("memory_bytes", 16_000_000_000), ("gpu", "H200")):
        assert machine_fingerprint(machine) != machine_fingerprint({**machine, key: value})
    assert machine_fingerprint({}) == machine_fingerprint({"memory_bytes": "odd"})


def _record(folder: Path, **meta: Any) -> RunRecord:
    return build_record(folder=folder, workload="w", started="2026-01-01", traffic_sha256="t", **meta)


@pytest.mark.parametrize(
    ("subject", "options", "why"),
    [
        ({}, {}, ""),
        ({}, {"interrupted": True}, "did not reach its end"),
        ({"requests": {"ok": 0, "error": 5}}, {}, "no request ended ok"),
        ({"trustworthy": False}, {}, "too late"),
        ({}, {"gates": [{"gate": "p99<history", "passed": False}], "against_history": ["p99<history"]}, "it failed"),
        ({}, {"gates": [{"gate": "p99<history", "passed": None}], "against_history": ["p99<history"]}, ""),
        ({}, {"gates": [{"gate": "p99<9ms", "passed": False}], "against_history": ["p99<history"]}, ""),
    ],
)
def test_runs_that_later_ones_are_compared_with(
    subject: dict[str, Any], options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    figures: dict[str, Any] = {"latency_ms": {"p99": 1.0}, "requests": {"ok": 5}, **subject}
    record = _record(tmp_path, plan=None)
    series = series_of(record.meta, command="diagnose", plan="a/b/plan.toml")
    row = row_of(
        record, GateSubject(**figures), series, verdict="steady", settings={"workers": 2}, folder=tmp_path, **options
    )
    assert row.unusable == why or (why and why in row.unusable)
    assert row.series.plan == "plan.toml"
    assert row.run == run_name(record.meta, tmp_path)


def test_settings_are_distinguished() -> None:
    record = _record(Path("r"))
    rows = [
        row_of(
            record,
            GateSubject(latency_ms={}, requests={"ok": 1}),
            series_of(record.meta, command="diagnose"),
            verdict="",
            settings={"workers": workers, "env": {"A": "b"}},
            folder=Path("r"),
        )
        for workers in (1, 1, 2)
    ]
    assert rows[0].settings == rows[1].settings != rows[2].settings
