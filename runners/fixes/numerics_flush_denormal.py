"""``numerics.flush_denormal``: denormal numbers, which slow down arithmetic, are treated as zero."""

from __future__ import annotations

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need


def _met(record: RunRecord) -> tuple[int, int]:
    """Number of calls (``collate``, model, ``prepare``, ``finish``) that met denormals by the flag, and of all."""
    units = [record.batches[f"{name}_denormals"] for name in ("collate", "compute")]
    units += [record.requests[f"{name}_denormals"] for name in ("prepare", "finish")]
    return sum(int(np.count_nonzero(unit)) for unit in units), sum(map(len, units))


def _verify(applied: Applied) -> Verified:
    (now, calls), (before, others) = applied.both(_met)
    met = f"by the processor's flag {now} of {calls} calls met denormal numbers, {before} of {others} without the fix"
    return Verified(now == 0 < before, met)


FIX = Fix(
    id="numerics.flush_denormal",
    title="treat denormal numbers as zero",
    treats=("numerics.denormals", "host.slowdown"),
    removes=("numerics.denormals",),
    relief=0.9,
    risk="numbers below 1.2e-38 (float32) become zero",
    changes_outputs=True,
    needs=(
        at_default("flush_denormal", "denormal numbers are treated as zero already"),
        # Processors other than x86-64 do not count them, so none is met there.
        need(lambda context: _met(context.record)[0], "no denormal number was met in the replay"),
    ),
    sets={"flush_denormal": True},
    verify=_verify,
)
