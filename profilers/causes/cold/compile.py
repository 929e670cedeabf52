"""``cold.compile``: compilation, recompilation or graph capture in a request's path."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    pauses = evidence.pauses["compile"]
    units = {}
    for name in ("lag", "collate", "compute", "finish"):
        unit = evidence.units[name]
        own = pauses.inside(unit.start, unit.end, unit.thread, worker=True)
        # Where the thread is not known, a compilation is taken for this worker's: it is on-CPU beyond what the
        # inputs need, or it held the lock that this worker waited for.
        seen = pauses.unplaced.covered(unit.start, unit.end)
        units[name] = Parts(
            cpu=np.maximum(own, np.minimum(seen, left.cpu_excess(name))),
            blocked=np.maximum(np.minimum(own, left.blocked(name)), np.minimum(seen, left.blocked(name))),
        )
    return Claim(units=units)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    pauses = evidence.pauses["compile"]
    return (
        f"{pauses.count} compilations ran between requests' stamps, the longest {from_ns(pauses.longest_ns)}; "
        f"{figures.requests} requests were in a batch that paid for one."
    )


CAUSE = Cause(
    id="cold.compile",
    fixes=("warmup.shapes",),
    claim=_claim,
    sentence=_sentence,
)
