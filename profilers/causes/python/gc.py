"""``python.gc``: the garbage collector ran, in the request's thread or while it held the interpreter lock."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns, milliseconds
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, left: Left) -> Claim:
    pauses = evidence.pauses["gc"]
    units = {}
    for name in ("intake", "prepare", "lag", "collate", "compute", "finish"):
        unit = evidence.units[name]
        own = pauses.inside(unit.start, unit.end, unit.thread, worker=name != "prepare")
        elsewhere = np.maximum(pauses.seen(unit.start, unit.end) - own, 0)
        # Another thread's collection costs this one only what it was kept from running: time blocked beyond
        # what it always waits for and beyond its declared spans.
        held_up = np.minimum(elsewhere, evidence.beyond_usual(name, left.blocked(name)))
        # A collection whose thread is not known may have been this one's: on-CPU beyond what its inputs need.
        unplaced = np.maximum(pauses.unplaced.covered(unit.start, unit.end) - held_up, 0)
        if name == "compute" and evidence.setup.on_device:
            own = np.minimum(own, left.cpu_excess(name))  # the device hid the rest: it went on meanwhile
        units[name] = Parts(cpu=own + np.minimum(unplaced, left.cpu_excess(name)), blocked=held_up)
    return Claim(units=units)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    pauses = evidence.pauses["gc"]
    return (
        f"{pauses.count} collections, the longest {from_ns(pauses.longest_ns)}; they ran within "
        f"{figures.requests} requests, at most {milliseconds(figures.largest_ms)} in one, "
        f"and {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="python.gc",
    fixes=("gc.freeze",),
    claim=_claim,
    sentence=_sentence,
)
