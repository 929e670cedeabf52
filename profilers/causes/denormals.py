"""``numerics.denormals``: computed with numbers so small that the processor takes a slow path for each."""

from __future__ import annotations

from latfix.formatting import milliseconds, share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.causes.marked_units import slow_by_mark
from latfix.profilers.evidence.units import Evidence

_UNITS = ("prepare", "compute", "finish")


def _claim(evidence: Evidence, left: Left) -> Claim:
    """The processor's flag tells that there were some, not how many; a few cost nothing."""
    units = {}
    for name in _UNITS:
        met = evidence.met_denormals(name)
        if met.any() and not (name == "compute" and evidence.setup.on_device):
            units[name] = Parts(cpu=slow_by_mark(evidence, left, name, met, "denormals"))
    return Claim(units=units)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    met = {name: evidence.met_denormals(name) for name in _UNITS}
    shares = " and ".join(f"{share(flags.mean())} of {name}" for name, flags in met.items() if flags.any())
    return (
        f"denormal numbers (float32: below 1.2e-38) were met in {shares} by the processor's flag, and of those that "
        f"did {figures.requests} requests were on-CPU for longer than the same work takes without, by at most "
        f"{milliseconds(figures.largest_ms)}; {own_and_behind(figures)}."
    )


CAUSE = Cause(id="numerics.denormals", fixes=("numerics.flush_denormal",), claim=_claim, sentence=_sentence)
