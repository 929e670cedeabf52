"""``memory.allocator``: keep freed memory in the process instead of faulting it in again for each request."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from latfix.formatting import percent
from latfix.runners.fixes.fix import Applied, Condition, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import need, tail_share
from latfix.runners.fixes.shared.run_evidence import faults_per_request, faults_words, fewer_faults
from latfix.runners.host.process_setup import KEEP_FREED, read_tunables, tunables_text

#: Causes that come from a heap that grows and shrinks.
TREATS = ("memory.page_faults", "memory.allocator", "memory.fragmentation")
#: Minimum page faults per request for a trial: 0.15 ms at half a microsecond each …
WORTH_IT = 300.0
#: … or minimum share of the tail's excess: a few requests may have all faults.
IN_TAIL = 0.05
#: A service that keeps its memory has about this many faults per request.
_NEARLY_NONE = 20.0


def on_glibc(otherwise: str) -> Condition:
    """The C library must be glibc."""
    return need(lambda _: platform.libc_ver()[0] == "glibc", otherwise)


def many_faults(context: Context) -> str:
    """There must be enough page faults for another allocator to pay."""
    if context.latest is not None and (left := faults_per_request(context.latest)) < _NEARLY_NONE:
        return f"the fixes kept so far leave {faults_words(left)}"
    faults = faults_per_request(context.record)
    share = tail_share(context.diagnosis, TREATS)
    if faults >= WORTH_IT or share >= IN_TAIL:
        return ""
    return (
        f"only {faults_words(faults)}, and {100 * max(share, 0.0):.1f} % of the tail is memory; it pays "
        f"above {WORTH_IT:.0f}, or from {percent(IN_TAIL)} of the tail"
    )


def preloaded(context: Context) -> str:
    """Libraries that are preloaded into the runner already; empty for none."""
    return " ".join(environment.get("LD_PRELOAD", "") for environment in (context.settings.env, os.environ)).strip()


def kept_already(context: Context) -> str:
    """Why glibc keeps freed memory already, in one clause; empty if it does not."""
    if context.settings.prefault_mb:
        return "prefault_mb has glibc keep freed memory already"
    inherited, own = (environment.get("GLIBC_TUNABLES", "") for environment in (os.environ, context.settings.env))
    kept = _keeps({**read_tunables(inherited), **read_tunables(own)})
    return "glibc keeps freed memory already (GLIBC_TUNABLES)" if kept else ""


def _keeps(tunables: Mapping[str, str]) -> bool:
    return KEEP_FREED.items() <= tunables.items()


def _own_allocator(context: Context) -> str:
    if "GLIBC_TUNABLES" in context.settings.env:
        return "GLIBC_TUNABLES is set already"
    if "malloc" in preloaded(context) or "LD_PRELOAD" in context.settings.env:
        return "another allocator is preloaded"
    return ""


def _verify(applied: Applied) -> Verified:
    """Fewer faults alone prove nothing: a heap that has grown once has fewer of them in any second run."""
    fewer, faults = fewer_faults(applied)
    reached = _keeps(read_tunables(applied.record.meta.environment.get("GLIBC_TUNABLES", "")))
    return Verified(
        reached and fewer, f"the process was started {'with' if reached else 'without'} the tunables; {faults}"
    )


FIX = Fix(
    id="memory.allocator",
    title="keep freed memory in the process (glibc: one heap, no mmap, no trim)",
    treats=TREATS,
    removes=("memory.page_faults",),
    relief=0.7,
    gentle=True,
    risk="resident memory up to 70 % higher",
    needs=(on_glibc("the C library is not glibc"), kept_already, _own_allocator, many_faults),
    sets={"env": {"GLIBC_TUNABLES": tunables_text(KEEP_FREED)}},
    verify=_verify,
)
