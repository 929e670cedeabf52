"""``host.parallel``: operators on all the cores that stand idle, where requests are few and large."""

from __future__ import annotations

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.host.threads import CONTENDED, operator_threads, worker_threads
from latfix.runners.fixes.shared.conditions import LITTLE, on_host, tail_share
from latfix.stages import Status

#: The share of the run that workers may compute at most: with more threads each, they get in each other's way.
_BUSY = 0.5
#: Compute below which handing work to other threads costs more than they save, in milliseconds.
_SHORT_MS = 1.0
#: Cores that are busy while a batch is computed must be so many times those without it; by less they are by chance.
_MORE_BUSY = 1.1


def _busy_share(record: RunRecord, workers: int) -> float:
    """The share of the run that a worker computed, the mean over workers."""
    batches = record.batches
    compute = batches["compute_end_ns"] - batches["h2d_end_ns"]
    if not len(compute):
        return 0.0
    span = int(batches["finish_end_ns"].max() - batches["open_ns"].min())
    return float(compute.sum()) / max(span, 1) / workers


def _compute_ms(record: RunRecord) -> float:
    """Compute of a slow request: the 95th percentile of those that ended ok."""
    compute = record.requests["compute_ns"][record.measured & (record.requests["status"] == Status.OK)]
    return float(np.percentile(compute, 95)) / 1e6 if len(compute) else 0.0


def _wanted(context: Context) -> int:
    return max(context.cores // context.settings.workers, 1)


def _cores_stand_idle(context: Context) -> str:
    now, wanted = operator_threads(context.record), _wanted(context)
    if context.settings.intra_op_threads >= wanted or not 0 < now < wanted:
        return f"operators run on {now or 'an unknown number of'} thread(s), and each worker has {wanted} core(s)"
    share = tail_share(context.diagnosis, CONTENDED)
    if share >= LITTLE:
        return f"the cores are wanted by others: waiting for one made up {share:.1%} of the tail"
    busy, compute = _busy_share(context.record, context.settings.workers), _compute_ms(context.record)
    if busy > _BUSY:
        return f"workers computed {busy:.0%} of the time; more threads each would have to share the cores"
    if compute < _SHORT_MS:
        return f"a slow request computes for {compute:.2g} ms, too short to be shared among threads"
    return ""


def _verify(applied: Applied) -> Verified:
    (threads, said), before = worker_threads(applied), operator_threads(applied.without)
    busy, were = applied.both(_busy_cores)
    return Verified(
        min(threads, default=0) > before > 0 and busy > _MORE_BUSY * were,
        f"{said}, {before} without; {busy:.2f} cores were busy while a batch was computed, {were:.2f} without",
    )


def _busy_cores(record: RunRecord) -> float:
    """Cores that this process kept busy while it computed: CPU time of all threads over the time that passed."""
    batches = record.batches
    wall = int((batches["compute_end_ns"] - batches["h2d_end_ns"]).sum())
    return float(batches["process_cpu_ns"].sum()) / wall if wall else 0.0


FIX = Fix(
    id="host.parallel",
    title="run operators on all cores of a worker",
    treats=("input.size", "batching.size", "batching.padding"),
    relief=0.2,
    risk="beside a busy neighbor the threads wait for each other's cores, which raises the tail several times",
    needs=(on_host(), _cores_stand_idle),
    sets=lambda context: {"intra_op_threads": _wanted(context)},
    verify=_verify,
)
