"""``host.contention``: runnable, but another thread or process had the core."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind, typical_and_p99
from latfix.profilers.causes.host.core_takers import OPERATORS, WORKERS, core_takers, takers_words
from latfix.profilers.causes.python.gil_waits import descheduled_ns
from latfix.profilers.evidence.units import Evidence

#: In records without the delays of wake-ups: a thread that starts late was waiting for a core, where its work then
#: waited for one this much of its time.
_CONTENDED = 0.05


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {
        # Blocked on the interpreter lock while its holder waited for a core: at second hand the same.
        name: Parts(runq=left.runq(name), blocked=descheduled_ns(evidence, left, name))
        for name in ("prepare", "finish", "collate", "compute")
    }
    if evidence.setup.pooled:
        units["compute"] = _with_pool(evidence, left)
    units["intake"] = Parts(runq=left.runq("intake"))
    units["lag"] = Parts(blocked=np.minimum(_worker_wakings(evidence, left), left.blocked("lag")))
    return Claim(units=units)


def _with_pool(evidence: Evidence, left: Left) -> Parts:
    """Compute on a pool of threads: its own wait for a core, and its waits for a pool thread that had none.

    Whether it spins or sleeps until the pool is done is the framework's affair.
    """
    waiting = evidence.batches["pool_runq_ns"]
    spun = np.minimum(waiting, left.cpu_excess("compute"))
    return Parts(cpu=spun, runq=left.runq("compute"), blocked=np.minimum(waiting - spun, left.blocked("compute")))


def _worker_wakings(evidence: Evidence, left: Left) -> Ints:
    """Per batch, how long its worker was runnable before it took the batch up."""
    delay = evidence.batches["wake_runq_ns"]
    if delay.any():
        return np.asarray(delay, dtype=np.int64)
    wall = evidence.units["collate"].wall + evidence.units["compute"].wall
    contended = left.runq("collate") + left.runq("compute") > _CONTENDED * np.maximum(wall, 1)
    return np.where(contended, left.blocked("lag"), 0)


def late_wakings(evidence: Evidence, late: Ints) -> Ints:
    """Of the time by which each request's prepare began late, what its thread was runnable without a core.

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
    had = f"; meanwhile the cores went to {who}" if (who := _culprit(evidence)) else ""
    return f"threads were runnable without a core for {typical_and_p99(delay)}{had}; {own_and_behind(figures)}."


def _culprit(evidence: Evidence) -> str:
    """Who had the cores while threads waited for one. Of a worker alone its own compute is no other's."""
    at, weight = [], []
    for name in ("prepare", "finish", "collate", "compute"):
        unit = evidence.units[name]
        at.append(unit.end)
        weight.append(unit.runq)
    takers = core_takers(evidence.samples, np.concatenate(at), np.concatenate(weight))
    alone = evidence.setup.workers == 1 and weight[0].sum() <= weight[2].sum() + weight[3].sum()
    but = (WORKERS,) if alone else ()
    return takers_words(takers, but=but if evidence.setup.pooled else (*but, OPERATORS))


def _outside(_evidence: Evidence, left: Left) -> Claim:
    """What the service's process wanted to run for and had no core, while the request was there."""
    return Claim(units={name: Parts(runq=left.runq(name)) for name in ("compute", "finish")})


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    delay = (evidence.units["finish"].runq + evidence.of_batch(evidence.units["compute"].runq))[evidence.ok]
    had = f"; meanwhile the cores went to {who}" if (who := _culprit(evidence)) else ""
    return (
        f"while a request was at the service, its threads were runnable without a core for {typical_and_p99(delay)}"
        f"{had}; {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="host.contention",
    fixes=("host.priority", "host.threads", "host.pin", "host.wait_policy", "host.routing"),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    culprit=_culprit,
)
