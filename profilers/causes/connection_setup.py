"""``network.connect``: a connection had to be opened for the request, with all that TCP and TLS exchange for it."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.causes.cause import (
    Cause,
    Claim,
    Left,
    Parts,
    TailFigures,
    no_claim,
    own_and_behind,
    typical_and_p99,
)
from latfix.profilers.evidence.units import Evidence


def _connecting(evidence: Evidence) -> Ints:
    rows = evidence.rows
    return np.asarray(np.maximum(rows["prepare_ns"] - rows["send_ns"], 0), dtype=np.int64)


def _outside(evidence: Evidence, left: Left) -> Claim:
    asked = np.minimum(_connecting(evidence), left.blocked("prepare"))
    return Claim(units={"prepare": Parts(blocked=asked)}, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    fresh = evidence.ok & (evidence.rows["new_connection"] > 0)
    took = typical_and_p99(_connecting(evidence)[fresh]) if fresh.any() else "no time"
    return f"{np.count_nonzero(fresh)} requests opened a connection, which took {took}; {own_and_behind(figures)}."


CAUSE = Cause(id="network.connect", fixes=(), claim=no_claim, sentence=_sentence, outside=_outside)
