"""``gc.freeze``: objects that are alive after loading are never traversed again; collections run when idle."""

from __future__ import annotations

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default


def _pauses(record: RunRecord) -> tuple[int, float]:
    """Number of collections, and milliseconds of the longest."""
    pauses = record.events["duration_ns"][record.events["kind"] == "gc"]
    return len(pauses), float(np.max(pauses)) / 1e6 if len(pauses) else 0.0


def _long_pauses(context: Context) -> str:
    count, longest = _pauses(context.record)
    return "" if longest >= 1.0 else f"the longest of {count} collections took {longest:.2g} ms"


def _verify(applied: Applied) -> Verified:
    if applied.evidence.get("gc_enabled", True):
        return Verified(False, "automatic collection was still on")
    frozen = int(applied.evidence.get("gc_frozen", 0))
    (_, longest), (_, before) = applied.both(_pauses)
    text = f"{frozen} objects frozen, automatic collection off; longest collection {longest:.2g} ms, was {before:.2g}"
    if done := applied.record.meta.collections:
        waited = done["forced"] + done["full_forced"]
        text += (
            f"; {done['young'] + done['full']} collections in idle moments, {waited} that could not wait any "
            f"longer ({done['full_forced']} of them full), {done['collected']} objects freed"
        )
    return Verified(frozen > 0, text)


FIX = Fix(
    id="gc.freeze",
    title="freeze the heap after load, collect between batches",
    treats=("python.gc",),
    removes=("python.gc",),
    relief=0.9,
    gentle=True,
    risk="cyclic garbage that survives is freed later",
    needs=(at_default("gc", "the collector is frozen already"), _long_pauses),
    sets={"gc": "freeze"},
    verify=_verify,
)
