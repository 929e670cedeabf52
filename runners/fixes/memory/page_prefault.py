"""``memory.page_prefault``: touch the heap up to its expected peak before the first request, and keep it."""

from __future__ import annotations

import math

from latfix.formatting import mebibytes
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.memory.allocator import on_glibc, preloaded
from latfix.runners.fixes.shared.conditions import at_default, need, refusals
from latfix.runners.fixes.shared.run_evidence import fewer_faults
from latfix.runners.host.privileges import available_bytes

_MIB = 1 << 20
#: Minimum growth during a run for a visible effect.
_LEAST = 8 * _MIB
#: Margin for fragmentation.
_MARGIN = 1.25
_STEP_MIB = 16
#: Maximum share of the available memory.
_MOST = 0.5
#: Minimum share of the touched memory that must still be resident.
_KEPT = 0.9


def growth_bytes(record: RunRecord) -> int:
    """Peak growth of resident memory since before the first request."""
    memory = record.meta.memory
    if memory.peak_bytes:
        return max(memory.peak_bytes - memory.resident_start_bytes, 0)
    resident = record.samples["value"][record.samples["series"] == "process.rss_bytes"]
    return int(resident.max() - resident[0]) if len(resident) else 0


def _wanted_mib(record: RunRecord) -> int:
    return math.ceil(_MARGIN * growth_bytes(record) / _MIB / _STEP_MIB) * _STEP_MIB


def _growth_fits(context: Context) -> str:
    growth = growth_bytes(context.record)
    if growth < _LEAST:
        return f"memory grew by only {mebibytes(growth)} while requests were served"
    available = available_bytes()
    if available and _wanted_mib(context.record) * _MIB > _MOST * available:
        return f"{_wanted_mib(context.record)} MiB would be needed, {mebibytes(available)} are available"
    return ""


def _verify(applied: Applied) -> Verified:
    memory = applied.record.meta.memory
    touched, kept = memory.prefaulted_bytes, memory.prefault_kept_bytes
    fewer, faults = fewer_faults(applied)
    grew, grew_before = applied.both(growth_bytes)
    text = (
        f"{mebibytes(touched)} were touched before the first request and {mebibytes(kept)} of it kept; {faults}; "
        f"memory grew by {mebibytes(grew)}, {mebibytes(grew_before)} without"
    )
    effective = touched > 0 and kept >= _KEPT * touched and fewer
    return Verified(effective, "; ".join([text, *refusals(applied.record, "prefault_mb")]))


FIX = Fix(
    id="memory.page_prefault",
    title="touch the heap's expected peak before the first request and keep it",
    treats=("memory.page_faults", "memory.allocator", "cold.start"),
    relief=0.7,
    gentle=True,
    cold=True,
    risk="the service takes its peak memory from the start, and starts later",
    needs=(
        at_default("prefault_mb", "{} MiB are prefaulted already"),
        on_glibc("the C library is not glibc, which can keep its heap"),
        need(
            lambda context: "malloc" not in preloaded(context),
            "another allocator is preloaded, with a heap for each thread",
        ),
        _growth_fits,
    ),
    sets=lambda context: {"prefault_mb": _wanted_mib(context.record)},
    verify=_verify,
)
