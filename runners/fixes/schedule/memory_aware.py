"""``schedule.memory_aware``: the predicted memory of each batch is limited, most work per byte goes first."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats
from latfix.results.worker_summary import series_range
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, batches_shared, need
from latfix.runners.fixes.shared.queue_evidence import choose_ageing_ms

#: The limit is this quantile of the batches' size: it acts on the largest tenth.
_LARGE = 0.9
#: Minimum ratio of that quantile to the median; below it, batches are alike.
_VARIES = 1.5
#: Minimum growth of the process by batches; below it, memory does not matter.
_LITTLE_MB = 32.0


def _standing_bytes(record: RunRecord) -> Floats:
    """By batch, the peak growth of the process since its start.

    The engine's estimate also uses it: freed memory stays in the process.
    """
    batches = record.batches
    grown = batches["collate_resident_bytes"] + batches["compute_resident_bytes"]
    if not len(grown):
        return np.zeros(0)
    return np.asarray(np.maximum(np.maximum.accumulate(np.cumsum(grown)), 0), dtype=np.float64)


def _batches_grow(context: Context) -> str:
    batches = context.record.batches
    if not len(batches["size"]):
        return "no batch ran"
    median, large = np.quantile(batches["padded_elements"], [0.5, _LARGE])
    if large < _VARIES * max(median, 1.0):
        return f"batches are alike: {large:.0f} elements at p90, {median:.0f} in the median"
    grown = float(_standing_bytes(context.record).max(initial=0)) / 2**20
    if grown < _LITTLE_MB:
        return f"batches made the process grow by no more than {grown:.3g} MB"
    return ""


def _sets(context: Context) -> Change:
    batches = context.record.batches
    padded = batches["padded_elements"].astype(np.float64)
    each = float(_standing_bytes(context.record).sum()) / max(float(padded.sum()), 1.0)
    limit = max(round(each * float(np.quantile(padded, _LARGE)) / 2**20), 1)
    ageing = context.settings.ageing_ms or choose_ageing_ms(context.record, context.settings, "work_per_byte")
    return {"schedule": "work_per_byte", "memory_limit_mb": limit, "ageing_ms": ageing}


def _verify(applied: Applied) -> Verified:
    each = series_range(applied.record, "runner.bytes_per_element")
    if each is None or each[1] <= 0:
        return Verified(False, "the memory of batches could not be measured, so none was limited")
    limit = applied.settings.memory_limit_mb
    now, before = applied.both(lambda record: _over(record, each[2], limit))
    return Verified(
        now[0] < before[0],
        f"at {each[2]:.3g} bytes an element, {100 * now[0]:.1f} % of the shared batches were predicted above "
        f"{limit:g} MB and the largest at {now[1]:.3g} MB; {100 * before[0]:.1f} % and {before[1]:.3g} MB without",
    )


def _over(record: RunRecord, each: float, limit_mb: float) -> tuple[float, float]:
    """Share of shared batches above the limit for a given size of an element, and the largest in MB."""
    batches = record.batches
    predicted = batches["padded_elements"][batches["size"] > 1] * each / 2**20
    return (float(np.mean(predicted > limit_mb)), float(predicted.max())) if len(predicted) else (0.0, 0.0)


FIX = Fix(
    id="schedule.memory_aware",
    title="limit batches by predicted memory",
    treats=("memory.page_faults", "memory.allocator", "memory.fragmentation", "batching.size"),
    relief=0.2,
    risk="smaller batches of large inputs; requests that do little work for their memory wait longer",
    reorders=True,
    needs=(
        at_default("memory_limit_mb", "batches are kept below {} MB already"),
        need(
            lambda context: context.settings.batching != "continuous",
            "batching is continuous: requests join between steps, so there is no batch to limit",
        ),
        at_default("schedule", "the queue is ordered by {} already"),
        batches_shared("requests run one by one (max_batch_size = 1), so no batch can be made smaller"),
        _batches_grow,
    ),
    sets=_sets,
    verify=_verify,
)
