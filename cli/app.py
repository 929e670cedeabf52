"""The command line: registers the commands, and turns every known failure into one line and an exit code.

Nothing heavy is imported here, so that ``latfix --help`` is instant.
"""

from __future__ import annotations

import sys
import traceback
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import latfix
from latfix.cli.shared.streams_and_signals import discard, print_error, repair_streams, signals_as_interrupt
from latfix.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_RUNNER, LatfixError, disk_is_full
from latfix.files.rotated_logs import join_command
from latfix.runners.replay.folder_lock import release_all

#: Each command's function, and the first sentence of its help.
COMMANDS = {
    "diagnose": ("running.diagnose:diagnose", "Replay traffic, and attribute slow requests to causes."),
    "optimize": ("running.optimize:optimize", "Try fixes on the same traffic, and keep what is better."),
    "try": ("running.try_:try_ideas", "Replay your own ideas side by side, in one table."),
    "compare": ("reading.compare:compare", "Compare recorded runs, and judge gates on the difference."),
    "gate": ("running.gate:gate", "Replay two services alternately until gates are decided."),
    "sweep": ("running.sweep:sweep", "Find the largest load that meets the objective."),
    "report": ("reading.report:report", "Show a recorded run or any other result again."),
    "watch": ("reading.watch:watch", "Show percentiles and causes of a running service, live."),
    "selftest": ("running.selftest:selftest", "Inject known faults here, and score the diagnosis."),
    "doctor": ("running.doctor:doctor", "Look for what makes latency jitter on this machine."),
    "fragmentation": (
        "reading.fragmentation:fragmentation",
        "Find the allocator settings that would not have stalled.",
    ),
    "init": ("init:init", "Write a commented workload to start from."),
    "backends": ("running.backends:backends", "Compare the backends that can serve a model."),
    "history": ("reading.history:history", "Show how a figure developed over recorded runs."),
    "schema": ("reading.schema:schema", "Print the JSON Schema of a result."),
    "export": ("reading.export:export", "Write a run in the format of another tool."),
    "export-plan": ("reading.export_plan:export_plan", "Write a plan as the configuration of another server."),
    "traffic": ("reading.traffic:traffic_app", "Inspect, convert, import or synthesize traffic."),
}

#: A longer word in a message, such as a path, is cut in the middle.
_LONGEST_WORD = 400


class _GroupedOptions(TyperCommand):
    """A command whose help lists its options by group; Typer does that with rich only."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and those of each group."""
        sections = dict[str, list[tuple[str, str]]](Arguments=[], Options=[])
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is not None:
                panel = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or panel, []).append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@cache  # building it takes longer than many a command
def _parser(command: Any, name: str | None = None) -> Any:
    """The parser of a command's function, or of an app."""
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    from latfix.cli.shared.options import one_by_one

    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=_GroupedOptions)(one_by_one(command))
    return typer.main.get_command(alone)


class _LazyCommands(TyperGroup):
    """Commands whose modules are imported only when called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the called command's module, and return its command."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:  # shell completion after a word that is not a command
            return name, command, rest
        module, _, attribute = COMMANDS[name][0].partition(":")
        found = getattr(import_module(f"latfix.cli.commands.{module}"), attribute)
        return name, _parser(found, name), rest


app = typer.Typer(
    name="latfix",
    cls=_LazyCommands,
    help="Find out why the latency of model inference jitters, fix it, and prove the fix.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the start-up time
)
for name, (_, sentence) in COMMANDS.items():
    app.command(name, help=sentence)(lambda: None)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"latfix {latfix.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find out why the latency of model inference jitters, fix it, and prove the fix."""
    del version


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    repair_streams()
    try:
        with signals_as_interrupt():
            return _run(arguments)
    finally:
        release_all()


def _several_files(command: str, arguments: list[str] | None) -> str:
    """What to do with several recordings, of which ``latfix diagnose`` takes one; empty if they are not given."""
    words = sys.argv[1:] if arguments is None else arguments
    values = [word for before, word in pairwise(["", *words]) if not before.startswith("-")]
    files = [Path(word) for word in values if _is_file(word)]
    if command.strip() != "diagnose" or len(files) < 2:
        return ""
    joined = join_command(files)
    return f"; expected one file (parts of one log: {joined})" if joined else "; expected one file: join them"


def _is_file(word: str) -> bool:
    """False for what no file can be called, too."""
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False


def _run(arguments: list[str] | None) -> int:
    # Newer versions of Typer bundle click; these two classes are not exported elsewhere.
    exceptions = import_module("typer._click.exceptions" if find_spec("typer._click") else "click.exceptions")
    ClickException, NoArgsIsHelpError = exceptions.ClickException, exceptions.NoArgsIsHelpError

    try:
        code = _parser(app)(arguments, standalone_mode=False)
        sys.stdout.flush()
    except NoArgsIsHelpError as error:
        sys.stdout.write(error.format_message() + "\n")
        return EXIT_INPUT
    except ClickException as error:
        used = getattr(error, "ctx", None)  # the command whose options are wrong
        command = "" if used is None else used.command_path.removeprefix(used.find_root().command_path)
        hint = f"; see latfix{command} --help" if error.exit_code == EXIT_INPUT else ""
        print_error(f"{_one_line(error.format_message()).rstrip('.')}{_several_files(command, arguments) or hint}")
        return EXIT_INPUT
    except LatfixError as error:
        print_error(_one_line(error.message))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted")
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):  # rich raises SystemExit on a broken pipe
        discard(1)  # the reader of the output is gone, as with head
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.filename is None and not _has_directory():
            print_error("the working directory no longer exists; change to another one")
            return EXIT_INPUT
        print_error(f"{_one_line(str(error.filename or 'output'))}: {error.strerror}")
        if error.filename is None:  # standard output, such as a full disk
            discard(1)
            return EXIT_RUNNER
        return EXIT_RUNNER if disk_is_full(error) else EXIT_INPUT
    except Exception:  # noqa: BLE001 - a bug in latfix
        # Python's own exit code, 1, would mean a failed gate.
        traceback.print_exc()
        print_error("this is a bug in latfix: please report it with the lines above")
        return EXIT_RUNNER
    if code == EXIT_INTERRUPTED:  # Typer returns this code for Ctrl-C, without a message
        print_error("interrupted")
    return code if isinstance(code, int) else 0


def _has_directory() -> bool:
    try:
        return Path.cwd().is_dir()
    except FileNotFoundError:
        return False


def _one_line(message: str) -> str:
    """The message without line breaks and control characters from file names or errors."""
    words = (word if len(word) <= _LONGEST_WORD else f"{word[:200]}…{word[-80:]}" for word in message.split())
    return "".join(c if c.isprintable() else " " for c in " ".join(words))
