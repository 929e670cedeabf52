"""``host.slowdown``: on-CPU for longer than the same work takes: frequency, caches, memory bandwidth."""

from __future__ import annotations

from latfix.formatting import from_ns, milliseconds
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_propagated
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {}
    for name in ("prepare", "compute", "finish"):
        if name == "compute" and evidence.setup.on_device:
            continue  # a thread's counters do not show what a device did
        units[name] = Parts(cpu=left.cpu_excess(name))
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    model = evidence.expected.models["compute"]
    return (
        f"{figures.requests} requests were on-CPU for longer than the same work takes elsewhere in the run, by up to "
        f"{milliseconds(figures.largest_ms)}, without waiting for a core (model of compute: R² {model.r2:.2f}, "
        f"residual {from_ns(model.residual_mad)}); {own_and_propagated(figures)}."
    )


CAUSE = Cause(
    id="host.slowdown",
    fixes=(
        "host.threads",
        "locality.cores",
        "cache.embeddings",
        "warmup.resident",
        "host.routing",
        "numerics.flush_denormal",
    ),
    claim=_claim,
    sentence=_sentence,
)
