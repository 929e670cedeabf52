"""``memory.fragmentation``: the heap grew although as much was free in it, but not in one piece."""

from __future__ import annotations

import numpy as np

from latfix.profilers.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.causes.page_faults import fault_price_ns, price_doubt
from latfix.profilers.device_memory import calls_of_all, held_up, largest
from latfix.profilers.evidence import Evidence
from latfix.profilers.heap_growth import MIB, UNITS, column, faults_beside_free, grown_in_pieces


def _claim(evidence: Evidence, left: Left) -> Claim:
    costs = {}
    for name in UNITS:
        price = fault_price_ns(evidence, name)
        cost = np.rint(faults_beside_free(evidence, name) * price).astype(np.int64)
        costs[name] = np.minimum(cost, left.cpu_excess(name))
    left_over = left.cpu_excess("compute") - costs["compute"]
    costs["compute"] = costs["compute"] + held_up(evidence, left_over, "fragmented")
    units = {name: Parts(cpu=cost) for name, cost in costs.items()}
    return Claim(units=units, disturbance=False, doubt=price_doubt(evidence, costs))


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    calls = calls_of_all(evidence, "fragmented")
    if calls:
        stuck = largest(evidence, "inactive_split_bytes") / MIB
        return (
            f"torch's allocator gave cached memory back {calls:,} times because the device had no more, "
            f"while up to {stuck:.3g} MiB lay free in segments that were in use; "
            f"{own_and_behind(figures)}."
        )
    pieces = {name: grown_in_pieces(evidence, name) for name in UNITS}
    times = sum(int(np.count_nonzero(bytes_)) for bytes_ in pieces.values())
    total = sum(float(bytes_.sum()) for bytes_ in pieces.values())
    _, sampled = evidence.series("malloc.free_bytes")
    read = max(float(column(evidence, name, "free_bytes").max(initial=0)) for name in UNITS)
    free = max(read, float(sampled.max(initial=0)))
    return (
        f"the heap grew {times:,} times, by {total / MIB:.3g} MiB in all, while at least as much was free in it "
        f"(at most {free / MIB:.3g} MiB); {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="memory.fragmentation",
    evidence_class="counted",
    fixes=(
        "memory.allocator",
        "memory.pool",
        "memory.page_prefault",
        "memory.huge_pages",
        "memory.jemalloc",
        "memory.tcmalloc",
    ),
    happened="the heap growing because what was free in it lay in pieces",
    behind="one for which a fragmented heap grew",
    claim=_claim,
    sentence=_sentence,
)
