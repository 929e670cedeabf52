"""``memory.fragmentation``: the heap grew although it had enough free memory, but not in one piece."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import Cause, Claim, Left, TailFigures
from latfix.profilers.causes.memory.device_allocator_stalls import memory_claim, price_clause, stretches_of
from latfix.profilers.causes.memory.heap_growth import FIXES, MIB, UNITS, column, faults_despite_free, grown_in_pieces
from latfix.profilers.causes.memory.page_faults import fault_price_ns
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    costs = {name: faults_despite_free(evidence, name) * fault_price_ns(evidence, name) for name in UNITS}
    whole = {name: np.rint(cost).astype(np.int64) for name, cost in costs.items()}
    return memory_claim(evidence, left, "fragmented", whole)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    stretches = stretches_of(evidence)
    calls = stretches.calls("fragmented")
    if calls.sum():
        stuck = float(stretches.pieces[calls > 0].max())
        return (
            f"torch's allocator freed cached memory {int(calls.sum()):,} times because the device had none left"
            f"{price_clause(evidence, 'fragmented')}, while up to {stuck / MIB:.3g} MiB were free within segments in "
            f"use{_largest_free(evidence)}; {figures.parts}."
        )
    pieces = {name: grown_in_pieces(evidence, name) for name in UNITS}
    times = sum(int(np.count_nonzero(bytes_)) for bytes_ in pieces.values())
    total = sum(float(bytes_.sum()) for bytes_ in pieces.values())
    _, sampled = evidence.series("malloc.free_bytes")
    read = max(float(column(evidence, name, "free_bytes").max(initial=0)) for name in UNITS)
    free = max(read, float(sampled.max(initial=0)))
    return (
        f"the heap grew {times:,} times, by {total / MIB:.3g} MiB in total, although at least as much was free in "
        f"it, in pieces (up to {free / MIB:.3g} MiB); {figures.parts}."
    )


def _largest_free(evidence: Evidence) -> str:
    _, sizes = evidence.series("cuda.largest_free_block_bytes")
    return f", the largest block once only {float(sizes.min()) / MIB:.3g} MiB" if len(sizes) else ""


CAUSE = Cause(id="memory.fragmentation", fixes=FIXES, claim=_claim, sentence=_sentence)
