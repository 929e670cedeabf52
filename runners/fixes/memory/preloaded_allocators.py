"""What fixes that preload another allocator have in common."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.memory.allocator import TREATS, few_faults, kept_already, preloaded
from latfix.runners.fixes.shared.tail_conditions import faults_per_request
from latfix.runners.host.malloc_libraries import ALLOCATORS, Allocator, preload_name


def preload_fix(allocator: Allocator) -> Fix:
    """``memory.NAME``: the allocator instead of the C library's, told to keep freed memory."""
    return Fix(
        id=f"memory.{allocator.name}",
        title=f"preload {allocator.name} and let it keep freed memory",
        treats=TREATS,
        relief=0.6,
        gentle=True,
        risk="resident memory grows to its peak and stays there",
        obstacle=partial(_obstacle, allocator),
        change=partial(_change, allocator),
        verify=partial(_verify, allocator),
    )


def _obstacle(allocator: Allocator, context: Context) -> str:
    """Why the allocator is not preloaded here; empty where it can be."""
    if not sys.platform.startswith("linux"):
        return "preloading an allocator is done on Linux only"
    there = preloaded(context)
    known = next((one.name for one in ALLOCATORS if one.name in there), "")
    if known:
        return f"{known} is preloaded already"
    if kept := kept_already(context):
        return kept
    if not preload_name(allocator):
        return f"{allocator.name} is not installed ({allocator.sonames[0]} is nowhere to be found)"
    return few_faults(context)


def _change(allocator: Allocator, context: Context) -> dict[str, Any]:
    """The environment of a process on that allocator; what is preloaded otherwise stays."""
    there = context.settings.env.get("LD_PRELOAD", "")
    names = [preload_name(allocator), *there.replace(":", " ").split()]
    return {"env": {**allocator.environment, "LD_PRELOAD": ":".join(names)}}


def _verify(allocator: Allocator, applied: Applied) -> Verified:
    """The library is mapped into the process, and the faults are gone: with its defaults it would change nothing."""
    used = str(applied.record.meta.get("memory", {}).get("allocator", "unknown"))
    now, before = faults_per_request(applied.record), faults_per_request(applied.without)
    said = f"the process ran on {used}; {now:.0f} page faults a request, {before:.0f} without"
    return Verified(used == allocator.name and now < 0.5 * before, said)
