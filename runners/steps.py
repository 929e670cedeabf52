"""One fix that was considered, what its comparison showed, and the rule that decides about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfix.comparison import Comparison, compare_rounds
from latfix.decision import SCREENING
from latfix.record import RunRecord
from latfix.runners.prediction import Prediction
from latfix.runners.windows import join
from latfix.statistics import RatioEstimate

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
#: A loss of requests beyond which percentiles are over other requests.
_MOST_LOST = 0.01

Pairs = Sequence[tuple[RunRecord, RunRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fix that was considered, and what became of it.

    :param status: of the contract: kept, rejected, no_gain, not_effective, undecided, skipped.
    :param comparison: without and with it, on the screening windows.
    :param together: ids of the fixes that were tried in the same replays; empty where it was tried alone.
    :param prediction: what the forecast said before the replay, on the windows.
    :param accuracy: with it.
    :param scored: everything that measuring the accuracy told, where it was measured.
    :param verified: the evidence that it took effect.
    :param adds: with all kept fixes over all but this one, on the windows: what it adds to the others in the end.
    :param pairs: the replays that it was judged by, as folders of the optimization's: without and with it.
    """

    fix: str
    status: str
    reason: str
    comparison: Comparison | None = None
    together: tuple[str, ...] = ()
    prediction: Prediction | None = None
    accuracy: float | None = None
    scored: Mapping[str, Any] = field(default_factory=dict)
    verified: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    adds: Comparison | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def predicted_p99_ms(self) -> float | None:
        """What p99 of the windows was predicted to be with it; ``None`` where it was not replayed alone."""
        if self.prediction is None or self.comparison is None or self.together:
            return None
        return self.comparison.before.latency_ms["p99"] * self.prediction.ratio["p99"]

    def prediction_error(self, key: str) -> float | None:
        """How far the predicted ratio of a statistic was from the one that was measured, as a share of this."""
        if self.prediction is None or self.comparison is None or self.together:
            return None
        measured = self.comparison.ratio[key].value
        return abs(self.prediction.ratio[key] / measured - 1.0) if measured > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The entry of ``steps`` in ``optimization.json``."""
        compared = self.comparison
        ratio = compared.ratio if compared is not None else {}
        return {
            "fix": self.fix,
            "status": self.status,
            "reason": self.reason,
            "ratio": {key: estimate.to_json() for key, estimate in ratio.items()},
            "predicted_p99_ms": self.predicted_p99_ms,
            "p99_ms": compared.after.latency_ms["p99"] if compared is not None else None,
            "predicted": None if self.prediction is None else self.prediction.to_json(),
            "adds": None if self.adds is None else {key: each.to_json() for key, each in self.adds.ratio.items()},
            "accuracy": self.accuracy,
            "scored": dict(self.scored),
            "verified": self.verified,
            "together": list(self.together),
            "settings": self.settings,
        }


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
    if tail_lo > 1 or (mean_lo > 1 and not tail_hi < 1):
        return "rejected", f"worse: {said}"
    if tail_hi < 1 or (mean_hi < 1 and tail.value <= 1):
        return "kept", said
    if tail.hi < _LARGE or (mean.hi < _LARGE and tail.value <= 1):
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
    return f"x{ratio.value:.2f} [{ratio.lo:.2f}, {ratio.hi:.2f}]"
