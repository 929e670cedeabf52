"""``network.connect``: a connection was opened for the request, including TCP and TLS handshakes."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, median_and_p99, own_and_propagated
from latfix.profilers.evidence.units import Evidence


def _connecting(evidence: Evidence) -> Ints:
    rows = evidence.rows
    return np.asarray(np.maximum(rows["prepare_ns"] - rows["send_ns"], 0), dtype=np.int64)


def _outside(evidence: Evidence, left: Left) -> Claim:
    connecting = np.minimum(_connecting(evidence), left.blocked("prepare"))
    return Claim(units={"prepare": Parts(blocked=connecting)}, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    fresh = evidence.ok & (evidence.rows["new_connection"] > 0)
    took = median_and_p99(_connecting(evidence)[fresh]) if fresh.any() else "no time"
    return (
        f"{np.count_nonzero(fresh)} requests opened a connection, which took {took}; {own_and_propagated(figures)}."
    )


CAUSE = Cause(id="network.connect", sentence=_sentence, outside=_outside)
