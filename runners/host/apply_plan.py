"""A plan's settings on a workload's own: of a process's environment, only what a fix sets itself.

A variable may have a process load a library, which is code; a plan or a search's journal may come from anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from latfix.config.plan import PLAN_FILE, Plan, read_plan
from latfix.errors import InputError
from latfix.runners.host.malloc_libraries import ALLOCATORS, preload_name
from latfix.runners.host.process_setup import preloaded
from latfix.settings import RunnerSettings

_PRELOAD = "LD_PRELOAD"
#: What fixes set. Told here, for importing them all takes as long as a small service takes to start.
FIX_VARIABLES = frozenset(
    {
        _PRELOAD,
        "GLIBC_TUNABLES",
        "KMP_BLOCKTIME",
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        *(name for allocator in ALLOCATORS for name in allocator.environment),
    }
)


def with_plan(settings: RunnerSettings, path: Path) -> tuple[RunnerSettings, Plan]:
    """The settings as the plan in a file or folder changes them, and the plan.

    :raises InputError: it cannot be read, or its environment holds what no fix sets.
    """
    plan = read_plan(path)
    check_environment(plan.environment(), settings, path / PLAN_FILE if path.is_dir() else path)
    return settings.with_overrides(plan.settings()), plan


def check_environment(
    variables: Mapping[str, Any], settings: RunnerSettings, where: Path | str, known: Collection[str] = FIX_VARIABLES
) -> None:
    """Refuse a variable that no fix sets, and a library that is neither an allocator found here nor preloaded anyhow.

    :param settings: those of the workload, whose own environment is as trustworthy as its code.
    :param where: the file that the variables come from, or what they were passed to.
    :param known: variables that fixes may set.
    :raises InputError: there is one.
    """
    for name, value in variables.items():
        if settings.env.get(name) == value:
            continue
        if name not in known:
            raise _refusal(where, name, value, f"one of {', '.join(sorted(known))}")
        if name == _PRELOAD:
            found = {library for each in ALLOCATORS if (library := preload_name(each))}
            there = {library for source in (settings.env, os.environ) for library in preloaded(source.get(name, ""))}
            if set(preloaded(value)) - found - there:
                expected = " or ".join(sorted(found)) or "no library, for no allocator is installed here"
                raise _refusal(where, name, value, expected)


def _refusal(where: Path | str, name: str, value: str, expected: str) -> InputError:
    lines = where.read_text(encoding="utf-8").splitlines() if isinstance(where, Path) else []
    line = next((f":{number}" for number, text in enumerate(lines, 1) if name in text), "")
    return InputError(
        f"{where}{line}: found {name} = {value!r} in env; expected {expected}; remove it, or set it in "
        "[runner] env of a workload that you trust"
    )
