"""``python -m latfix.runners.launch PLAN COMMAND …``: start a command with a plan's environment.

Without a command, prints the shell line that does so. The command replaces this process, so signals, process ids and
exit codes are its own. Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from latfix.errors import EXIT_INPUT, EXIT_OK, InputError
from latfix.runners.host.apply_plan import with_plan
from latfix.runners.host.process_setup import process_environment
from latfix.runners.host.start_environment import command_line
from latfix.settings import RunnerSettings

_USAGE = "usage: python -m latfix.runners.launch PLAN [COMMAND ...]"


def main(arguments: list[str]) -> int:
    """Start the command, or print the line. Returns only if there is nothing to start, or on an error."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stdout if arguments else sys.stderr)
        return EXIT_OK if arguments else EXIT_INPUT
    plan, *command = arguments
    command = command[1:] if command[:1] == ["--"] else command
    try:
        settings, _ = with_plan(RunnerSettings(), Path(plan))
        if not command:
            print(command_line(process_environment(settings, {}), ["COMMAND"]))
            return EXIT_OK
        _start(command, process_environment(settings))
    except InputError as error:
        print(f"latfix: {error.message}", file=sys.stderr)
        return error.exit_code


def _start(command: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise InputError(
            f"{command[0]}: cannot be started ({error.strerror}); expected a command, such as uvicorn service:app"
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
