"""``transfer.copy``: a copy between host and device took longer than its bytes need, e.g. from pageable memory."""

from __future__ import annotations

import numpy as np

from latfix.formatting import share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, median_and_p99
from latfix.profilers.evidence.device_idle import UNIT_OF, copy_ns, needed_ns, slower_ns
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    if not evidence.setup.on_device:
        return Claim()
    units = {
        unit: Parts(cpu=np.minimum(slower_ns(evidence, direction), left.cpu[unit]))
        for direction, unit in UNIT_OF.items()
    }
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    batches = evidence.batches
    total = int((batches["copy_in_bytes"] + batches["copy_out_bytes"]).sum())
    pageable = int(batches["pageable_bytes"].sum())
    time = copy_ns(evidence, "in") + copy_ns(evidence, "out")
    needed = needed_ns(evidence, "in") + needed_ns(evidence, "out")
    memory = f"{share(pageable / max(total, 1))} of the bytes are in memory that is not pinned"
    return (
        f"a batch's copies took {median_and_p99(time)}, their bytes need {median_and_p99(needed)}; {memory}; "
        f"{figures.parts}."
    )


CAUSE = Cause(id="transfer.copy", fixes=("transfer.pinned", "transfer.overlap"), claim=_claim, sentence=_sentence)
