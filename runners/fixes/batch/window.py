"""``batch.window``: do not wait for company while the worker is free."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

#: What is left of the wait when the window is gone; two replays without any change differ by less.
_LEFT = 0.5


def _obstacle(context: Context) -> str:
    if context.settings.batching != "fixed":
        return f"batching is {context.settings.batching}, which has no fixed window"
    if context.settings.max_batch_size == 1:
        return "requests run one by one (max_batch_size = 1), and none waits for company"
    return "" if context.settings.batch_window_ms > 0 else "there is no batch window"


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"batch_window_ms": 0.0}


def _verify(applied: Applied) -> Verified:
    waits = []
    for record in (applied.record, applied.without):
        wait = (record.batches["close_ns"] - record.batches["open_ns"]) / 1e6
        waits.append(float(np.mean(wait)) if len(wait) else 0.0)
    return Verified(
        waits[0] < _LEFT * waits[1], f"a batch stayed open for {waits[0]:.3g} ms on average, {waits[1]:.3g} without"
    )


FIX = Fix(
    id="batch.window",
    title="close a batch as soon as a worker is free",
    treats=("batching.window",),
    relief=1.0,
    gentle=True,
    risk="smaller batches under light load",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
