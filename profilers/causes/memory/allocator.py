"""``memory.allocator``: the allocator's slow path: the heap grows into fresh pages or returns pages."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import Cause, Claim, Left, TailFigures
from latfix.profilers.causes.memory.device_allocator_stalls import memory_claim, price_clause, stretches_of
from latfix.profilers.causes.memory.heap_growth import (
    FIXES,
    MIB,
    UNITS,
    faults_despite_free,
    given_back_ns,
    heap_faults,
    heap_growth,
)
from latfix.profilers.causes.memory.page_faults import fault_price_ns
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    costs = {}
    for name in UNITS:
        faults = heap_faults(evidence, name) - faults_despite_free(evidence, name)
        grown = np.rint(faults * fault_price_ns(evidence, name)).astype(np.int64)
        costs[name] = grown + given_back_ns(evidence, name)
    return memory_claim(evidence, left, "other", costs)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    calls = stretches_of(evidence).calls("other")
    if calls.sum():
        return (
            f"torch's allocator called the device {int(calls.sum()):,} times for memory while requests were served"
            f"{price_clause(evidence, 'other')}; {figures.parts_and_largest}."
        )
    grown = {name: heap_growth(evidence, name) for name in UNITS}
    times = sum(int(np.count_nonzero(bytes_)) for bytes_ in grown.values())
    largest = max((float(bytes_.max(initial=0)) for bytes_ in grown.values()), default=0.0)
    faults = sum(float(heap_faults(evidence, name).sum()) for name in UNITS)
    return (
        f"the heap grew {times:,} times while requests were served, by up to {largest / MIB:.3g} MiB, with "
        f"{faults:,.0f} page faults on the new memory, {fault_price_ns(evidence, 'compute'):.0f} ns each; "
        f"{figures.parts_and_largest}."
    )


CAUSE = Cause(id="memory.allocator", fixes=FIXES, claim=_claim, sentence=_sentence)
