"""``numerics.denormals``: computed with numbers so small that the processor takes a slow path for each."""

from __future__ import annotations

from functools import partial

import numpy as np

from latfix.formatting import milliseconds, share
from latfix.profilers.causes.cause import Cause, Claim, Ints, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.evidence.work_model import Bools

_UNITS = ("prepare", "compute", "finish")
#: A unit is slow from so many of the model's deviations beyond others, and from this share of a typical one.
_DEVIATIONS, _LEAST_SHARE = 4.0, 0.1
#: Units that met denormals must be slow more often than others by this many standard errors.
_ERRORS = 4.0


def _claim(evidence: Evidence, left: Left) -> Claim:
    """What units that met denormals took beyond what their inputs need, where those are slow more often than others.

    The processor's flag tells that there were some, not how many; a few cost nothing.
    """
    units = {}
    for name in _UNITS:
        met = evidence.met_denormals(name)
        if not met.any() or (name == "compute" and evidence.setup.on_device):
            continue
        excess = left.cpu_excess(name)
        least = evidence.norms.of(f"denormals.{name}", partial(_slow_from, evidence, name, met, excess))
        units[name] = Parts(cpu=np.where(met & (excess > least), excess, 0))
    return Claim(units=units)


def _slow_from(evidence: Evidence, name: str, met: Bools, excess: Ints) -> float:
    """Nanoseconds beyond the model from which a unit that met denormals is slow by them; infinite where none is.

    Where all units met some, nothing tells what these cost.
    """
    model, worked = evidence.expected.models[name], evidence.units[name].wall > 0
    with_them, without = excess[worked & met], excess[worked & ~met]
    if not len(without):
        return np.inf
    least = max(float(np.median(without)) + _DEVIATIONS * 1.4826 * model.residual_mad, _LEAST_SHARE * model.typical)
    chance = (np.count_nonzero(without > least) + 1) / (len(without) + 2)
    expected = chance * len(with_them)
    found = np.count_nonzero(with_them > least)
    return least if found > expected + _ERRORS * np.sqrt(expected * (1 - chance) + 1) else np.inf


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    met = {name: evidence.met_denormals(name) for name in _UNITS}
    shares = ", ".join(f"{share(flags.mean())} of all {name}" for name, flags in met.items() if flags.any())
    return (
        f"the processor's flag says that {shares} calls met denormal numbers (float32: below 1.2e-38), and those "
        f"of {figures.requests} requests were on-CPU for up to {milliseconds(figures.largest_ms)} longer than the "
        f"same work takes without; {own_and_behind(figures)}."
    )


CAUSE = Cause(id="numerics.denormals", fixes=("numerics.flush_denormal",), claim=_claim, sentence=_sentence)
