"""Whether the screening windows speak for a fix: the rule that decides about it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfix.results.comparison import Comparison, compare_rounds
from latfix.run_record.run_record import RunRecord
from latfix.runners.optimize.screening_windows import join
from latfix.statistics.decision import SCREENING, RatioEstimate

#: A step whose ratios both lie within this of 1 makes no difference worth a setting.
SMALLEST = 0.05
#: What screening decides by, beside the mean. The windows lie where the tail is, so that a percentile of
#: theirs stands for a higher one of the whole traffic, and rests on enough requests.
SCREENED = "p95"
#: Requests of a fresh service that a cold fix is judged by, and how clear its effect must be.
_FIRST = 8
_CLEARLY = 1.25
#: A change whose 95 % interval lies beyond this is taken for real although the wider bounds hold 1: a service and
#: itself do not differ so much, and the final replay holds it to account.
_LARGE = 0.8
#: A loss of requests that nothing makes up for.
_MOST_LOST = 0.01


Pairs = Sequence[tuple[RunRecord, RunRecord]]


def compare_windows(pairs: Pairs, seed: int) -> Comparison:
    """All windows as one round: they differ by their traffic, not by the chance that rounds measure."""
    without, record = (join(arm) for arm in zip(*pairs, strict=True))
    return compare_rounds([without], [record], seed=seed, smallest=SMALLEST, rule=SCREENING)


def decide(comparison: Comparison) -> tuple[str, str]:
    """Status and reason of a step, by the ratios of the windows' tail and of the mean."""
    tail, mean = comparison.ratio[SCREENED], comparison.ratio["mean"]
    said = f"{SCREENED} {shown(tail)}, mean {shown(mean)}"
    lost = comparison.before.success - comparison.after.success
    if lost > _MOST_LOST:
        return "rejected", f"{lost:.1%} more of the requests did not end ok; {said}"
    (tail_lo, tail_hi), (mean_lo, mean_hi) = tail.bounds, mean.bounds
    # The mean is of those that ended ok: a service that loses any more does not gain by it.
    leans = tail.value <= 1 and lost <= 0
    if tail_lo > 1 or (mean_lo > 1 and not tail_hi < 1):
        return "rejected", f"worse: {said}"
    if tail_hi < 1 or (mean_hi < 1 and leans):
        return "kept", said
    if tail.hi < _LARGE or (mean.hi < _LARGE and leans):
        return "kept", f"a large gain: {said}"
    if tail.lo > 1 / _LARGE or (mean.lo > 1 / _LARGE and tail.value >= 1):
        return "rejected", f"worse: {said}"
    if all(1 - SMALLEST <= end <= 1 + SMALLEST for end in (tail_lo, tail_hi, mean_lo, mean_hi)):
        return "no_gain", f"no difference larger than {SMALLEST:.0%}: {said}"
    return "undecided", f"the data cannot tell: {said}"


def decide_cold(pairs: Pairs) -> tuple[str, str]:
    """Status and reason of a fix that acts on a service's first requests, by those of each fresh process.

    What a first use costs is much the same at each start, so that a few starts tell: the fix is kept where the
    first requests together were at least a fifth faster in every pair.
    """
    totals = [tuple(_first_ms(record) for record in pair) for pair in pairs]
    said = "; ".join(f"{without:.3g} -> {with_it:.3g} ms" for without, with_it in totals)
    reason = f"the first {_FIRST} requests of a fresh service took, together, {said}"
    ratios = [with_it / without if without > 0 else 1.0 for without, with_it in totals]
    if all(ratio < 1 / _CLEARLY for ratio in ratios):
        return "kept", reason
    if all(ratio > _CLEARLY for ratio in ratios):
        return "rejected", f"worse: {reason}"
    return "no_gain", f"no clear difference at every start: {reason}"


def _first_ms(record: RunRecord) -> float:
    rows = record.requests
    measured = np.flatnonzero(record.measured)
    first = measured[np.argsort(rows["arrival_ns"][measured], kind="stable")][:_FIRST]
    return float(rows["latency_ns"][first].sum()) / 1e6


def shown(ratio: RatioEstimate) -> str:
    """A ratio with its interval, as people read it."""
    if ratio.lost:
        return f"{'above' if ratio.value > 1 else 'below'} 1, by requests that were lost"
    return f"x{ratio.value:.2f} [{ratio.lo:.2f}, {ratio.hi:.2f}]"
