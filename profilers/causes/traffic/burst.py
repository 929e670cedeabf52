"""``traffic.burst``: arrivals outran the runner for a moment."""

from __future__ import annotations

from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import FASTER_MODEL, Cause, TailFigures, no_claim
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    return (
        f"with every request at reference cost, {figures.requests} requests would still have waited, at most "
        f"{milliseconds(figures.largest_ms)}, though the backlog did not keep growing "
        f"({evidence.setup.crew})."
    )


CAUSE = Cause(
    id="traffic.burst",
    fixes=("host.workers", "batch.size", "schedule.shortest_expected", *FASTER_MODEL),
    claim=no_claim,
    sentence=_sentence,
)
