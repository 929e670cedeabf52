"""``host.slowdown``: on-CPU for longer than the same work takes, with no wait for a core."""

from __future__ import annotations

import numpy as np

from latfix.figures import from_ns, milliseconds
from latfix.profilers.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence import Evidence

#: What counts: an excess of so many deviations of the model, of this share of the work, with few delays, or less
#: of them than excess: a thread that lost its core also finds its caches cold, which is contention's doing.
_DEVIATIONS = 5.0
_SHARE = 0.25
_DELAYED = 0.05


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {}
    for name in ("prepare", "compute", "finish"):
        unit, model = evidence.units[name], evidence.expected.models[name]
        if name == "compute" and evidence.setup.on_device:
            continue  # what a device was busy with, and whether it waited, no thread's counter says
        if not model.accepted and model.residual_mad > 0.1 * model.typical:
            continue  # the features do not tell work from slowness
        excess = left.cpu_excess(name)
        least = np.maximum(_DEVIATIONS * 1.4826 * model.residual_mad, _SHARE * unit.expected_cpu)
        slow = (excess > least) & (unit.runq <= np.maximum(_DELAYED * unit.wall, excess))
        units[name] = Parts(cpu=np.where(slow, excess, 0))
    return Claim(units=units)


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
