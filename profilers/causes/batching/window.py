"""``batching.window``: waited for the batch timer while the worker was free."""

from __future__ import annotations

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, TailFigures, own_and_behind, typical_and_p99
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, _left: Left) -> Claim:
    return Claim(own={"window": evidence.window}, usual={"window": 0})


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    waited = evidence.window[evidence.ok]
    return (
        f"the batch timer is {from_ns(evidence.setup.window_ns)}; with the worker free, requests waited "
        f"{typical_and_p99(waited)} for more to join; {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="batching.window",
    fixes=("batch.window", "batch.adaptive", "batch.continuous"),
    claim=_claim,
    sentence=_sentence,
)
