"""``locality.cores``: a worker, its prepare thread and its memory on one memory node and last-level cache."""

from __future__ import annotations

from latfix.formatting import percent
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.host.threads import operator_threads
from latfix.runners.fixes.shared.conditions import at_default, in_tail, on_its_device, refusals
from latfix.runners.host.cpu_placement import domain_of, plan_placement
from latfix.runners.host.cpu_topology import read_topology

_TREATS = ("host.slowdown", "host.contention", "input.size")


def _sets(context: Context) -> Change:
    """Limit the threads of an operator to the domain's cores for each of its workers."""
    placed = plan_placement(read_topology(), context.settings, "locality").workers
    cores = min(max(len(own) // placed.count(own), 1) for own in placed)
    threads = context.settings.intra_op_threads or operator_threads(context.record) or cores
    return {"pin": "locality", **({"intra_op_threads": cores} if threads > cores else {})}


def _verify(applied: Applied) -> Verified:
    topology = read_topology()

    def on_one_domain(record: RunRecord) -> list[bool]:
        return [domain_of(topology, place.allowed) is not None for place in record.meta.placement.worker]

    now, before = applied.both(on_one_domain)
    text = f"workers kept to one domain: {sum(now)} of {len(now)}, {sum(before)} of {len(before)} without"
    if pages := applied.record.meta.placement.node_pages:
        total = max(sum(pages.values()), 1)
        parts = (f"{node} {percent(count / total)}" for node, count in sorted(pages.items()))
        text += f"; memory on {', '.join(parts)}"
    refused = refusals(applied.record, "pin", "cores")
    effective = bool(now) and all(now) and not any(before) and not refused
    return Verified(effective, "; ".join([text, *refused]))


FIX = Fix(
    id="locality.cores",
    title="keep each worker and its memory on one memory node and cache",
    treats=_TREATS,
    relief=0.2,
    risk="cores of other domains are idle if there are fewer workers than domains",
    needs=(
        at_default("pin", "pin = {} already"),
        on_its_device("locality.cores"),
        lambda context: plan_placement(read_topology(), context.settings, "locality").obstacle,
        in_tail(*_TREATS),
    ),
    sets=_sets,
    verify=_verify,
)
