"""``traffic.overload``: arrivals outran the runner for good."""

from __future__ import annotations

from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import FASTER_MODEL, Cause, TailFigures, no_claim
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    return (
        f"with every request at reference cost, {figures.requests} requests would still have waited, at most "
        f"{milliseconds(figures.largest_ms)}: load stayed at or above the capacity of {evidence.setup.crew}, "
        "and the backlog kept growing."
    )


CAUSE = Cause(
    id="traffic.overload",
    fixes=("host.workers", "batch.size", "admit.limit", "admit.shed", *FASTER_MODEL),
    claim=no_claim,
    sentence=_sentence,
)
