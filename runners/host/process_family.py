"""A process that latfix started, and all that it started in turn, also those that left its group and its parent."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path


class ProcessFamily:
    """Found by the process group, and by a variable that only the family has in its environment.

    A process that both left the group and replaced its environment is not found, nor, where there is no ``/proc``,
    one that left the group.

    :ivar environment: what the first process has to be started with, in a group of its own.
    """

    def __init__(self) -> None:
        self.environment = {f"LATFIX_{secrets.token_hex(8)}": "1"}

    def send(self, group: int, number: signal.Signals) -> None:
        """Send a signal to all of them; ``group`` is the id of the first one."""
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        for one in self.marked():
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def marked(self) -> list[int]:
        """The running processes with the variable, as far as the system shows their environment."""
        found, mark = [], "=".join(*self.environment.items()).encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended, or belongs to someone else
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found
