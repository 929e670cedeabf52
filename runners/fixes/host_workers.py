"""``host.workers``: as many workers as cores, each on one thread, instead of one worker on all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified


def _obstacle(context: Context) -> str:
    if context.record.meta.get("device", "cpu") != "cpu":
        return "the model runs on a GPU"
    if context.settings.workers >= context.cores:
        return f"{context.settings.workers} workers run on {context.cores} core(s) already"
    return ""


def _change(context: Context) -> dict[str, Any]:
    return {"workers": context.cores, "intra_op_threads": 1, "shared_model": False}


def _verify(applied: Applied) -> Verified:
    batches = applied.record.batches
    counts = np.bincount(batches["worker"].astype(int)) if len(batches["worker"]) else np.zeros(0, dtype=int)
    busy = int(np.count_nonzero(counts))
    shares = ", ".join(str(int(count)) for count in counts)
    return Verified(busy > 1, f"{busy} workers ran {shares} batches")


FIX = Fix(
    id="host.workers",
    title="one single-threaded worker a core",
    treats=("traffic.burst", "traffic.overload", "input.size", "batching.size", "host.contention"),
    relief=0.25,
    risk="memory for one more model instance each; a single large request takes longer on an idle machine",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
