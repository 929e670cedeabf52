"""``host.workers``: several workers that share the cores, instead of one on all of them."""

from __future__ import annotations

import numpy as np

from latfix.formatting import counted, mebibytes
from latfix.results.worker_summary import workers_of
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import on_its_device

#: Maximum share of the available memory for more instances of the model.
_MOST = 0.5


def _room_for_more(context: Context) -> str:
    workers, run = context.settings.workers, context.record.meta
    if workers >= context.cores:
        return f"{counted(workers, 'worker')} on {counted(context.cores, 'core')} already"
    model, available = run.memory.model_bytes, run.memory.available_bytes
    needed = (context.cores - workers) * model // (1 if run.settings.shared_model else run.settings.workers)
    if available and needed > _MOST * available:
        return f"the model's other instances would take {mebibytes(needed)} of {mebibytes(available)}"
    return ""


def _share(workers: int, cores: int) -> Change:
    return {"workers": workers, "intra_op_threads": max(cores // workers, 1), "shared_model": False}


def _options(context: Context) -> list[Change]:
    """As many workers as cores, half, a quarter, …, if they are more than now; at most three options."""
    counts = [context.cores >> k for k in range(context.cores.bit_length())]
    return [_share(count, context.cores) for count in counts if count > context.settings.workers][:3]


def _verify(applied: Applied) -> Verified:
    counts, without = applied.both(lambda record: np.bincount(workers_of(record)))
    busy, before = np.count_nonzero(counts), np.count_nonzero(without)
    shares = ", ".join(str(count) for count in counts.tolist())
    return Verified(bool(busy > before), f"{busy} workers ran {shares} batches; {before} without")


FIX = Fix(
    id="host.workers",
    title="run more workers, which share the cores",
    treats=("traffic.burst", "traffic.overload", "input.size", "batching.size", "host.contention"),
    relief=0.25,
    risk="memory for one more model instance each; a single large request takes longer on an idle machine",
    stateless=True,
    needs=(on_its_device("host.workers"), _room_for_more),
    options=_options,
    verify=_verify,
)
