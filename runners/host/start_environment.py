"""The environment that settings ask for acts on a process only from its start: is it in effect in this one?

The C library reads ``GLIBC_TUNABLES`` and ``LD_PRELOAD`` before ``main``, OpenMP its variables when it is loaded,
which may be before any line of a service's own. What counts is therefore the environment that the process was
started with, not ``os.environ``, which a program can still write to when it is too late.

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
    """Part of a plan does not act, because the process was started without its environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable of the environment that settings ask for.

    :param wanted: its value, together with what this process was started with.
    :param found: the value that this process was started with; ``None`` for none.
    :param why_not: why it is not in effect, in one clause; empty where it is.
    """

    name: str
    wanted: str
    found: str | None
    why_not: str = ""

    @property
    def in_effect(self) -> bool:
        """Whether it acts on this process."""
        return not self.why_not


def check_environment(settings: RunnerSettings) -> list[Variable]:
    """Each variable that the settings ask for, and whether it is in effect in this process."""
    found = environment_at_start()
    wanted = process_environment(settings, found)
    variables = []
    for name in process_environment(settings, {}):
        now, value = found.get(name), wanted[name]
        why_not = ""
        if now is None:
            late = os.environ.get(name) == value
            why_not = "it was set after the process had started" if late else "the process started without it"
        elif now != value and not (name == _PRELOAD and preloaded(now) == preloaded(value)):
            why_not = f"the process started with {now!r}"
        elif name == _PRELOAD and (missing := _not_loaded(value)):
            why_not = f"{', '.join(missing)} is not loaded; is the path right?"
        variables.append(Variable(name=name, wanted=value, found=now, why_not=why_not))
    return variables


def environment_at_start() -> Mapping[str, str]:
    """The environment that this process was started with; ``os.environ`` where the system does not keep it."""
    try:
        raw = _AT_START.read_bytes()
    except OSError:
        return os.environ
    # glibc takes its tunables apart in place: what was one text has zeros in it now where colons were.
    whole = re.sub(rb"\0(?=glibc\.[a-z0-9_.]+=)", b":", raw)
    pairs = (entry.partition(b"=") for entry in whole.split(b"\0") if b"=" in entry)
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    # A program that shows a title of its own in the list of processes writes it over this.
    return found if any(os.environ.get(name) == value for name, value in found.items()) else os.environ


def command_line(wanted: Mapping[str, str], command: Sequence[str]) -> str:
    """The line for a shell that starts ``command`` with the environment."""
    pairs = [f"{name}={shlex.quote(value)}" for name, value in wanted.items()]
    return " ".join(["env", *pairs, *(shlex.quote(part) for part in command)])


def own_command() -> list[str]:
    """The command that started this process, where a shell could start it again; else a placeholder."""
    # A program given as text or typed in, and a worker that another Python process spawned.
    inline = sys.argv[:1] in ([], [""], ["-"], ["-c"]) or sys.orig_argv[1:2] == ["-c"]
    return ["COMMAND"] if inline else list(sys.orig_argv)


def warn_unless_in_effect(settings: RunnerSettings) -> list[Variable]:
    """:func:`check_environment`, with one warning for what is not in effect; the same is not said twice.

    The warning points to the caller of the function that calls this one.
    """
    variables = check_environment(settings)
    missing = tuple(variable for variable in variables if not variable.in_effect)
    if missing and missing not in _warned:
        _warned.add(missing)
        said = "; ".join(f"{variable.name}: {variable.why_not}" for variable in missing)
        line = command_line({variable.name: variable.wanted for variable in missing}, own_command())
        message = f"part of the settings is not in effect in this process ({said}); start the service with: {line}"
        warnings.warn(message, EnvironmentWarning, stacklevel=3)
    return variables


_warned: set[tuple[Variable, ...]] = set()


def _not_loaded(preload: str) -> list[str]:
    """Libraries of ``LD_PRELOAD`` that this process has not mapped; none where that cannot be seen."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    mapped = {Path(line.rpartition(" ")[2]).name for line in maps.splitlines() if "/" in line}
    return [name for name in preloaded(preload) if not _is_mapped(name, mapped)]


def _is_mapped(name: str, mapped: set[str]) -> bool:
    # The map has the file's real name, which a link to it has not.
    return Path(name).name in mapped or Path(name).resolve().name in mapped
