"""``host.slowdown``: on-CPU for longer than the same work takes, with no wait for a core."""

from __future__ import annotations

import numpy as np

from latfix.figures import from_ns, milliseconds
from latfix.profilers.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence import Evidence

#: A thread that waited for a core longer than this share of its time, and longer than it took too much, found its
#: caches cold: that is contention's doing.
_DELAYED = 0.05


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {}
    for name in ("prepare", "compute", "finish"):
        if name == "compute" and evidence.setup.on_device:
            continue  # what a device was busy with, and whether it waited, no thread's counter says
        unit, excess = evidence.units[name], left.cpu_excess(name)
        units[name] = Parts(cpu=np.where(unit.runq <= np.maximum(_DELAYED * unit.wall, excess), excess, 0))
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    model = evidence.expected.models["compute"]
    return (
        f"{figures.requests} requests were on-CPU for longer than the same work takes elsewhere in the run, "
        f"by at most {milliseconds(figures.largest_ms)}, without waiting for a core (model of compute: "
        f"R² {model.r2:.2f}, residual {from_ns(model.residual_mad)}); {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="host.slowdown",
    evidence_class="modelled",
    fixes=("host.threads",),
    happened="the core working slower than usual",
    behind="one whose core worked slower than usual",
    claim=_claim,
    sentence=_sentence,
)
