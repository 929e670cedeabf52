"""Commands with a limit of time: ended with all that they started, and what they had printed is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.findings import NO_TIME

ROOT = Path(__file__).resolve().parents[2]
#: The command line of this tree, whether or not it is installed.
LATFIX = "import sys; from latfix.cli.app import main; sys.exit(main())"
#: The exit code of what was stopped.
TIMED_OUT = 124
#: What a command has printed is kept from here on back.
_MOST_BYTES = 1 << 20
#: A killed process that does not end so soon hangs in the driver; there is nothing more to do about it.
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended.

    :param exit_code: its own; :data:`TIMED_OUT` where its time was up.
    :param output: what it printed on both streams.
    :param stopped: it was killed because its time was up.
    """

    exit_code: int
    output: str
    seconds: float
    stopped: bool

    @property
    def why(self) -> str:
        """In a few words."""
        if self.stopped:
            return f"stopped after {self.seconds:.0f} s, {NO_TIME} was left"
        said = last_line(self.output) if self.exit_code else ""
        return f"ended with {self.exit_code}{': ' if said else ''}{said}"


def run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command in the root of this tree, in a session of its own; it and what it started are gone afterwards.

    :param environment: beside this process's own.
    """
    begun, stopped = time.monotonic(), False
    # A file and no pipe: a pipe would have to be waited for as long as anyone holds its other end.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **_python_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            stopped = True
        finally:  # on Ctrl-C, too, which does not reach another session
            end(process)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(size - _MOST_BYTES, 0))
        text = output.read().decode("utf-8", errors="replace")
    code = TIMED_OUT if stopped or process.returncode is None else process.returncode
    return Ended(exit_code=code, output=text, seconds=time.monotonic() - begun, stopped=stopped)


def last_line(output: str) -> str:
    """The end of what a command printed, which says what it died of."""
    return output.strip().rpartition("\n")[2][-300:]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a session's first process and everything that came from it, in sessions of their own as well."""
    strays = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stray in strays:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stray, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they did; none where the system does not tell."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        # The name in parentheses may hold anything; behind it come the state and the parent.
        children[int(text.rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found, look = [], [pid]
    while look:
        look = [child for parent in look for child in children[parent]]
        found += look
    return found


def _python_environment() -> dict[str, str]:
    """So that every Python below finds this tree, and what it prints is there when it is killed."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(path)}
