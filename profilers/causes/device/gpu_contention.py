"""``gpu.contention``: another process computed on the device at the same time."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, parts_and_largest
from latfix.profilers.evidence.nvml_samples import at_batches
from latfix.profilers.evidence.units import Evidence

#: Percent. A process that only holds memory shows a little utilization.
_BUSY = 5.0


def _claim(evidence: Evidence, left: Left) -> Claim:
    taken = _taken(evidence)
    if taken is None:
        return Claim()
    unit = evidence.units["compute"]
    claimed = np.rint(unit.wall * taken).astype(np.int64)
    return Claim(units={"compute": Parts(cpu=np.minimum(claimed, left.cpu_excess("compute")))})


def _taken(evidence: Evidence) -> Floats | None:
    """The share of the device that other processes used at each batch; ``None`` if NVML does not separate them."""
    own, others = (at_batches(evidence, f"nvml.{who}_sm_util") for who in ("own", "others"))
    if own is None or others is None:
        return None
    busy = np.where(others >= _BUSY, others, 0.0)
    return np.nan_to_num(busy / np.maximum(own + busy, 1.0))


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    taken = _taken(evidence)
    assert taken is not None, "the cause claims nothing without figures by process"
    hit = taken > 0
    most = share(float(taken.max(initial=0.0)))
    return (
        f"other processes computed on the device during {np.count_nonzero(hit)} of {len(hit)} batches, with up to "
        f"{most} of it; {parts_and_largest(figures)}."
    )


CAUSE = Cause(id="gpu.contention", fixes=("host.routing",), claim=_claim, sentence=_sentence)
