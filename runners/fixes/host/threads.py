"""``host.threads``: fewer threads per operator, so that they do not spin next to a busy neighbor."""

from __future__ import annotations

from latfix.formatting import counted
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Condition, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import LITTLE, need, on_its_device, tail_share
from latfix.runners.fixes.shared.run_evidence import mean

#: Causes that operator threads which wait for a core show up as.
CONTENDED = ("host.contention", "host.slowdown", "host.throttle")
#: Involuntary switches per batch that indicate neighbors on the cores even if the tail does not.
_SWITCHES = 1.0


def operator_threads(record: RunRecord) -> int:
    """Threads of one operator in the run's workers, in older records of its main thread; 0 if unknown."""
    own = _by_worker(record)
    return max(own) if own else record.meta.torch_threads or 0


def _by_worker(record: RunRecord) -> list[int]:
    places = record.meta.placement.worker
    return [place.operator_threads for place in places if place.operator_threads is not None]


def worker_threads(applied: Applied) -> tuple[list[int], str]:
    """Threads of one operator in each worker, and a sentence with them.

    As reported there by the framework or its backend: each thread has its own number of operator threads.
    """
    conversions = applied.evidence.get("conversions", [])
    threads = [int(one["threads"]) for one in conversions] if conversions else _by_worker(applied.record)
    *others, most = sorted(set(threads)) or [0]
    text = " and ".join([*map(str, others), counted(most, "thread") if most else "an unknown number of threads"])
    return threads, f"workers ran operators on {text}"


def switches_per_batch(record: RunRecord) -> float:
    """How often a worker lost its core while it computed a batch: mean over the measured batches."""
    return mean(record.batches["compute_icsw"][record.batches["warmup"] == 0])


def crowded(context: Context) -> str:
    """Operator threads must compete for cores, with each other or with neighbors."""
    if _crowd_each_other(context) or not context.diagnosis.causes or not _quiet(context):
        return ""
    share = max(tail_share(context.diagnosis, CONTENDED), 0.0)
    return (
        f"threads do not compete for cores: waiting for one made up {100 * share:.1f} % of the tail, with "
        f"{switches_per_batch(context.record):.2f} involuntary switches a batch"
    )


def _crowd_each_other(context: Context) -> bool:
    return context.settings.workers * (operator_threads(context.record) or context.cores) > context.cores


def _quiet(context: Context) -> bool:
    """True if no neighbor on the cores shows in the tail or in involuntary switches."""
    return tail_share(context.diagnosis, CONTENDED) < LITTLE and switches_per_batch(context.record) < _SWITCHES


def many_threads(otherwise: str) -> Condition:
    """Operators must run on more than one thread."""
    return need(
        lambda context: context.settings.intra_op_threads != 1 and operator_threads(context.record) != 1, otherwise
    )


def _more_than_cores(context: Context) -> str:
    if context.cores == 1:
        return "there is one core"
    threads = context.settings.intra_op_threads
    if threads and threads <= _wanted(context):
        return f"operators run on {threads} threads, as many as each worker has cores"
    return ""


def _wanted(context: Context) -> int:
    """One next to busy neighbors; as many as each worker has cores if only the service's own workers compete."""
    if _crowd_each_other(context) and context.diagnosis.causes and _quiet(context):
        return max(context.cores // context.settings.workers, 1)
    return 1


def _verify(applied: Applied) -> Verified:
    (threads, text), before = worker_threads(applied), operator_threads(applied.without)
    wanted = applied.settings.intra_op_threads or 1
    switches, were = applied.both(switches_per_batch)
    return Verified(
        set(threads) == {wanted} and wanted < before,
        f"{text}, {before} without; {switches:.2f} involuntary switches a batch, {were:.2f} without",
    )


FIX = Fix(
    id="host.threads",
    title="run operators on one thread, or on as many as each worker has cores",
    treats=("host.contention", "host.slowdown", "host.throttle", "traffic.burst"),
    relief=0.3,
    risk="a single large request takes longer on an idle machine",
    needs=(on_its_device("host.threads"), many_threads("operators run on one thread already"), _more_than_cores),
    sets=lambda context: {"intra_op_threads": _wanted(context)},
    variables=("OMP_NUM_THREADS",),  # for edited plans: the same for the whole process
    verify=_verify,
)
