"""The commands that a report tells its reader to run next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SAMPLES = "sample_workloads"


def workload_argument(meta: Mapping[str, Any]) -> str:
    """What to type for the workload of a recorded run: a sample's name, else its folder, else its name.

    :param meta: the content of ``run.json``.
    """
    folder = meta.get("workload_folder")
    if isinstance(folder, str) and folder:
        return Path(folder).name if Path(folder).parent.name == _SAMPLES else folder
    return str(meta.get("workload", ""))


def optimize_command(workload: str) -> str:
    """``latfix optimize WORKLOAD``, quoted for a shell."""
    return f"latfix optimize {shlex.quote(workload)}"


def replay_command(workload: str, plan: str) -> str:
    """``latfix diagnose WORKLOAD --plan PLAN``, quoted for a shell."""
    return f"latfix diagnose {shlex.quote(workload)} --plan {shlex.quote(plan)}"
