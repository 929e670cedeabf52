"""``observer``: latfix itself: late dispatch, and probes that stalled what they measure."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, median_and_p99
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {"dispatch": Parts(blocked=left.blocked["dispatch"])}
    for name in ("collate", "compute"):
        read = evidence.spikes.covered(*evidence.units[name].span)
        blocked = np.minimum(read, left.blocked[name])
        # On a device, a launch that waits for the driver's lock looks like work.
        waited = name == "compute" and evidence.setup.on_device
        units[name] = Parts(blocked=blocked, excess=read - blocked if waited else None)
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    lag = evidence.rows["dispatch_ns"][evidence.ok]
    return (
        f"latfix sent requests {median_and_p99(lag)} late, and {len(evidence.spikes)} of its probe readings took "
        f"over 1 ms; {figures.parts}."
    )


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    lag = evidence.rows["dispatch_ns"][evidence.ok]
    return f"latfix sent requests {median_and_p99(lag)} late; {figures.parts}."


CAUSE = Cause(id="observer", claim=_claim, sentence=_sentence, outside=_claim, outside_sentence=_outside_sentence)
