"""``host.contention``: runnable without a core, because another thread or process had it."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, in_units, median_and_p99, reads
from latfix.profilers.causes.host.core_takers import OPERATORS, WORKERS, core_takers, describe_takers
from latfix.profilers.causes.python.gil_waits import descheduled_ns
from latfix.profilers.evidence.outside.service_process import PREEMPTIONS, RUN_QUEUE
from latfix.profilers.evidence.units import OUTSIDE_UNITS, Evidence

#: In records without wake-up delays, a late start is a wait for a core if the work itself then waited for a core for
#: this share of its time.
_CONTENDED = 0.05


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {
        # Blocked on the interpreter lock while its holder waited for a core: an indirect wait for a core.
        name: Parts(runq=left.runq[name], blocked=descheduled_ns(evidence, left, name))
        for name in ("prepare", "finish", "collate", "compute")
    }
    if evidence.setup.pooled:
        units["compute"] = _with_pool(evidence, left)
    units["intake"] = Parts(runq=left.runq["intake"])
    units["lag"] = Parts(blocked=np.minimum(_worker_wakings(evidence, left), left.blocked["lag"]))
    return Claim(units=units)


def _with_pool(evidence: Evidence, left: Left) -> Parts:
    """Compute on a thread pool: its own waits for a core, and its waits for a pool thread without a core.

    The framework may spin (on-CPU) or sleep (blocked) until the pool is done.
    """
    waiting = evidence.batches["pool_runq_ns"]
    spun = np.minimum(waiting, left.cpu_excess("compute"))
    return Parts(cpu=spun, runq=left.runq["compute"], blocked=np.minimum(waiting - spun, left.blocked["compute"]))


def _worker_wakings(evidence: Evidence, left: Left) -> Ints:
    """Per batch, how long its worker was runnable before it took the batch."""
    delay = evidence.batches["wake_runq_ns"]
    if delay.any():
        return np.asarray(delay, dtype=np.int64)
    wall = evidence.units["collate"].wall + evidence.units["compute"].wall
    contended = left.runq["collate"] + left.runq["compute"] > _CONTENDED * np.maximum(wall, 1)
    return np.where(contended, left.blocked["lag"], 0)


def late_wakings(evidence: Evidence, late: Ints) -> Ints:
    """The part of each late start of prepare in which its thread was runnable without a core.

    :param late: ``(n,)`` nanoseconds, never negative.
    """
    delay = evidence.rows["prepare_wake_runq_ns"]
    if delay.any():
        return np.asarray(np.minimum(late, delay), dtype=np.int64)
    prepare = evidence.units["prepare"]
    return np.where(prepare.runq > _CONTENDED * np.maximum(prepare.wall, 1), late, 0)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    units, ok = evidence.units, evidence.ok
    delay = units["prepare"].runq + units["finish"].runq
    delay = (delay + evidence.of_batch(units["collate"].runq + units["compute"].runq))[ok]
    return (
        f"threads were runnable without a core for {median_and_p99(delay)}{_takers_clause(evidence)}; "
        f"{figures.parts}."
    )


def _takers_clause(evidence: Evidence) -> str:
    takers = _culprit(evidence)
    return f"; meanwhile the cores went to {takers}" if takers else ""


def _culprit(evidence: Evidence) -> str:
    """What had the cores while threads waited for one. A single worker's own compute does not count."""
    at, weight = [], []
    for name in ("prepare", "finish", "collate", "compute"):
        unit = evidence.units[name]
        at.append(unit.end)
        weight.append(unit.runq)
    takers = core_takers(evidence.samples, np.concatenate(at), np.concatenate(weight), evidence.threads.background)
    alone = evidence.setup.workers == 1 and weight[0].sum() <= weight[2].sum() + weight[3].sum()
    but = (WORKERS,) if alone else ()
    return describe_takers(takers, but=but if evidence.setup.pooled else (*but, OPERATORS), turns=True)


@in_units(*OUTSIDE_UNITS)
def _outside(evidence: Evidence, left: Left, name: str) -> Parts:
    """Time that the service's process was runnable without a core while the request was there.

    That includes waits for requests that others' use of the cores had delayed, but not threads that wait for each
    other because of a burst.
    """
    runnable, _, slowed = evidence.waits_for_others(name)
    return Parts(runq=left.runq[name] - runnable, excess=slowed)


def _preempted(evidence: Evidence) -> str:
    _, switches = evidence.series(PREEMPTIONS)
    return f", and were taken off one {np.ptp(switches):,.0f} times" if len(switches) else ""


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    delay = (evidence.units["finish"].runq + evidence.of_batch(evidence.units["compute"].runq))[evidence.ok]
    return (
        "while a request was at the service, the service's threads were runnable without a core for "
        f"{median_and_p99(delay)}{_preempted(evidence)}{_takers_clause(evidence)}; {figures.parts}."
    )


CAUSE = Cause(
    id="host.contention",
    fixes=("host.priority", "host.threads", "host.pin", "host.wait_policy", "host.routing"),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    outside_needs=reads(RUN_QUEUE),
    culprit=_culprit,
)
