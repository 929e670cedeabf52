"""``host.routing``: requests go to the fast replicas; a slow one serves what they would end later."""

from __future__ import annotations

from typing import Any

from latfix.results.worker_summary import weight_range
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.queue_evidence import series_range
from latfix.runners.fixes.shared.replica_evidence import Watched, watch

#: A replica that is slower for less of the run's batches than this had an accident.
_LASTING = 0.05
#: And one that is slower by less is as good as the others.
_SLOWER = 1.3
#: Its share of the batches is lower than by chance where it is below this part of what it was.
_LESS = 0.9


def slow_ones(record: RunRecord) -> list[Watched]:
    """Replicas that were slower than the fastest for a part of the run, the slowest first."""
    found = [one for one in watch(record) if one.slowest >= _SLOWER and one.slow >= _LASTING]
    return sorted(found, key=lambda one: -one.slowest * one.slow)


def _obstacle(context: Context) -> str:
    settings = context.settings
    if settings.routing != "pull":
        return "requests are routed by weight already"
    if settings.overlap:
        return "batches overlap: when a worker is free again is not known beforehand"
    if settings.workers < 2:
        return "there is one worker, and nobody else to route to"
    record = context.latest or context.record
    watched = watch(record)
    if not watched:
        return "the record is of one worker: nothing is known of the others' speed"
    if not slow_ones(record):
        most = max(watched, key=lambda one: one.slowest)
        return (
            f"the {len(watched)} workers are alike: the slowest took {most.slowest:.2g} times as long as the "
            f"fastest, during {most.slow:.0%} of the batches"
        )
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"routing": "weighted"}


def _verify(applied: Applied) -> Verified:
    """It took effect where a worker was weighted down and got less of the work, or was left nothing to wait for."""
    before = {one.worker: one for one in watch(applied.without)}
    now = {one.worker: one for one in watch(applied.record)}
    ranges = {worker: weight_range(applied.record, worker) for worker in now}
    weighed = {worker: bounds for worker, bounds in ranges.items() if bounds is not None and bounds[1] > 1.0}
    if not any(ranges.values()):
        return Verified(False, "no weights were sampled: the service routed nothing")
    if not weighed:
        return Verified(False, f"none of {len(now)} workers was ever seen to be slower: everybody took what waited")
    worker = max(weighed, key=lambda k: weighed[k][1])
    left = series_range(applied.record, "runner.left_to_faster")
    held = int(left[1]) if left is not None else 0
    was = before[worker].share if worker in before else 0.0
    # Beside fast workers that are idle a slow one is not even woken: there is nothing then that it would leave.
    less = now[worker].share < (was if held else _LESS * was)
    return Verified(
        less if was else held > 0,
        f"worker {worker} was weighted up to {weighed[worker][1]:.2g} and ran {now[worker].share:.1%} of the "
        f"batches, {was:.1%} without; {held} times a slow worker left to a faster one what waited",
    )


FIX = Fix(
    id="host.routing",
    title="route around replicas that are slower than others",
    treats=("host.contention", "host.slowdown", "gpu.clocks", "gpu.contention", "host.steal"),
    relief=0.3,
    gentle=True,
    risk="a slow worker idles while requests wait for a fast one; one in 200 batches tries it again",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
