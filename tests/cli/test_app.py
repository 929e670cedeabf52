"""The command line's frame: what it imports, and how every failure ends."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

import latfix
from latfix.cli import app as module
from latfix.cli.shared.streams_and_signals import signals_as_interrupt
from latfix.errors import InputError, RunnerError
from tests.conftest import cli, succeeded

_FIRST = ("diagnose", "optimize", "try", "compare", "gate", "sweep", "report", "watch", "selftest", "doctor")
_THEN = ("fragmentation", "init", "backends", "history", "schema", "export", "export-plan", "traffic")
COMMANDS = (*_FIRST, *_THEN)
HEAVY = ("torch", "pandas", "numpy", "scipy", "jinja2", "matplotlib", "pyarrow", "sqlite3")


def run(*command: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, ``shell`` behind it as the shell reads it."""
    program = f"{sys.executable} -c 'import sys; from latfix.cli.app import main; sys.exit(main())'"
    env = {**os.environ, **environment}
    line = ["sh", "-c", f"{program} {' '.join(command)} {shell}"]
    return subprocess.run(line, capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], tuple[int, str, str]]:
    """Calls a command line that does so and nothing else."""

    def call(fail: Callable[[], object]) -> tuple[int, str, str]:
        broken = typer.Typer()
        broken.callback(invoke_without_command=True)(fail)
        monkeypatch.setattr(module, "app", broken)
        return cli()

    return call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_signal_is_an_interruption(number: signal.Signals) -> None:
    """As job schedulers and timeouts do; what an interruption leaves behind is tested with Ctrl-C."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


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


def test_a_working_directory_that_is_gone(fail_with: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    line = "latfix: the working directory no longer exists; change to another one\n"
    assert fail_with(lambda: os.getcwd() and None) == (2, "", line)  # noqa: PTH109 - as whoever makes a path absolute


def test_a_bug_is_not_a_failed_gate(fail_with: Any) -> None:
    code, _, err = fail_with(lambda: 1 / 0)
    assert code == 4
    assert "ZeroDivisionError: " in err and err.splitlines()[-1].startswith("latfix: this is a bug in")


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


def test_version_and_help_that_names_every_command() -> None:
    assert cli("--version") == (0, f"latfix {latfix.__version__}\n", "")
    out = succeeded(cli("--help"))
    known = typer.main.get_command(module.app)
    assert isinstance(known, TyperGroup)
    assert list(known.commands) == list(COMMANDS), "a new command belongs here"
    assert all(f" {command} " in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_description(command: str) -> None:
    code, out, err = cli(command, "--help")
    assert (code, err) == (0, "")
    assert f" {command} " in out and "--help" in out
    first = " ".join(out.split("\n\n")[1].split()).partition(".")[0]
    assert module.COMMANDS[command][1] == f"{first}.", "the line of the command in latfix --help"


@pytest.mark.parametrize("command", ["", "traffic"])
def test_no_description_of_a_command_is_cut_off(command: str) -> None:
    assert "..." not in succeeded(cli(*command.split(), "--help")).partition("Commands:")[2]


def test_the_options_of_an_address_are_apart_from_the_others() -> None:
    text = succeeded(cli("diagnose", "--help"))
    sections = dict(re.findall(r"^(\S[^\n]*):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL))
    headings = ("Options", "The replay", "Single requests", "More outputs", "A service at an address")
    assert [*sections] == ["Arguments", *headings, "The service's own recording"]
    assert "--pid" in sections["A service at an address"] and "--gate" in sections["Options"]
    options = re.findall(r"^  (?:-\w, )?--[\w-]+", text, re.MULTILINE)
    assert len(options) == len(set(options)) > 40


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
        (OSError(errno.ENOSPC, "No space left on device", "a.json"), 4, "latfix: a.json: No space left on device\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_failure_is_one_line_and_a_code(
    error: BaseException, code: int, line: str | None, fail_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(os, "dup2", lambda *_: None)
    got, out, err = fail_with(fail)
    assert (got, out) == (code, "")
    assert err == line or line is None
    assert err.count("\n") <= 1 and len(err) < 600


@pytest.mark.parametrize("command", ["backends", "traffic convert", ""])
def test_a_wrong_option_refers_to_the_help_of_its_command(command: str) -> None:
    code, _, err = cli(*command.split(), "--no-such")
    assert code == 2 and err.endswith(f"; see {' '.join(['latfix', *command.split()])} --help\n")


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    what = ("--kind", "poisson", "--rate", "9", "--duration", "9")
    done = run("traffic", "synthesize", str(tmp_path / "t.jsonl"), *what, shell="| true")
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    done = run("--version", shell="> /dev/full; exit $?")
    assert (done.returncode, done.stderr) == (4, "latfix: output: No space left on device\n")
