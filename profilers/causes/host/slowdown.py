"""``host.slowdown``: on-CPU for longer than the same work takes: frequency, caches, memory bandwidth."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns, milliseconds, share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_propagated
from latfix.profilers.evidence.units import Evidence
from latfix.run_record.schema import PACE

#: A batch is slow if it was on-CPU for longer than expected by this share.
_SLOW = 0.25
#: Readings of the pace during slow batches, and during others, that a mean takes.
_FEWEST = 5
#: The machine is slower then, or as fast, if the pace differs by more, or less, than this share.
_DIFFERS = 0.05


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
        f"residual {from_ns(model.residual_mad)}); {own_and_propagated(figures)}.{_pace(evidence)}"
    )


def _pace(evidence: Evidence) -> str:
    """Whether a fixed computation next to slow batches was slower, too; empty if that cannot be told."""
    times, took = evidence.series(PACE)
    batches = evidence.units["compute"]
    if not len(batches.start):
        return ""
    order = np.argsort(batches.start)
    place = order[np.maximum(np.searchsorted(batches.start[order], times, side="right") - 1, 0)]
    during = (times >= batches.start[place]) & (times < batches.end[place])
    slow = (batches.cpu > (1 + _SLOW) * batches.expected_cpu)[place]
    then, else_ = took[during & slow], took[during & ~slow]
    if min(len(then), len(else_)) < _FEWEST:
        return ""
    longer = float(then.mean() / else_.mean()) - 1.0
    error = float(np.hypot(then.std(ddof=1) / len(then) ** 0.5, else_.std(ddof=1) / len(else_) ** 0.5) / else_.mean())
    if longer - 2 * error > _DIFFERS:
        return (
            f" A fixed computation next to these batches took {share(longer)} longer than next to others: the "
            "processor was slower, whatever it computed (clocks, another tenant, stolen time)."
        )
    if longer + 2 * error < _DIFFERS:
        return (
            " A fixed computation next to these batches took no longer than next to others: not the processor was "
            "slower but this work (its inputs, its memory, threads that spin)."
        )
    return ""


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
