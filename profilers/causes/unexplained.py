"""``unexplained``: what no cause claims. Never clipped, always shown."""

from __future__ import annotations

from latfix.profilers.causes.cause import Cause, TailFigures, no_claim, own_and_behind, typical_and_p99
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    blocked = evidence.of_batch(evidence.units["compute"].blocked)[evidence.ok]
    return (
        f"no probe accounts for it: {own_and_behind(figures)}; blocked time within compute was "
        f"{typical_and_p99(blocked)}."
    )


CAUSE = Cause(
    id="unexplained",
    fixes=(),
    claim=no_claim,
    sentence=_sentence,
)
