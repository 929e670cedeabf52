"""Commands with a time limit: ended together with their children; their output is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The command line of this tree, installed or not.
LATFIX = (sys.executable, "-c", "import sys; from latfix.cli.app import main; sys.exit(main())")
#: The exit code of a stopped command.
TIMED_OUT = 124
_MOST_BYTES = 1 << 20
#: A killed process that does not end in this time hangs in the driver and cannot be ended.
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended.

    :param exit_code: its own, or :data:`TIMED_OUT`.
    :param output: the end of what it printed on both streams.
    """

    exit_code: int
    output: str
    seconds: float

    @property
    def why(self) -> str:
        """A short reason; empty if it succeeded."""
        if self.exit_code == TIMED_OUT:
            return f"stopped after {self.seconds:.0f} s, no time was left"
        last = self.output.strip().rpartition("\n")[2][-300:]
        return f"exit code {self.exit_code}{': ' if last else ''}{last}" if self.exit_code else ""


def run(command: Sequence[str], seconds: float) -> Ended:
    """Run a command in the root of this tree, in its own session; it and its children are gone afterwards."""
    begun, stopped = time.monotonic(), False
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # A file instead of a pipe, which would be open as long as any child holds its other end.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            stopped = True
        finally:  # also on Ctrl-C, which does not reach another session
            _end(process)
        output.seek(max(output.seek(0, os.SEEK_END) - _MOST_BYTES, 0))
        text = output.read().decode("utf-8", errors="replace")
    code = TIMED_OUT if stopped or process.returncode is None else process.returncode
    return Ended(exit_code=code, output=text, seconds=time.monotonic() - begun)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a session's first process and all descendants, also those in other sessions."""
    strays = _descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stray in strays:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stray, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        # The name in parentheses may contain anything; after it come the state and the parent.
        children[int(text.rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found, look = list[int](), [pid]
    while look:
        look = [child for parent in look for child in children[parent]]
        found += look
    return found
