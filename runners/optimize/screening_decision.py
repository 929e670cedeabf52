"""The rule that keeps or rejects a fix by its replays of the screening windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from latfix.formatting import interval, percent
from latfix.formatting import ratio as ratio_words
from latfix.gates.evaluate import MOST_LOST
from latfix.profilers.fair_rounds import FairRounds
from latfix.results.comparison import Comparison, compare_rounds
from latfix.run_record.run_record import RunRecord
from latfix.runners.optimize.screening_windows import join
from latfix.stages import Status
from latfix.statistics.decision import SCREENING, RatioEstimate
from latfix.statistics.latency_summary import summarize_ms

#: Smallest change of tail and mean that is worth a setting.
SMALLEST = 0.05
#: Percentile that decides, together with the mean. The windows lie where the tail is, so their p95 represents a
#: higher percentile of the whole traffic, and rests on enough requests.
SCREENED = "p95"
#: Number of first requests of a fresh service on which a cold fix is judged, and the ratio that is a clear effect.
_FIRST = 8
_CLEARLY = 1.25
#: A change whose 95 % interval lies beyond this counts although the wider bounds include 1: a service does not differ
#: from itself that much, and the final replay tests it.
_LARGE = 0.8

Pairs = Sequence[tuple[RunRecord, RunRecord]]


def joined(pairs: Pairs) -> tuple[RunRecord, RunRecord]:
    """All windows of either arm as one record."""
    without, record = (join(arm) for arm in zip(*pairs, strict=True))
    return without, record


def counted_windows(pairs: Pairs) -> tuple[Pairs, str]:
    """The windows in which nothing else on the machine favored an arm, all if there is none; and what is left out.

    A neighbor beside one arm would decide the trial, and teach the forecast a pace that the service does not have.
    """
    fair = FairRounds()
    for pair in pairs:
        fair.add(*pair)
    if not fair.counted:
        return pairs, ""
    return [pairs[k] for k in fair.counted], "; ".join(fair.notes())


def compare_windows(without: RunRecord, record: RunRecord, seed: int) -> Comparison:
    """Compare all windows as one round: they differ by their traffic, not by chance as rounds do."""
    return compare_rounds([without], [record], seed=seed, smallest=SMALLEST, rule=SCREENING)


def decide(comparison: Comparison, goal: str = SCREENED) -> tuple[str, str]:
    """Status and reason of a step, by the ratios of the windows' tail and of the mean.

    :param goal: the statistic to minimize; if it is the mean or the median, it takes the place of the tail.
    """
    key = goal if goal in ("mean", "p50") else SCREENED
    tail, mean = comparison.ratio[key], comparison.ratio["mean"]
    figures = ", ".join(f"{each} {shown(comparison.ratio[each])}" for each in dict.fromkeys((key, "mean")))
    lost = comparison.before.success - comparison.after.success
    if lost > MOST_LOST:
        return "rejected", f"{100 * lost:.1f} % more of the requests did not end ok; {figures}"
    (tail_lo, tail_hi), (mean_lo, mean_hi) = tail.bounds, mean.bounds
    # The mean covers only requests that ended ok: losing more of them must not count as a gain.
    mean_counts, against = tail.value <= 1 and lost <= 0, not comparison.answered_more
    tail_counts = key != "mean" or mean_counts
    if tail_lo > 1 or (mean_lo > 1 and not tail_hi < 1 and against):
        return "rejected", f"worse: {figures}"
    if (tail_hi < 1 and tail_counts) or (mean_hi < 1 and mean_counts):
        return "kept", figures
    if (tail.hi < _LARGE and tail_counts) or (mean.hi < _LARGE and mean_counts):
        return "kept", f"a large gain: {figures}"
    if tail.lo > 1 / _LARGE or (mean.lo > 1 / _LARGE and tail.value >= 1 and against):
        return "rejected", f"worse: {figures}"
    if all(1 - SMALLEST <= end <= 1 + SMALLEST for end in (tail_lo, tail_hi, mean_lo, mean_hi)):
        return "no_gain", f"no difference larger than {percent(SMALLEST)}: {figures}"
    return "undecided", f"the data cannot tell: {figures}"


def waited_ms(record: RunRecord) -> dict[str, float]:
    """Latencies in which requests that timed out count as slow as they had waited.

    Those of the others alone would be lower the more requests time out.
    """
    status = record.requests["status"]
    kept = record.measured & ((status == Status.OK) | (status == Status.TIMEOUT))
    return summarize_ms(record.requests["latency_ns"][kept])


def decide_cold(pairs: Pairs) -> tuple[str, str]:
    """Status and reason of a cold fix, by the first requests of each fresh process.

    The cost of a first use hardly varies between starts, so a few starts are enough: the fix is kept if the first
    requests together were at least a fifth faster in every pair, or if fewer of them were lost.
    """
    firsts = [(_first(without), _first(with_it)) for without, with_it in pairs]
    times = "; ".join(f"{_words(*without)} -> {_words(*with_it)}" for without, with_it in firsts)
    reason = f"the first {_FIRST} requests of a fresh service together took {times}"
    ratios = [_ratio(without, with_it) for without, with_it in firsts]
    if all(ratio < 1 / _CLEARLY for ratio in ratios):
        return "kept", reason
    if all(ratio > _CLEARLY for ratio in ratios):
        return "rejected", f"worse: {reason}"
    return "no_gain", f"no clear difference at every start: {reason}"


def _first(record: RunRecord) -> tuple[int, float]:
    """Of the first requests, how many did not end ok, and the milliseconds that the others took together."""
    rows = record.requests
    measured = np.flatnonzero(record.measured)
    first = measured[np.argsort(rows["arrival_ns"][measured], kind="stable")][:_FIRST]
    ok = rows["status"][first] == Status.OK
    return int(np.count_nonzero(~ok)), float(rows["latency_ns"][first][ok].sum()) / 1e6


def _ratio(without: tuple[int, float], with_it: tuple[int, float]) -> float:
    """A request that was lost at once is not a fast one: it outweighs any time."""
    if without[0] != with_it[0]:
        return math.inf if with_it[0] > without[0] else 0.0
    return with_it[1] / without[1] if without[1] > 0 else 1.0


def _words(lost: int, took_ms: float) -> str:
    return f"{took_ms:.3g} ms" + (f" ({lost} lost)" if lost else "")


def shown(ratio: RatioEstimate) -> str:
    """A ratio with its interval, for messages."""
    if ratio.lost:
        return f"{'above' if ratio.value > 1 else 'below'} 1, by requests that were lost"
    if not math.isfinite(ratio.value):
        return "unknown"
    return f"{ratio_words(ratio.value)} {interval((ratio.lo, ratio.hi))}"
