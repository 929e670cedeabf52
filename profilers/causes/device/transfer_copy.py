"""``transfer.copy``: a copy between host and device took longer than its bytes need, such as from pageable memory."""

from __future__ import annotations

import numpy as np

from latfix.formatting import share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind, typical_and_p99
from latfix.profilers.evidence.device_idle import UNIT_OF, Direction, asking_ns, copy_ns, needed_ns
from latfix.profilers.evidence.units import Evidence

_DIRECTIONS: tuple[Direction, ...] = ("in", "out")


def _claim(evidence: Evidence, left: Left) -> Claim:
    if not evidence.setup.on_device:
        return Claim()
    units = {}
    for direction in _DIRECTIONS:
        slower = copy_ns(evidence, direction) - needed_ns(evidence, direction) - asking_ns(evidence, direction)
        units[UNIT_OF[direction]] = Parts(cpu=np.minimum(np.maximum(slower, 0), left.cpu(UNIT_OF[direction])))
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    batches = evidence.batches
    total = int((batches["copy_in_bytes"] + batches["copy_out_bytes"]).sum())
    pageable = int(batches["pageable_bytes"].sum())
    time = copy_ns(evidence, "in") + copy_ns(evidence, "out")
    needed = needed_ns(evidence, "in") + needed_ns(evidence, "out")
    memory = f"{share(pageable / max(total, 1))} of the bytes in memory that is not pinned"
    return (
        f"copies of a batch took {typical_and_p99(time)}, where their bytes need {typical_and_p99(needed)}; "
        f"{memory}; {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="transfer.copy",
    fixes=("transfer.pinned", "transfer.overlap"),
    claim=_claim,
    sentence=_sentence,
)
