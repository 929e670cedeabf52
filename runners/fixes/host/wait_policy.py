"""``host.wait_policy``: threads of an operator sleep while they wait for each other, instead of spinning.

A compromise between many spinning threads, which a busy neighbor slows down several times, and one thread, which is
slower on a quiet machine.
"""

from __future__ import annotations

import os

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.host.threads import crowded, many_threads
from latfix.runners.fixes.shared.conditions import on_its_device

#: The first is read by libgomp and LLVM's and Intel's OpenMP, the second only by the latter two.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
#: Maximum remaining share of the pool threads' CPU time: compute stays, spinning ends.
_LESS = 0.9


def pool_cpu_ms(record: RunRecord) -> float:
    """CPU time of the framework's pool threads for each measured batch, both compute and spinning.

    In a joined record the counter and the time start again with each window.
    """
    samples, batches = record.samples, int(np.count_nonzero(record.batches["warmup"] == 0))
    own = samples["series"].astype(object) == "thread.native.cpu_ns"
    times, counter = samples["t_ns"][own], samples["value"][own].astype(np.float64)
    if len(times) < 2 or not batches:
        return 0.0
    grown = np.diff(counter)[np.diff(times) > 0]
    return float(np.maximum(grown, 0).sum()) / batches / 1e6


def _no_policy(context: Context) -> str:
    there = context.settings.env.get("OMP_WAIT_POLICY") or os.environ.get("OMP_WAIT_POLICY", "")
    return f"OMP_WAIT_POLICY is {there} already" if there else ""


def _verify(applied: Applied) -> Verified:
    """Spinning shows in the pool threads' CPU time; the variable alone proves nothing.

    libgomp hardly spins if several threads have a pool and there are more pool threads than cores.
    """
    policy = applied.record.meta.environment.get("OMP_WAIT_POLICY", "")
    now, before = applied.both(pool_cpu_ms)
    text = (
        f"the process was started with OMP_WAIT_POLICY={policy or 'nothing'}; pool threads took {now:.3g} ms of CPU "
        f"time a batch, {before:.3g} without"
    )
    return Verified(policy == "PASSIVE" and 0 < now < _LESS * before, text)


FIX = Fix(
    id="host.wait_policy",
    title="let threads of an operator sleep instead of spin while they wait",
    treats=("host.contention", "host.slowdown", "host.throttle"),
    relief=0.25,
    risk="on a quiet machine each parallel operator takes longer, by the time to wake a thread",
    needs=(on_its_device("host.wait_policy"), _no_policy, many_threads("operators run on one thread"), crowded),
    sets={"env": _PASSIVE},
    verify=_verify,
)
