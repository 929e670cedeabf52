"""Shared by fixes that preload another allocator."""

from __future__ import annotations

import sys
from functools import partial

from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.memory.allocator import TREATS, kept_already, many_faults, preloaded
from latfix.runners.fixes.shared.run_evidence import fewer_faults
from latfix.runners.host.malloc_libraries import ALLOCATORS, Allocator, preload_name


def preload_fix(allocator: Allocator) -> Fix:
    """``memory.NAME``: the allocator instead of the C library's, configured to keep freed memory."""
    return Fix(
        id=f"memory.{allocator.name}",
        title=f"preload {allocator.name} and let it keep freed memory",
        treats=TREATS,
        relief=0.6,
        gentle=True,
        risk="resident memory grows to its peak and stays there",
        needs=(_none_preloaded, kept_already, partial(_installed, allocator), many_faults),
        sets=partial(_sets, allocator),
        variables=(*allocator.environment, "LD_PRELOAD"),
        verify=partial(_verify, allocator),
    )


def _none_preloaded(context: Context) -> str:
    if not sys.platform.startswith("linux"):
        return "an allocator can only be preloaded on Linux"
    there = preloaded(context)
    known = next((one.name for one in ALLOCATORS if one.name in there), "")
    return f"{known} is preloaded already" if known else ""


def _installed(allocator: Allocator, _: Context) -> str:
    if preload_name(allocator):
        return ""
    return f"{allocator.name} is not installed ({allocator.sonames[0]} was not found)"


def _sets(allocator: Allocator, context: Context) -> Change:
    """Environment of a process with that allocator; other preloaded libraries stay."""
    there = context.settings.env.get("LD_PRELOAD", "")
    names = [preload_name(allocator), *there.replace(":", " ").split()]
    return {"env": {**allocator.environment, "LD_PRELOAD": ":".join(names)}}


def _verify(allocator: Allocator, applied: Applied) -> Verified:
    """The library is in the process, and faults halved: with its default configuration they would not."""
    used = applied.record.meta.memory.allocator
    fewer, faults = fewer_faults(applied)
    return Verified(used == allocator.name and fewer, f"the process ran on {used}; {faults}")
