"""``batching.size``: longer compute because others shared the batch, and a finish after theirs."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_propagated
from latfix.profilers.evidence.expected_work import jackknife_error
from latfix.profilers.evidence.run_baselines import quiet_median
from latfix.profilers.evidence.units import Evidence, spread


def _claim(evidence: Evidence, _left: Left) -> Claim:
    expected = evidence.expected
    finish, quiet = evidence.units["finish"].wall, evidence.quiet
    turn = evidence.ahead_in_batch * evidence.norms.of("typical_finish", lambda: quiet_median(finish, quiet))
    size = np.minimum(evidence.batches["size"], len(expected.typical) - 1)
    # A batch delays the requests behind it only if it takes longer than its members one by one.
    one_by_one = size * expected.typical[min(1, len(expected.typical) - 1)]
    # The reference of the three parts of modelled compute is the median of their sum, not the sum of their medians.
    # The difference is this cause's usual part.
    unpadded, padded = evidence.of_batch(expected.unpadded), evidence.of_batch(expected.padded)
    typical_batch = evidence.norms.of("typical_batch", lambda: quiet_median(padded, quiet))
    others = evidence.norms.of(
        "typical_batch_by_parts",
        lambda: quiet_median(expected.alone, quiet) + quiet_median(padded - unpadded, quiet),
    )
    return Claim(
        own={"compute": unpadded - expected.alone, "finish_wait": turn},
        usual={"compute": typical_batch - others},
        behind=np.maximum(expected.typical[size] - one_by_one, 0),
        doubt=jackknife_error(_shared(evidence)),
    )


def _shared(evidence: Evidence) -> Floats:
    """``(folds, n)``: cost of sharing the batch by request, by the fit without each fold."""
    at_member = [spread(of_fold, evidence.batch_of) for of_fold in evidence.expected.unpadded_of]
    return np.asarray(np.stack(at_member) - evidence.expected.alone_of, dtype=np.float64)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    size = evidence.of_batch(evidence.batches["size"])[evidence.ok]
    return (
        f"the median request was in a batch of {np.median(size):.0f}, the largest batch had {size.max()}; beyond a "
        f"typical batch, {own_and_propagated(figures)}."
    )


def _outside(evidence: Evidence, left: Left) -> Claim:
    """Standstills of all streams that ended with a new request's first output: its prefill in their batch."""
    still, unit = evidence.standstills, evidence.units["finish"]
    wanted = np.where(still.newcomers, 0, still.prefill.covered(unit.start, unit.end))
    return Claim(units={"finish": Parts(cpu=np.minimum(wanted, left.cpu_excess("finish")))})


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    still = evidence.standstills
    return (
        f"all streams paused together {len(still.prefill)} times, for up to {from_ns(still.longest_ns)}, until a new "
        f"request's first output: its prefill shared their batch; {own_and_propagated(figures)}."
    )


CAUSE = Cause(
    id="batching.size",
    fixes=("batch.size", "batch.bucket", "batch.adaptive", "batch.continuous"),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
)
