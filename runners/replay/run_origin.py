"""Where a run was started from: host, command line, and the commit of the workload's folder."""

from __future__ import annotations

import contextlib
import datetime
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

_PATIENCE_S = 2.0
_LONGEST = 500


def run_origin(folder: Path | None) -> dict[str, str]:
    """``host``, ``command``, ``commit`` and ``branch``; unknown values are omitted.

    :param folder: the workload's; outside of a git repository, and without a workload, there is no commit.
    """
    known = {"host": platform.node(), "command": _command(), **(_revision(folder) if folder is not None else {})}
    return {name: value for name, value in known.items() if value}


def origin_now(folder: Path | None = None) -> dict[str, str]:
    """As :func:`run_origin`, with ``started``: now, ISO 8601."""
    return {"started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), **run_origin(folder)}


def _command() -> str:
    """The command as typed, without the program's folder."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    if not name.startswith("latfix"):  # from Python, or a test
        return ""
    return shlex.join([name, *sys.argv[1:]])[:_LONGEST]


@cache
def _revision(folder: Path) -> dict[str, str]:
    """Commit and branch; ``+`` after the commit marks uncommitted changes."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return {}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    changed = " (changes unknown)" if changes is None else "+" if changes else ""
    return {"commit": f"{commit}{changed}", "branch": _git(folder, "branch", "--show-current") or ""}


def _git(folder: Path, *words: str) -> str | None:
    """Output of a git command that changes nothing; ``None`` if it fails or takes too long."""
    words = ("--no-optional-locks", *words)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
        return done.stdout.strip()
    return None
