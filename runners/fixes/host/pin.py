"""``host.pin``: workers and their pool threads on their own cores, apart from all other threads of the service."""

from __future__ import annotations

import os

import numpy as np

from latfix.formatting import percent
from latfix.run_record.process_facts import ThreadPlace
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.host.threads import operator_threads
from latfix.runners.fixes.shared.conditions import at_default, in_tail, on_its_device, refusals
from latfix.runners.host.cpu_placement import plan_placement
from latfix.runners.host.cpu_topology import read_topology

_TREATS = ("host.contention", "host.slowdown")
#: Maximum share of the machine that other programs keep busy: beyond it, a pinned worker waits longer than it gains.
_CROWDED = 0.3


def _quiet_neighbors(context: Context) -> str:
    others = others_share(context.record)
    if others > _CROWDED:
        return (
            f"other programs kept {percent(others)} of the machine busy, and a pinned worker cannot get "
            "out of their way"
        )
    return ""


def others_share(record: RunRecord) -> float:
    """Share of the machine's cores that other programs kept busy during the run; 0 if unknown."""
    grown = [_growth(record, series) for series in ("host.cpu_busy_ns", "process.cpu_ns")]
    (busy, span), (own, own_span) = grown
    if span <= 0 or own_span <= 0:
        return 0.0
    return max(busy / span - own / own_span, 0.0) / (os.cpu_count() or 1)


def _growth(record: RunRecord, series: str) -> tuple[float, float]:
    """Growth of a counter from its first sample to its last, and the time between them."""
    found = np.flatnonzero(record.samples["series"].astype(object) == series)
    if len(found) < 2:
        return 0.0, 0.0
    first, last = found[0], found[-1]
    values, times = record.samples["value"], record.samples["t_ns"]
    return float(values[last] - values[first]), float(times[last] - times[first])


def _sets(context: Context) -> Change:
    """Limit the threads of an operator to the cores of a worker."""
    cores = min(len(own) for own in plan_placement(read_topology(), context.settings, "workers").workers)
    threads = context.settings.intra_op_threads or operator_threads(context.record)
    return {"pin": "workers", **({"intra_op_threads": cores} if threads > cores else {})}


def _verify(applied: Applied) -> Verified:
    now, before = applied.both(lambda record: [place for place in record.meta.placement.worker if place.allowed])
    if not now or not before:
        return Verified(False, "the cores of the workers are not known")
    refused = refusals(applied.record, "pin", "cores")
    apart = all(not set(one.allowed) & set(other.allowed) for k, one in enumerate(now) for other in now[k + 1 :])
    fewer = max(len(place.allowed) for place in now) < min(len(place.allowed) for place in before)
    others = {core for place in applied.record.meta.placement.prepare for core in place.allowed}
    shared = others & {core for place in now for core in place.allowed}
    text = (
        f"workers on cores {' and '.join(place.cores for place in now)}, {before[0].cores} without; prepare "
        f"threads {'on the same cores' if shared else 'on others'}; workers were moved {_moves(now)} times between "
        f"cores, {_moves(before)} without"
    )
    return Verified(apart and fewer and not refused, "; ".join([text, *refused]))


def _moves(places: list[ThreadPlace]) -> int:
    return sum(place.migrations for place in places)


FIX = Fix(
    id="host.pin",
    title="pin each worker to its own cores",
    treats=_TREATS,
    relief=0.25,
    risk="a worker cannot leave a core that other programs also use; fewer threads per operator if cores are few",
    needs=(
        at_default("pin", "pin = {} already"),
        on_its_device("host.pin"),
        lambda context: plan_placement(read_topology(), context.settings, "workers").obstacle,
        in_tail(*_TREATS),
        _quiet_neighbors,
    ),
    sets=_sets,
    verify=_verify,
)
