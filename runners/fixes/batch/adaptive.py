"""``batch.adaptive``: a controller adapts the batches' size and window to measured latency."""

from __future__ import annotations

import numpy as np

from latfix.results.worker_summary import series_range
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, batches_shared, wait_for_batch
from latfix.runners.fixes.shared.run_evidence import mean, open_ms
from latfix.stages import Status

#: Target without an objective, as a multiple of the latency of a request that does not wait.
_QUIET_TIMES = 2.0
#: Usual range of the window; the service's own window extends it.
_LEAST_MS, _MOST_MS = 10.0, 100.0


def _target_ms(context: Context) -> float:
    stated = context.record.meta.objective.slo_ms
    if stated is not None:
        return stated
    rows = context.record.requests
    served = (rows["status"] == Status.OK) & (rows["batch_id"] >= 0)
    own = (rows["latency_ns"] - rows["queue_ns"] - rows["batch_ns"] - rows["prepare_wait_ns"])[served]
    return max(round(_QUIET_TIMES * float(np.median(own)) / 1e6, 3), 0.001)


def _sets(context: Context) -> Change:
    window = context.settings.batch_window_ms
    return {
        "batching": "adaptive",
        "target_ms": _target_ms(context),
        "window_least_ms": min(_LEAST_MS, window),
        "window_most_ms": max(_MOST_MS, window),
    }


def _verify(applied: Applied) -> Verified:
    size, window = (series_range(applied.record, f"runner.{name}") for name in ("batch_limit", "window_ms"))
    if size is None or window is None:
        return Verified(False, "no controller reported its limits")
    fixed = applied.without.meta.settings
    moved = size[0] < size[1] or window[0] < window[1]
    other = size[1] != fixed.max_batch_size or window[1] != fixed.batch_window_ms
    sizes, opened = applied.both(lambda record: mean(record.batches["size"])), applied.both(open_ms)
    figures = (
        f"the limit went from {size[0]:.0f} to {size[1]:.0f} requests and the window from {window[0]:.3g} to "
        f"{window[1]:.3g} ms; batches held {sizes[0]:.3g} requests and stayed open for "
        f"{opened[0]:.3g} ms on average, {sizes[1]:.3g} and {opened[1]:.3g} ms without"
    )
    return Verified(moved or other, figures if moved or other else f"the controller changed nothing: {figures}")


FIX = Fix(
    id="batch.adaptive",
    title="adapt the batches' size and window to measured latency",
    treats=("batching.window", "batching.size", "traffic.burst", "traffic.overload"),
    relief=0.3,
    risk="it follows a change of load only after some batches",
    changes_outputs=True,
    mates_only=True,
    needs=(
        at_default("batching", "batching is {} already"),
        batches_shared("requests run one by one (max_batch_size = 1), so there is nothing to adapt"),
        wait_for_batch,
    ),
    sets=_sets,
    verify=_verify,
)
