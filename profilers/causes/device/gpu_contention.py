"""``gpu.contention``: another process computed on the device at the same time."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import milliseconds, share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence.nvml_samples import at_batches
from latfix.profilers.evidence.units import Evidence

#: Utilization is given in whole per cent, and a process that only holds memory is shown with little of it.
_BUSY = 5.0


def _claim(evidence: Evidence, left: Left) -> Claim:
    taken = _taken(evidence)
    if taken is None:
        return Claim()
    unit = evidence.units["compute"]
    owed = np.rint(unit.wall * taken).astype(np.int64)
    return Claim(units={"compute": Parts(cpu=np.minimum(owed, left.cpu_excess("compute")))})


def _taken(evidence: Evidence) -> Floats | None:
    """The share of the device that others had at each batch; ``None`` where NVML does not tell processes apart."""
    own, others = (at_batches(evidence, f"nvml.{who}_sm_util") for who in ("own", "others"))
    if own is None or others is None:
        return None
    busy = np.where(others >= _BUSY, others, 0.0)
    return np.nan_to_num(busy / np.maximum(own + busy, 1.0))


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    taken = _taken(evidence)
    assert taken is not None, "it claims nothing where processes are not told apart"
    hit = taken > 0
    most = share(float(taken.max(initial=0.0)))
    return (
        f"other processes computed on the device during {np.count_nonzero(hit)} of {len(hit)} batches, with up to "
        f"{most} of it; at most {milliseconds(figures.largest_ms)} of one request, and {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="gpu.contention",
    fixes=("host.routing",),
    claim=_claim,
    sentence=_sentence,
)
