"""``host.parallel``: operators on all idle cores, if requests are few and large."""

from __future__ import annotations

import numpy as np

from latfix.formatting import counted, percent
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.host.threads import CONTENDED, operator_threads, worker_threads
from latfix.runners.fixes.shared.conditions import LITTLE, on_its_device, tail_share
from latfix.stages import Status

#: Maximum share of the run that workers compute: busier ones would compete for cores with more threads each.
_BUSY = 0.5
#: Minimum compute in milliseconds; below it, handing work to other threads costs more than it saves.
_SHORT_MS = 1.0
#: Minimum ratio of busy cores during compute, with and without the fix; less may be chance.
_MORE_BUSY = 1.1


def _busy_share(record: RunRecord, workers: int) -> float:
    """Share of the run that a worker computed: mean over workers."""
    batches = record.batches
    compute = batches["compute_end_ns"] - batches["h2d_end_ns"]
    if not len(compute):
        return 0.0
    if record.meta.settings.places > 1:  # requests that share a worker's steps share its time
        compute = compute / batches["size"]
    span = int(batches["finish_end_ns"].max() - batches["open_ns"].min())
    return float(compute.sum()) / max(span, 1) / workers


def _compute_ms(record: RunRecord) -> float:
    """Compute of a slow request: 95th percentile of those that ended ok."""
    compute = record.requests["compute_ns"][record.measured & (record.requests["status"] == Status.OK)]
    return float(np.percentile(compute, 95)) / 1e6 if len(compute) else 0.0


def _wanted(context: Context) -> int:
    return max(context.cores // context.settings.workers, 1)


def _idle_cores(context: Context) -> str:
    now, wanted = operator_threads(context.record), _wanted(context)
    if context.settings.intra_op_threads >= wanted or not 0 < now < wanted:
        threads = counted(now, "thread") if now else "an unknown number of threads"
        return f"operators run on {threads}, and each worker has {counted(wanted, 'core')}"
    share = tail_share(context.diagnosis, CONTENDED)
    if share >= LITTLE:
        return f"threads compete for the cores: waiting for one made up {100 * share:.1f} % of the tail"
    busy, compute = _busy_share(context.record, context.settings.workers), _compute_ms(context.record)
    if busy > _BUSY:
        computed = f"workers computed {percent(busy)} of the time"
        return f"{computed}; with more threads each they would compete for the cores"
    if compute < _SHORT_MS:
        return f"a slow request computes for {compute:.2g} ms, too short to be shared among threads"
    return ""


def _verify(applied: Applied) -> Verified:
    (threads, text), before = worker_threads(applied), operator_threads(applied.without)
    busy, were = applied.both(_busy_cores)
    return Verified(
        min(threads, default=0) > before > 0 and busy > _MORE_BUSY * were,
        f"{text}, {before} without; {busy:.2f} cores were busy while a batch was computed, {were:.2f} without",
    )


def _busy_cores(record: RunRecord) -> float:
    """Cores that the process kept busy while it computed: CPU time of all threads over wall time."""
    batches = record.batches
    wall = int((batches["compute_end_ns"] - batches["h2d_end_ns"]).sum())
    return float(batches["process_cpu_ns"].sum()) / wall if wall else 0.0


FIX = Fix(
    id="host.parallel",
    title="run operators on all cores of a worker",
    treats=("input.size", "batching.size", "batching.padding"),
    relief=0.2,
    risk="next to a busy neighbor the threads wait for each other's cores, which multiplies the tail",
    needs=(on_its_device("host.parallel"), _idle_cores),
    sets=lambda context: {"intra_op_threads": _wanted(context)},
    verify=_verify,
)
