"""``host.routing``: requests go to fast replicas; a slow one serves only what they would finish later."""

from __future__ import annotations

import numpy as np

from latfix.cause_catalogue import PREMISES
from latfix.formatting import percent
from latfix.results.worker_summary import series_range, workers_of
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need
from latfix.runners.fixes.shared.queue_evidence import batch_lengths
from latfix.runners.scheduling.replica_speed import Pace

#: Minimum share of the run's batches during which a slow replica is slower.
_LASTING = 0.05
#: Minimum factor by which it is slower.
_SLOWER = 1.3
#: Maximum ratio of its share of the batches, with and without the fix; more may be chance.
_LESS = 0.9
_LEAST_WORKERS = PREMISES["host.routing"].workers


def _replica_speeds(record: RunRecord) -> list[tuple[float, float, float]]:
    """By worker, learned batch by batch like the service does; empty if the run had one worker.

    Its share of all batches, the maximum time of its batches relative to the fastest worker's, and the share of the
    run's batches during which it counted as slower.
    """
    count = record.meta.settings.workers
    batches, worker = record.batches, workers_of(record)
    if count < 2 or not len(worker):
        return []
    count = max(count, int(worker.max()) + 1)
    longest, total = batch_lengths(record)
    # The times of failed batches, and of their members run again, do not show the worker's speed.
    usable = np.flatnonzero((batches["warmup"] == 0) & (batches["retried"] == 0) & (longest > 0))
    usable = usable[np.argsort(batches["finish_end_ns"][usable], kind="stable")]
    pace, slowest, slow = Pace(count), [1.0] * count, [0] * count
    for b in usable.tolist():
        pace.learn(
            int(worker[b]),
            size=int(batches["size"][b]),
            longest=int(longest[b]),
            total=int(total[b]),
            took_ns=max(int(batches["finish_end_ns"][b] - batches["close_ns"][b]), 1),
        )
        for k, weight in enumerate(pace.weights):
            slowest[k] = max(slowest[k], weight)
            slow[k] += weight > 1.0
    whole = max(len(usable), 1)
    shares = np.bincount(worker[usable], minlength=count) / whole
    return [(float(shares[k]), slowest[k], slow[k] / whole) for k in range(count)]


def _slow_replica(context: Context) -> str:
    seen = _replica_speeds(context.latest or context.record)
    if not seen:
        return "the record has one worker, so the speed of others is unknown"
    if any(slowest >= _SLOWER and slow >= _LASTING for _, slowest, slow in seen):
        return ""
    _, slowest, slow = max(seen, key=lambda one: one[1])
    return (
        f"the {len(seen)} workers are alike: the slowest took {slowest:.2g} times as long as the "
        f"fastest, during {percent(slow)} of the batches"
    )


def _verify(applied: Applied) -> Verified:
    """Effective if a slow worker was weighted down and got less work, or left waiting requests to faster ones."""
    now, before = applied.both(lambda record: {k: one[0] for k, one in enumerate(_replica_speeds(record))})
    ranges = {worker: series_range(applied.record, f"runner.worker_{worker}.weight") for worker in now}
    if not any(ranges.values()):
        return Verified(False, "no weights were sampled: the service did not route by weight")
    weighed = {worker: bounds[1] for worker, bounds in ranges.items() if bounds is not None and bounds[1] > 1.0}
    if not weighed:
        return Verified(False, f"none of {len(now)} workers was ever slower, so all of them took waiting requests")
    worker = max(weighed, key=lambda k: weighed[k])
    left = series_range(applied.record, "runner.left_to_faster")
    held, was = int(left[1]) if left is not None else 0, before.get(worker, 0.0)
    # If fast workers are idle, a slow one is not woken, so it leaves nothing to them.
    less = now[worker] < (was if held else _LESS * was)
    return Verified(
        less if was else held > 0,
        f"worker {worker} was weighted up to {weighed[worker]:.2g} and ran {100 * now[worker]:.1f} % of the "
        f"batches, {100 * was:.1f} % without; {held} times a slow worker left waiting requests to a faster one",
    )


FIX = Fix(
    id="host.routing",
    title="route requests around slow replicas",
    treats=("host.contention", "host.slowdown", "gpu.clocks", "gpu.contention", "host.steal"),
    relief=0.3,
    gentle=True,
    risk="a slow worker idles while requests wait for a fast one; one in 200 batches tries it again",
    needs=(
        at_default("routing", "requests are routed by weight already"),
        at_default("overlap", "batches overlap, so it is not known when a worker is free again"),
        need(lambda context: context.settings.workers >= _LEAST_WORKERS, "the service as it is has one worker"),
        _slow_replica,
    ),
    sets={"routing": "weighted"},
    verify=_verify,
)
