"""``input.size``: the input needs more work than a typical one. Explained, not a fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.formatting import counted
from latfix.profilers.causes.cause import FASTER_MODEL, Cause, Claim, Left, Parts, TailFigures, median_and_p99
from latfix.profilers.evidence.device_idle import UNIT_OF, needed_ns
from latfix.profilers.evidence.expected_work import jackknife_error
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, _left: Left) -> Claim:
    expected = evidence.expected
    typical = expected.typical[np.minimum(evidence.batches["size"], len(expected.typical) - 1)]
    return Claim(
        units=_copies(evidence),
        disturbance=False,
        own={"prepare": expected.prepare, "compute": expected.alone, "finish": expected.finish},
        behind=expected.unpadded - typical,
        doubt=jackknife_error(expected.alone_of - expected.typical_of[:, None]),
    )


def _outside(evidence: Evidence, left: Left) -> Claim:
    """As in a run; without a model, the prefill of inputs so large that it was seen to hold up all streams."""
    own = {"compute": Parts(excess=evidence.own_prefill[evidence.head])}
    return replace(_claim(evidence, left), units=own, disturbance=True)


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    own = evidence.own_prefill[evidence.ok]
    own = own[own > 0]
    if not len(own):
        return _sentence(evidence, figures)
    return (
        f"{counted(len(own), 'request')} had inputs of a size whose prefill held up all streams, and took "
        f"{median_and_p99(own)} to the first output; {figures.parts}."
    )


def _copies(evidence: Evidence) -> dict[str, Parts]:
    """Time that copies of the input and output bytes need on a device."""
    if not evidence.setup.on_device:
        return {}
    return {unit: Parts(cpu=needed_ns(evidence, direction)) for direction, unit in UNIT_OF.items()}


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    """The stage whose work differs most by size."""
    expected, ok = evidence.expected, evidence.ok
    needs = {"compute": expected.alone[ok], "prepare": expected.prepare[ok], "finish": expected.finish[ok]}
    most = max(needs, key=lambda name: float(np.quantile(needs[name], 0.99) - np.median(needs[name])))
    stage = "the time from the first byte to the last" if evidence.setup.outside and most == "finish" else most
    return (
        f"without batching, inputs need {median_and_p99(needs[most])} of {stage} "
        f"(model: R² {expected.models[most].r2:.2f}); {figures.parts}."
    )


CAUSE = Cause(
    id="input.size",
    fixes=(*FASTER_MODEL, "fuse.channels_last", "host.parallel"),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
)
