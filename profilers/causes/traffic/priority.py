"""``traffic.priority``: overtaken by requests of higher priority."""

from __future__ import annotations

from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import Cause, TailFigures, no_claim
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    classes = len(set(evidence.priority[evidence.ok].tolist()))
    return (
        f"traffic has {classes} priorities; against the order of arrival, {figures.requests} requests moved in the "
        f"queue, at most {milliseconds(figures.largest_ms)} later."
    )


CAUSE = Cause(
    id="traffic.priority",
    fixes=("schedule.priority",),
    claim=no_claim,
    sentence=_sentence,
)
