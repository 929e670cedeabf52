"""``host.threads``: fewer threads an operator, so that they do not spin beside a busy neighbor."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.tail_conditions import LITTLE, tail_share
from latfix.runners.replay.run_facts import thread_rows

#: What an operator's threads that wait for a core look like.
CONTENDED = ("host.contention", "host.slowdown", "host.throttle")
#: Involuntary switches a batch that show neighbors on the cores although the tail does not.
_SWITCHES = 1.0


def operator_threads(record: RunRecord) -> int:
    """Threads of one operator in that run's workers, in older records on its main thread; 0 where not known."""
    own = _by_worker(record)
    return max(own) if own else int(record.meta.get("torch_threads", 0))


def _by_worker(record: RunRecord) -> list[int]:
    rows = thread_rows(record.meta, "worker")
    return [int(row["operator_threads"]) for row in rows if "operator_threads" in row]


def worker_threads(applied: Applied) -> list[int]:
    """Threads of one operator in each worker, as the framework, or the backend in its place, reported there.

    What the framework says on any other thread means nothing: each thread has a number of its own.
    """
    conversions = applied.evidence.get("conversions", [])
    if conversions:
        return [int(one["threads"]) for one in conversions]
    return _by_worker(applied.record)


def threads_text(counts: list[int]) -> str:
    """Threads by worker, each number once, for a sentence."""
    return " and ".join(str(count) for count in sorted(set(counts))) or "an unknown number of"


def switches_per_batch(record: RunRecord) -> float:
    """How often a worker lost its core while a batch was computed, the mean over the measured batches."""
    counted = record.batches["compute_icsw"][record.batches["warmup"] == 0]
    return float(np.mean(counted)) if len(counted) else 0.0


def uncontended(context: Context) -> str:
    """Why the operators' threads need no change, in one clause with the figures; empty where they may."""
    threads = operator_threads(context.record) or context.cores
    if context.settings.workers * threads > context.cores:
        return ""
    share, switches = tail_share(context.diagnosis, CONTENDED), switches_per_batch(context.record)
    if not context.diagnosis.causes or share >= LITTLE or switches >= _SWITCHES:
        return ""
    return (
        f"the cores are its own: waiting for one made up {max(share, 0.0):.1%} of the tail, with {switches:.2f} "
        "involuntary switches a batch"
    )


def _obstacle(context: Context) -> str:
    if context.record.meta.get("device", "cpu") != "cpu":
        return "the model runs on a GPU"
    if context.settings.intra_op_threads == 1 or operator_threads(context.record) == 1:
        return "operators run on one thread already"
    if context.cores == 1:
        return "there is one core"
    if context.settings.intra_op_threads and context.settings.intra_op_threads <= _wanted(context):
        return f"operators run on {context.settings.intra_op_threads} threads, as many as each worker has cores"
    return uncontended(context)


def _wanted(context: Context) -> int:
    """One beside busy neighbors; where only its own workers crowd each other out, as many as each has cores."""
    share, switches = tail_share(context.diagnosis, CONTENDED), switches_per_batch(context.record)
    own = context.settings.workers * (operator_threads(context.record) or context.cores) > context.cores
    if own and context.diagnosis.causes and share < LITTLE and switches < _SWITCHES:
        return max(context.cores // context.settings.workers, 1)
    return 1


def _change(context: Context) -> dict[str, Any]:
    return {"intra_op_threads": _wanted(context)}


def _verify(applied: Applied) -> Verified:
    threads, before = worker_threads(applied), operator_threads(applied.without)
    wanted = int(applied.record.meta["settings"].get("intra_op_threads", 0)) or 1
    switches = [switches_per_batch(record) for record in (applied.record, applied.without)]
    said = (
        f"workers ran operators on {threads_text(threads)} thread(s), {before} without; {switches[0]:.2f} "
        f"involuntary switches a batch, {switches[1]:.2f} without"
    )
    return Verified(set(threads) == {wanted} and wanted < before, said)


FIX = Fix(
    id="host.threads",
    title="run operators on one thread, or on as many as each worker has cores",
    treats=("host.contention", "host.slowdown", "host.throttle", "traffic.burst"),
    relief=0.3,
    risk="a single large request takes longer on an idle machine",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
