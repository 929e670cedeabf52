"""``latfix watch``: lines of a recorded service, and what it says before there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import latfix
from latfix.profilers.service_log.recorder import flush

Cli = Callable[..., tuple[int, str, str]]


def _nothing() -> None:
    """A request that takes no time."""


def test_each_update_is_a_line_where_nobody_watches(cli: Cli, tmp_path: Path) -> None:
    work = latfix.record(tmp_path)(_nothing)
    for _ in range(200):
        work()
    flush()
    code, output, _ = cli("watch", str(tmp_path), "--updates", "2", "--every", "0.1")
    assert code == 0
    lines = output.splitlines()
    assert len(lines) == 2
    assert all("200 ok" in line and "p99" in line for line in lines)


def test_before_the_first_request_it_waits(cli: Cli, tmp_path: Path) -> None:
    code, output, _ = cli("watch", str(tmp_path), "--updates", "1")
    assert code == 0
    assert "no requests yet" in output


@pytest.mark.parametrize(
    "arguments", [("--every", "0"), ("--last", "nan"), ("--updates", "-1"), ("--percentile", "0")]
)
def test_what_cannot_be_is_refused(cli: Cli, tmp_path: Path, arguments: tuple[str, str]) -> None:
    code, _, error = cli("watch", str(tmp_path), *arguments)
    assert code == 2
    assert arguments[0] in error


def test_another_folder_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of latfix's")
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, _, error = cli("watch", str(folder), "--updates", "1")
        assert code == 2
        assert len(error.splitlines()) == 1


def test_a_terminal_gets_a_table(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    work = latfix.record(tmp_path)(_nothing)
    for _ in range(50):
        work()
    flush()
    code, output, _ = cli("watch", str(tmp_path), "--updates", "1")
    assert code == 0
    assert "because" in output
    assert "p99.9, ms" in output
