"""``input.size``: the input needs more work than a typical one. Explained, not a fault."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import (
    FASTER_MODEL,
    Cause,
    Claim,
    Left,
    Parts,
    TailFigures,
    median_and_p99,
    own_and_propagated,
)
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


def _copies(evidence: Evidence) -> dict[str, Parts]:
    """Time that copies of the input and output bytes need on a device."""
    if not evidence.setup.on_device:
        return {}
    return {unit: Parts(cpu=needed_ns(evidence, direction)) for direction, unit in UNIT_OF.items()}


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    model, alone = evidence.expected.models["compute"], evidence.expected.alone[evidence.ok]
    return (
        f"without batching, inputs need {median_and_p99(alone)} of compute (model: R² {model.r2:.2f}); "
        f"{own_and_propagated(figures)}."
    )


CAUSE = Cause(
    id="input.size",
    fixes=(*FASTER_MODEL, "fuse.channels_last", "host.parallel"),
    claim=_claim,
    sentence=_sentence,
    outside=_claim,
)
