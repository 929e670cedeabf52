"""``host.workers``: as many workers as cores, each on one thread, instead of one worker on all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.queue_evidence import workers_of
from latfix.runners.host.privileges import mib

#: The share of the available memory that more instances of the model may take.
_MOST = 0.5


def _obstacle(context: Context) -> str:
    if context.record.meta.get("device", "cpu") != "cpu":
        return "the model runs on a GPU"
    if context.settings.workers >= context.cores:
        return f"{context.settings.workers} workers run on {context.cores} core(s) already"
    memory = context.record.meta.get("memory", {})
    model, available = int(memory.get("model_bytes", 0)), int(memory.get("available_bytes", 0))
    needed = (context.cores - context.settings.workers) * model // max(_instances(context), 1)
    if available and needed > _MOST * available:
        return f"the model's other instances would take {mib(needed)} of {mib(available)}"
    return ""


def _instances(context: Context) -> int:
    """Instances that the record's bytes are of."""
    settings = context.record.meta.get("settings", {})
    return 1 if settings.get("shared_model") else int(settings.get("workers", 1))


def _change(context: Context) -> dict[str, Any]:
    return {"workers": context.cores, "intra_op_threads": 1, "shared_model": False}


def _batches_by_worker(record: RunRecord) -> npt.NDArray[np.int64]:
    return np.bincount(workers_of(record))


def _verify(applied: Applied) -> Verified:
    counts = _batches_by_worker(applied.record)
    busy, before = np.count_nonzero(counts), np.count_nonzero(_batches_by_worker(applied.without))
    shares = ", ".join(str(count) for count in counts.tolist())
    return Verified(bool(busy > before), f"{busy} workers ran {shares} batches; {before} without")


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
