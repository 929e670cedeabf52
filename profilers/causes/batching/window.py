"""``batching.window``: waits for the batch timer while the worker was free."""

from __future__ import annotations

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, TailFigures, median_and_p99, own_and_propagated
from latfix.profilers.evidence.units import Evidence


def _claim(evidence: Evidence, _left: Left) -> Claim:
    return Claim(own={"window": evidence.window}, usual={"window": 0})


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    waited = evidence.window[evidence.ok]
    return (
        f"the batch timer is {from_ns(evidence.setup.window_ns)}; with a free worker, requests waited "
        f"{median_and_p99(waited)} for more requests to fill the batch; {own_and_propagated(figures)}."
    )


CAUSE = Cause(
    id="batching.window",
    fixes=("batch.window", "batch.adaptive", "batch.continuous"),
    claim=_claim,
    sentence=_sentence,
)
