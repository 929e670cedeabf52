"""``host.pin``: workers and their pool threads on their own cores, apart from all other threads of the service."""

from __future__ import annotations

from latfix.formatting import percent
from latfix.profilers.causes.host.core_takers import core_takers
from latfix.run_record.process_facts import ThreadPlace
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.host.threads import operator_threads
from latfix.runners.fixes.shared.conditions import at_default, in_tail, on_its_device, refusals
from latfix.runners.host.cpu_placement import plan_placement
from latfix.runners.host.cpu_topology import read_topology

_TREATS = ("host.contention", "host.slowdown")
#: Maximum share of the machine that other programs keep busy: beyond it, a pinned worker waits longer than it gains.
_CROWDED = 0.3


def _quiet_neighbors(context: Context) -> str:
    outside = sum(taker.cores for taker in core_takers(context.record.samples) if taker.outside)
    if outside > _CROWDED * context.cores:
        return (
            f"other programs kept {percent(outside / context.cores)} of the machine busy, and a pinned worker cannot "
            "get out of their way"
        )
    return ""


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
