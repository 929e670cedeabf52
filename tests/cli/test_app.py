"""The command line's frame: what it imports, and how every failure ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import latfix
from latfix.cli import app as module
from latfix.errors import InputError, RunnerError

Cli = Callable[..., tuple[int, str, str]]

COMMANDS = (
    *(
        "diagnose",
        "optimize",
        "try",
        "compare",
        "sweep",
        "report",
        "selftest",
        "doctor",
        "fragmentation",
        "init",
        "backends",
        "history",
        "schema",
        "export-plan",
        "traffic",
    ),
)
HEAVY = ("torch", "pandas", "numpy", "scipy", "jinja2", "matplotlib", "pyarrow", "sqlite3")


def run(*command: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, ``shell`` behind it as the shell reads it."""
    program = f"{sys.executable} -c 'import sys; from latfix.cli.app import main; sys.exit(main())'"
    line = f"{program} {' '.join(command)} {shell}"
    env = {**os.environ, **environment}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(
    ("shell", "code", "err"),
    [
        (">&-", 2, "latfix: nothing: "),
        ("2>&-", 2, ""),
        ("2>/dev/full", 2, ""),
        ("<&- >&- 2>&-", 2, ""),
    ],
)
def test_closed_and_full_streams_change_no_exit_code(shell: str, code: int, err: str, tmp_path: Path) -> None:
    done = run("report", "nothing", shell=shell)
    assert (done.returncode, done.stderr[: len(err)]) == (code, err)
    assert "Traceback" not in done.stderr
    assert run("--version", shell=shell).returncode == 0
    made = run("init", str(tmp_path / "w"), shell=shell)
    assert made.returncode == 0 and (tmp_path / "w" / "workload.toml").is_file()


def test_an_output_that_lacks_characters_gets_escapes(tmp_path: Path) -> None:
    (tmp_path / "é😀.jsonl").write_text('{"arrival_s": 0, "é😀": 1}\n{"arrival_s": 1, "é😀": 2}\n', encoding="utf-8")
    done = run("traffic", "inspect", f"'{tmp_path}/é😀.jsonl'", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "\\xe9\\U0001f600" in done.stdout, done.stderr


def test_a_working_directory_that_is_gone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = typer.Typer()

    @broken.callback(invoke_without_command=True)
    def fail() -> None:
        os.getcwd()  # noqa: PTH109 - as whoever makes a relative path absolute

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(module, "app", broken)
    line = "latfix: the working directory is not there any more; change to another one\n"
    assert cli() == (2, "", line)


def test_a_mistake_of_its_own_is_no_failed_gate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = typer.Typer()

    @broken.callback(invoke_without_command=True)
    def fail() -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(module, "app", broken)
    code, _, err = cli()
    assert code == 4
    assert "ZeroDivisionError: a mistake" in err and err.splitlines()[-1].startswith("latfix: this is a mistake in")


@pytest.mark.parametrize("argument", ["--help", "--version", "diagnose --help", "optimize --help", "traffic --help"])
def test_help_imports_nothing_heavy(argument: str) -> None:
    program = (
        "import sys\nfrom latfix.cli.app import main\n"
        f"code = main({argument.split()!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print('HEAVY', heavy, code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY [] 0"
    assert done.stderr == ""


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"latfix {latfix.__version__}\n", "")


def test_help_names_every_command(cli: Cli) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    known = typer.main.get_command(module.app)
    assert isinstance(known, TyperGroup)
    assert list(known.commands) == list(COMMANDS), "a new command belongs here"
    assert all(f" {command} " in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(command: str, cli: Cli) -> None:
    code, out, err = cli(command, "--help")
    assert (code, err) == (0, "")
    assert f" {command} " in out and "--help" in out
    first = " ".join(out.split("\n\n")[1].split()).partition(".")[0]
    assert module.COMMANDS[command][1] == f"{first}.", "the line of the command in latfix --help"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("file: found\n  two lines"), 2, "latfix: file: found two lines\n"),
        (RunnerError("the model \x1b[31mfailed"), 4, "latfix: the model  [31mfailed\n"),
        (KeyboardInterrupt(), 130, "latfix: interrupted\n"),
        (typer.Abort(), 130, "latfix: interrupted\n"),
        (typer.Exit(3), 3, ""),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000), 2, None),
        (OSError(errno.ENOSPC, "No space left on device"), 4, "latfix: output: No space left on device\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_failure_is_one_line_and_a_code(
    error: BaseException, code: int, line: str | None, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = typer.Typer()

    @broken.callback(invoke_without_command=True)
    def fail() -> None:
        raise error

    monkeypatch.setattr(module, "app", broken)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    got, out, err = cli()
    assert (got, out) == (code, "")
    assert err == line or line is None
    assert err.count("\n") <= 1 and len(err) < 600


def _shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    latfix_command = f"{sys.executable} -c 'import sys; from latfix.cli.app import main; sys.exit(main())'"
    script = command.replace("latfix ", f"{latfix_command} ")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder, check=False)


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    done = _shell("latfix traffic synthesize t.jsonl --kind poisson --rate 9 --duration 9 | true", tmp_path)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    done = _shell("latfix --version > /dev/full; exit $?", tmp_path)
    assert done.returncode == 4
    assert done.stderr == "latfix: output: No space left on device\n"
