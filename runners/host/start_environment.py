"""Checks whether the environment that settings require is in effect in this process.

The C library reads ``GLIBC_TUNABLES`` and ``LD_PRELOAD`` before ``main``, and OpenMP reads its variables when it is
loaded, possibly before the first line of a service. What counts is therefore the environment at process start, not
``os.environ``, which a program can change when it is too late.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latfix.runners.host.process_setup import preloaded, process_environment
from latfix.settings import RunnerSettings

_PRELOAD = "LD_PRELOAD"
_AT_START = Path("/proc/self/environ")


class EnvironmentWarning(RuntimeWarning):
    """Part of a plan has no effect because the process was started without its environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that settings require.

    :param wanted: its value, merged with what this process was started with.
    :param why_not: why it is not in effect, in one clause; empty if it is.
    """

    name: str
    wanted: str
    why_not: str = ""

    @property
    def in_effect(self) -> bool:
        """True if it acts on this process."""
        return not self.why_not


def check_environment(settings: RunnerSettings) -> list[Variable]:
    """Each variable that the settings require, and whether it is in effect in this process."""
    started_with = environment_at_start()
    wanted = process_environment(settings, started_with)
    variables = []
    for name in process_environment(settings, {}):
        now, value = started_with.get(name), wanted[name]
        why_not = ""
        if now is None:
            late = os.environ.get(name) == value
            why_not = "it was set after the process had started" if late else "the process started without it"
        elif now != value and not (name == _PRELOAD and preloaded(now) == preloaded(value)):
            why_not = f"the process started with {now!r}"
        elif name == _PRELOAD and (missing := _not_loaded(value)):
            why_not = f"{', '.join(missing)} is not loaded; is the path right?"
        variables.append(Variable(name=name, wanted=value, why_not=why_not))
    return variables


def environment_at_start() -> Mapping[str, str]:
    """The environment that this process was started with; ``os.environ`` if the system does not keep it."""
    try:
        raw = _AT_START.read_bytes()
    except OSError:
        return os.environ
    # glibc splits its tunables in place: zeros replace the colons.
    whole = re.sub(rb"\0(?=glibc\.[a-z0-9_.]+=)", b":", raw)
    pairs = (entry.partition(b"=") for entry in whole.split(b"\0") if b"=" in entry)
    environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    # A program that sets its own title in the process list overwrites this.
    return environment if any(os.environ.get(name) == value for name, value in environment.items()) else os.environ


def command_line(wanted: Mapping[str, str], command: Sequence[str]) -> str:
    """The shell line that starts ``command`` with the environment."""
    pairs = [f"{name}={shlex.quote(value)}" for name, value in wanted.items()]
    return " ".join(["env", *pairs, *(shlex.quote(part) for part in command)])


def own_command() -> list[str]:
    """The command that started this process, or a placeholder if a shell could not start it again."""
    # Code passed as text or typed interactively, or a worker spawned by another Python process.
    inline = sys.argv[:1] in ([], [""], ["-"], ["-c"]) or sys.orig_argv[1:2] == ["-c"]
    return ["COMMAND"] if inline else list(sys.orig_argv)


def warn_unless_in_effect(settings: RunnerSettings) -> list[Variable]:
    """:func:`check_environment`, plus one warning for variables that are not in effect; repeats are not reported.

    The warning points to the caller of the calling function.
    """
    variables = check_environment(settings)
    missing = tuple(variable for variable in variables if not variable.in_effect)
    if missing and missing not in _warned:
        _warned.add(missing)
        reasons = "; ".join(f"{variable.name}: {variable.why_not}" for variable in missing)
        line = command_line({variable.name: variable.wanted for variable in missing}, own_command())
        message = f"part of the settings is not in effect in this process ({reasons}); start the service with: {line}"
        warnings.warn(message, EnvironmentWarning, stacklevel=3)
    return variables


_warned: set[tuple[Variable, ...]] = set()


def _not_loaded(preload: str) -> list[str]:
    """Libraries of ``LD_PRELOAD`` that this process has not mapped; empty if that cannot be checked."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    mapped = {Path(line.rpartition(" ")[2]).name for line in maps.splitlines() if "/" in line}
    # The map holds the resolved file name, not that of a symbolic link.
    return [name for name in preloaded(preload) if not {Path(name).name, Path(name).resolve().name} & mapped]
