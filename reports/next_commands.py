"""The commands that a report suggests to run next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from latfix.config.model_file_kind import is_model_file
from latfix.run_record.run_meta import RunMeta

_SAMPLES = "sample_workloads"
#: More than the default of ``latfix optimize``.
_MORE_TIME = "--budget 15m"


class Words(str):
    """Command arguments that are already quoted for a shell."""


def workload_argument(meta: RunMeta, *, typed: str | None = None) -> str:
    """The workload of a recorded run as a user types it: a sample's name, a folder or a model file.

    If the workload does not name its traffic itself, traffic options follow, quoted (:class:`Words`).

    :param typed: the workload as the user typed it, if known.
    """
    workload = typed or _workload(meta)
    if not meta.traffic_arguments:
        return workload
    return Words(shlex.join([workload, *meta.traffic_arguments]))


def _workload(meta: RunMeta) -> str:
    folder, entry = meta.workload_folder, meta.entry
    if not folder:
        return meta.workload
    if is_model_file(entry) and Path(entry).name == entry:
        return str(Path(folder, entry))  # equivalent to the folder if workload.toml names it
    return Path(folder).name if Path(folder).parent.name == _SAMPLES else folder


def optimize_command(workload: str) -> str:
    """``latfix optimize WORKLOAD``, quoted for a shell."""
    return f"latfix optimize {_quoted(workload)}"


def try_harder_command(workload: str, fixes: Sequence[str]) -> str:
    """``latfix optimize WORKLOAD --fix ID … --budget 15m``: only these fixes, with more time for their replays."""
    chosen = "".join(f" --fix {shlex.quote(fix)}" for fix in fixes)
    return f"{optimize_command(workload)}{chosen} {_MORE_TIME}"


def resume_command(workload: str, folder: str) -> str:
    """``latfix optimize WORKLOAD --resume DIR --budget 15m``: the same search with more time."""
    return f"{optimize_command(workload)} --resume {shlex.quote(folder)} {_MORE_TIME}"


def replay_command(workload: str, plan: str) -> str:
    """``latfix diagnose WORKLOAD --plan PLAN``, quoted for a shell."""
    return f"latfix diagnose {_quoted(workload)} --plan {shlex.quote(plan)}"


def map_command(path: str, option: str) -> str:
    """``latfix diagnose FILE --map ROLE=COLUMN``; the option is quoted already."""
    return f"latfix diagnose {shlex.quote(path)} {option}"


def _quoted(workload: str) -> str:
    return workload if isinstance(workload, Words) else shlex.quote(workload)
