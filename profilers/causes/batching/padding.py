"""``batching.padding``: time computed on padding."""

from __future__ import annotations

from latfix.profilers.causes.cause import Cause, Claim, Left, TailFigures, own_and_propagated
from latfix.profilers.evidence.expected_work import jackknife_error
from latfix.profilers.evidence.units import Evidence, spread
from latfix.queueing.length_buckets import padding_share


def _claim(evidence: Evidence, _left: Left) -> Claim:
    padding = evidence.expected.padded - evidence.expected.unpadded
    error = spread(jackknife_error(evidence.expected.padded_of - evidence.expected.unpadded_of), evidence.batch_of)
    return Claim(own={"compute": evidence.of_batch(padding)}, behind=padding, doubt=error)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    share = padding_share(evidence.batches)
    return f"{100 * share:.0f} % of the computed elements were padding; {own_and_propagated(figures)}."


CAUSE = Cause(id="batching.padding", fixes=("batch.bucket", "batch.size"), claim=_claim, sentence=_sentence)
