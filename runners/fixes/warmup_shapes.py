"""``warmup.shapes``: run batches of the shapes in the traffic before the first request."""

from __future__ import annotations

import numpy as np

from latfix.formatting import percent
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.run_evidence import mean

#: Range of the number of shapes.
_FEWEST = 8
_MOST = 32


def _sets(context: Context) -> Change:
    record = context.record
    brought = len(np.unique(record.requests["input_elements"][record.measured]))
    return {"warmup_shapes": min(max(brought, _FEWEST), _MOST)}


def _fresh(record: RunRecord) -> float:
    """Share of measured batches with a shape that had not run before in the process."""
    return mean(record.batches["first_shape"][record.batches["warmup"] == 0] > 0)


def _verify(applied: Applied) -> Verified:
    warmup = applied.evidence
    batches, seconds = warmup.get("warmup_batches", 0), warmup.get("warmup_s", 0.0)
    now, before = applied.both(_fresh)
    return Verified(
        batches > 0,
        f"{batches} batches over {warmup.get('warmup_shapes', 0)} input sizes ran in {seconds:.3g} s before the first"
        f" request; {percent(now)} of the batches had a shape not run before, {percent(before)} without",
    )


FIX = Fix(
    id="warmup.shapes",
    title="warm up on the traffic's own shapes before the first request",
    treats=("cold.start", "cold.compile"),
    removes=("cold.start",),
    relief=0.9,
    gentle=True,
    risk="the service starts later",
    cold=True,
    stateless=True,
    needs=(at_default("warmup_shapes", "the service warms up on {} shapes already"),),
    sets=_sets,
    verify=_verify,
)
