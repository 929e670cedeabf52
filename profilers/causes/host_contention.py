"""``host.contention``: runnable, but another thread or process had the core."""

from __future__ import annotations

import numpy as np

from latfix.profilers.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind, typical_and_p99
from latfix.profilers.compute_model import Bools
from latfix.profilers.evidence import Evidence

#: A thread that starts late was waiting for a core, where its work then waited for one this much of its time.
_CONTENDED = 0.05


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {name: Parts(runq=left.runq(name)) for name in ("prepare", "finish", "collate", "compute")}
    collate, compute = evidence.units["collate"], evidence.units["compute"]
    wall = collate.wall + compute.wall
    contended = left.runq("collate") + left.runq("compute") > _CONTENDED * np.maximum(wall, 1)
    units["lag"] = Parts(blocked=np.where(contended, left.blocked("lag"), 0))
    return Claim(units=units)


def contended_requests(evidence: Evidence) -> Bools:
    """``(n,)`` requests whose prepare met contended cores: there a late wake-up is a wait for a core too.

    A thread's counters are read once it runs, so that the delay of its wake-up is in none of them.
    """
    prepare = evidence.units["prepare"]
    return np.asarray(prepare.runq > _CONTENDED * np.maximum(prepare.wall, 1))


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    units, ok = evidence.units, evidence.ok
    delay = units["prepare"].runq + units["finish"].runq
    delay = (delay + evidence.of_batch(units["collate"].runq + units["compute"].runq))[ok]
    return f"threads were runnable without a core for {typical_and_p99(delay)}; {own_and_behind(figures)}."


CAUSE = Cause(
    id="host.contention",
    evidence_class="measured",
    fixes=("host.threads",),
    happened="other threads or processes taking the core",
    behind="one whose core was taken",
    claim=_claim,
    sentence=_sentence,
)
