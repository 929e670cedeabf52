"""``warmup.shapes``: run the shapes and sizes of batches that traffic brings before the first request."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

#: Shapes that are run at least, where traffic has as many, and at most.
_FEWEST = 8
_MOST = 32


def _obstacle(context: Context) -> str:
    return "already warmed up on shapes" if context.settings.warmup_shapes else ""


def _shapes(record: RunRecord) -> int:
    """Different sizes of inputs that the traffic brought."""
    return len(np.unique(record.requests["input_elements"][record.measured]))


def _change(context: Context) -> dict[str, Any]:
    return {"warmup_shapes": min(max(_shapes(context.record), _FEWEST), _MOST)}


def _verify(applied: Applied) -> Verified:
    warmup = applied.evidence
    batches, seconds = warmup.get("warmup_batches", 0), warmup.get("warmup_s", 0.0)
    said = (
        f"{batches} batches over {warmup.get('warmup_shapes', 0)} input sizes ran in {seconds:.3g} s before the first"
        " request"
    )
    fresh = [_fresh(record) for record in (applied.record, applied.without)]
    return Verified(
        batches > 0, f"{said}; {fresh[0]:.0%} of the batches had a shape not run before, {fresh[1]:.0%} without"
    )


def _fresh(record: RunRecord) -> float:
    """The share of measured batches of a shape that had not run before in the process."""
    first = record.batches["first_shape"][record.batches["warmup"] == 0] if len(record.batches) else np.zeros(0)
    return float(np.mean(first > 0)) if len(first) else 0.0


FIX = Fix(
    id="warmup.shapes",
    title="warm up on the traffic's own shapes before the first request",
    treats=("cold.start", "cold.compile"),
    removes=("cold.start",),
    relief=0.9,
    gentle=True,
    risk="a later start",
    cold=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
