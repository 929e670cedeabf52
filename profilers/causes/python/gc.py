"""``python.gc``: the garbage collector ran in the request's thread, or in another thread that held the lock."""

from __future__ import annotations

import numpy as np

from latfix.formatting import counted, from_ns
from latfix.profilers.causes.cause import Cause, Left, Parts, TailFigures, in_units, reads
from latfix.profilers.evidence.outside.service_process import COLLECTED, COLLECTIONS, CPU
from latfix.profilers.evidence.units import OUTSIDE_UNITS, Evidence


@in_units("intake", "prepare", "lag", "collate", "compute", "finish")
def _claim(evidence: Evidence, left: Left, name: str) -> Parts:
    pauses, unit = evidence.pauses["gc"], evidence.units[name]
    own = pauses.inside(*unit.span, unit.thread, worker=name != "prepare")
    elsewhere = np.maximum(pauses.everywhere.covered(*unit.span) - own, 0)
    # Another thread's collection costs this one only blocked time, beyond its usual waits and declared spans.
    held_up = np.minimum(elsewhere, evidence.beyond_usual(name, left.blocked[name]))
    # A collection in an unknown thread may be this one's: on-CPU time beyond its inputs' need.
    unplaced = np.maximum(pauses.unplaced.covered(*unit.span) - held_up, 0)
    if name == "compute" and evidence.setup.on_device:
        own = np.minimum(own, left.cpu_excess(name))  # the device computed on during the rest
    return Parts(cpu=own + np.minimum(unplaced, left.cpu_excess(name)), blocked=held_up)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    pauses = evidence.pauses["gc"]
    return (
        f"{pauses.count} collections ran, the longest {from_ns(pauses.longest_ns)}, and delayed {figures.requests} "
        f"requests on their own path; {figures.parts_and_largest}."
    )


@in_units(*OUTSIDE_UNITS)
def _outside(evidence: Evidence, _left: Left, name: str) -> Parts:
    """A JVM's collections, and standstills with one busy thread in which metrics count one."""
    span = evidence.units[name].span
    stopped = np.rint(evidence.process.collected.grown(*span)).astype(np.int64)
    return Parts(excess=stopped + evidence.locks.collected.covered(*span))


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    collected, jvm = evidence.locks.collected, evidence.process.collected
    if jvm.known:
        return (
            f"the JVM's threads that collect garbage (VM Thread, GC Thread) computed for {from_ns(jvm.total)}; "
            f"all its other threads are stopped meanwhile; {figures.parts_and_largest}."
        )
    return (
        f"{counted(len(collected), 'time')} one thread of the service computed and all requests stood still, for up "
        f"to {from_ns(collected.longest_ns)}, at the time of a full collection in the service's metrics "
        f"(python_gc_collections_total); {figures.parts_and_largest}."
    )


CAUSE = Cause(
    id="python.gc",
    fixes=("gc.freeze",),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    outside_needs=lambda evidence: reads(CPU)(evidence) and reads(COLLECTED, *COLLECTIONS)(evidence),
)
