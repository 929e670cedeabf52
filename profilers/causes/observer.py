"""``observer``: latfix itself, by late dispatch and by probes that stalled what they measure."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind, typical_and_p99
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {"dispatch": Parts(blocked=left.blocked("dispatch"))}
    for name in ("collate", "compute"):
        unit = evidence.units[name]
        read = evidence.spikes.covered(unit.start, unit.end)
        blocked = np.minimum(read, left.blocked(name))
        # On a device a launch that waits for the driver's lock looks like work.
        waited = name == "compute" and evidence.setup.on_device
        launches = np.minimum(read - blocked, left.cpu_excess(name)) if waited else None
        units[name] = Parts(blocked=blocked, cpu=launches)
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    lag = evidence.rows["dispatch_ns"][evidence.ok]
    return (
        f"requests were handed over {typical_and_p99(lag)} late, {len(evidence.spikes)} probe readings took over "
        f"1 ms; {own_and_behind(figures)}."
    )


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    lag = evidence.rows["dispatch_ns"][evidence.ok]
    return f"requests were sent {typical_and_p99(lag)} late; {own_and_behind(figures)}."


CAUSE = Cause(
    id="observer",
    fixes=(),
    claim=_claim,
    sentence=_sentence,
    outside=_claim,
    outside_sentence=_outside_sentence,
)
