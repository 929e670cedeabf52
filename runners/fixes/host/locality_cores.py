"""``locality.cores``: a worker, its prepare thread and its memory on one memory node and last-level cache."""

from __future__ import annotations

from typing import Any

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.host.pin import placement_for
from latfix.runners.fixes.host.threads import operator_threads
from latfix.runners.fixes.shared.tail_conditions import refusals, too_little
from latfix.runners.host.cpu_placement import domain_of
from latfix.runners.host.cpu_topology import Topology, read_topology
from latfix.runners.replay.run_facts import thread_rows

_TREATS = ("host.slowdown", "host.contention", "input.size")


def _obstacle(context: Context) -> str:
    if context.settings.pin != "off":
        return f"pin = {context.settings.pin} already"
    if context.record.meta.get("device", "cpu") != "cpu":
        return "the model runs on a GPU"
    return placement_for(context, "locality", read_topology()).obstacle or too_little(context.diagnosis, _TREATS)


def _change(context: Context) -> dict[str, Any]:
    """With no more threads an operator than the domain has cores for each worker on it."""
    topology = read_topology()
    placed = placement_for(context, "locality", topology).workers
    cores = min(max(len(own) // placed.count(own), 1) for own in placed)
    threads = context.settings.intra_op_threads or operator_threads(context.record) or cores
    return {"pin": "locality", **({"intra_op_threads": cores} if threads > cores else {})}


def _verify(applied: Applied) -> Verified:
    topology = read_topology()
    now, before = _domains(applied.record, topology), _domains(applied.without, topology)
    pages = applied.record.meta.get("placement", {}).get("node_pages", {})
    said = f"workers kept to {_counted(now)}, {_counted(before)} without"
    if pages:
        total = max(sum(pages.values()), 1)
        said += "; memory on " + ", ".join(f"{node} {count / total:.0%}" for node, count in sorted(pages.items()))
    refused = refusals(applied.record, "pin", "cores")
    effective = bool(now) and all(now) and not any(before) and not refused
    return Verified(effective, "; ".join([said, *refused]))


def _domains(record: RunRecord, topology: Topology) -> list[bool]:
    """For each worker, whether it could run on one domain only."""
    rows = thread_rows(record.meta, "worker")
    return [domain_of(topology, tuple(row["allowed"])) is not None for row in rows]


def _counted(kept: list[bool]) -> str:
    return f"one domain: {sum(kept)} of {len(kept)}"


FIX = Fix(
    id="locality.cores",
    title="keep each worker and its memory on one memory node and cache",
    treats=_TREATS,
    relief=0.2,
    risk="cores of other domains stand idle where there are fewer workers than domains",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
