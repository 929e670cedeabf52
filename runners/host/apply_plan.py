"""Applies a plan's settings to a workload's own. Of its environment, only variables that fixes set are accepted.

A variable can make a process load a library, which is code, and a plan or a search's journal may come from anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from latfix.config.plan import PLAN_FILE, Plan, read_plan
from latfix.errors import InputError
from latfix.formatting import did_you_mean
from latfix.runners.host.malloc_libraries import ALLOCATORS, preload_name
from latfix.runners.host.process_setup import preloaded
from latfix.settings import RunnerSettings

_PRELOAD = "LD_PRELOAD"
#: Variables that fixes set. Listed here because importing all fixes takes as long as starting a small service.
FIX_VARIABLES = frozenset(
    {
        _PRELOAD,
        "GLIBC_TUNABLES",
        "KMP_BLOCKTIME",
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_CUDNN_SDPA_DEPRIORITIZED",
        *(name for allocator in ALLOCATORS for name in allocator.environment),
    }
)
#: The modules of the fixes, whose names follow from the fixes' ids.
_FIXES = Path(__file__).parent.parent / "fixes"
#: Fixes of earlier versions, whose plans are still read.
_EARLIER = ("batch.tune",)


def with_plan(settings: RunnerSettings, path: Path) -> tuple[RunnerSettings, Plan]:
    """The settings as changed by the plan in a file or folder, and the plan.

    :raises InputError: as :func:`known_plan`, or its environment holds a variable or library that no fix sets.
    """
    plan = known_plan(path)
    check_environment(plan.environment(), settings, _file(path))
    return settings.with_overrides(plan.settings()), plan


def known_plan(path: Path) -> Plan:
    """The plan in a file or folder.

    :raises InputError: it cannot be read, or a fix in it is neither of this version of latfix nor of an earlier one.
    """
    plan = read_plan(path)
    known = {file.stem.replace("_", ".", 1) for file in _FIXES.glob("[a-z]*.py")}
    known |= {f"{file.parent.name}.{file.stem}" for file in _FIXES.glob("*/[a-z]*.py")}
    for fix in plan.fixes:
        if fix.id not in (*known, *_EARLIER):
            advice = did_you_mean(fix.id, known, "correct its id or remove it")
            version = f" (the plan was written by latfix {plan.latfix})" if plan.latfix else ""
            raise InputError(
                f"{_place(_file(path), fix.id)}: found the fix {fix.id!r}; expected one that this version of latfix "
                f"has{version}; {advice}"
            )
    return plan


def check_environment(
    variables: Mapping[str, Any], settings: RunnerSettings, where: Path | str, known: Collection[str] = FIX_VARIABLES
) -> None:
    """Refuse variables that no fix sets, and libraries other than installed allocators and those preloaded anyway.

    :param settings: the workload's, whose own environment is as trustworthy as its code.
    :param where: the file that the variables come from, or the argument they were passed in.
    :param known: variables that fixes may set.
    :raises InputError: a variable or library is refused.
    """
    for name, value in variables.items():
        if settings.env.get(name) == value:
            continue
        if name not in known:
            raise _refusal(where, name, value, f"one of {', '.join(sorted(known))}")
        if name == _PRELOAD:
            installed = {library for each in ALLOCATORS if (library := preload_name(each))}
            preloaded_now = {
                library for source in (settings.env, os.environ) for library in preloaded(source.get(name, ""))
            }
            if set(preloaded(value)) - installed - preloaded_now:
                expected = " or ".join(sorted(installed)) or "no library, because no allocator is installed here"
                raise _refusal(where, name, value, expected)


def _file(path: Path) -> Path:
    return path / PLAN_FILE if path.is_dir() else path


def _place(where: Path | str, name: str) -> str:
    lines = where.read_text(encoding="utf-8").splitlines() if isinstance(where, Path) else []
    return next((f"{where}:{number}" for number, text in enumerate(lines, 1) if name in text), str(where))


def _refusal(where: Path | str, name: str, value: str, expected: str) -> InputError:
    return InputError(
        f"{_place(where, name)}: found {name} = {value!r} in env; expected {expected}; remove it, or set it in "
        "[runner] env of a workload that you trust"
    )
