"""``numerics.flush_denormal``: numbers too small for a full mantissa are taken for zero, which costs nothing."""

from __future__ import annotations

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default


def _met(record: RunRecord) -> tuple[int, int]:
    """How many calls of the model, ``prepare`` and ``finish`` met denormals by the flag, and of how many."""
    units = [record.batches[f"{name}_denormals"] for name in ("collate", "compute")]
    units += [record.requests[f"{name}_denormals"] for name in ("prepare", "finish")]
    return sum(int(np.count_nonzero(unit)) for unit in units), sum(map(len, units))


def _none_met(context: Context) -> str:
    """Where nothing counts them (another processor than x86-64), none is met."""
    return "" if _met(context.record)[0] else "no denormal number was met in the replay"


def _verify(applied: Applied) -> Verified:
    (now, calls), (before, others) = applied.both(_met)
    said = (
        f"by the processor's flag {now} of {calls} calls met denormal numbers, {before} of {others} without the fix"
    )
    return Verified(now == 0 < before, said)


FIX = Fix(
    id="numerics.flush_denormal",
    title="take denormal numbers for zero",
    treats=("numerics.denormals", "host.slowdown"),
    removes=("numerics.denormals",),
    relief=0.9,
    risk="numbers below 1.2e-38 (float32) become zero",
    changes_outputs=True,
    needs=(at_default("flush_denormal", "denormal numbers are taken for zero already"), _none_met),
    sets={"flush_denormal": True},
    verify=_verify,
)
