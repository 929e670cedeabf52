"""``numerics.denormals``: numbers so small that the processor handles each on a slow path."""

from __future__ import annotations

from latfix.formatting import milliseconds, share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.causes.marked_units import slow_by_mark
from latfix.profilers.evidence.units import Evidence

_UNITS = ("prepare", "compute", "finish")


def _claim(evidence: Evidence, left: Left) -> Claim:
    """The processor's flag shows that there were denormals, not how many; a few cost nothing."""
    met = {name: evidence.met_denormals(name) for name in _UNITS if name != "compute" or not evidence.setup.on_device}
    slow = {
        name: slow_by_mark(evidence, left, name, flags, "denormals") for name, flags in met.items() if flags.any()
    }
    return Claim(units={name: Parts(cpu=beyond) for name, beyond in slow.items()})


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    met = {name: evidence.met_denormals(name) for name in _UNITS}
    shares = " and ".join(f"{share(flags.mean())} of {name}" for name, flags in met.items() if flags.any())
    return (
        f"the processor's flag shows denormal numbers (float32: below 1.2e-38) in {shares}; {figures.requests} of "
        f"these requests were on-CPU for longer than the same work takes without them, by up to "
        f"{milliseconds(figures.largest_ms)}; {figures.parts}."
    )


CAUSE = Cause(id="numerics.denormals", fixes=("numerics.flush_denormal",), claim=_claim, sentence=_sentence)
