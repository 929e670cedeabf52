"""``gc.freeze``: what is alive after load is never walked again, and young objects are collected when idle."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified


def _longest_pause_ms(record: RunRecord) -> tuple[int, float]:
    pauses = record.events["duration_ns"][record.events["kind"] == "gc"]
    return len(pauses), float(np.max(pauses)) / 1e6 if len(pauses) else 0.0


def _obstacle(context: Context) -> str:
    if context.settings.gc == "freeze":
        return "the collector is frozen already"
    count, longest = _longest_pause_ms(context.record)
    return "" if longest >= 1.0 else f"the longest of {count} collections took {longest:.2g} ms"


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"gc": "freeze"}


def _verify(applied: Applied) -> Verified:
    frozen = int(applied.evidence.get("gc_frozen", 0))
    off = not applied.evidence.get("gc_enabled", True)
    _, longest = _longest_pause_ms(applied.record)
    _, before = _longest_pause_ms(applied.without)
    said = f"{frozen} objects frozen, automatic collection off; longest collection {longest:.2g} ms, was {before:.2g}"
    done = applied.record.meta.get("collections", {})
    if done:
        waited = int(done["forced"]) + int(done["full_forced"])
        said += (
            f"; {int(done['young']) + int(done['full'])} collections in idle moments, {waited} that could wait no "
            f"longer ({done['full_forced']} of everything), {done['collected']} objects freed"
        )
    return Verified(frozen > 0 and off, said if off else "the automatic collector was still on")


FIX = Fix(
    id="gc.freeze",
    title="freeze the heap after load, collect between batches",
    treats=("python.gc",),
    removes=("python.gc",),
    relief=0.9,
    gentle=True,
    risk="cyclic garbage that survives is freed later",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
