"""Decision bounds of a ratio of two arms, from two tests that must both reject a factor.

- *Within rounds* a score tests if the arms still differ once the new arm's latencies are divided by the
  factor: for the mean by each request's distance from the common mean, for a percentile by whether it lies
  beyond the percentile of both arms together (with a ramp around it). Scores are summed over blocks of
  neighbors, new less base, so that a request that is slow in both arms (large input, burst in the traffic)
  cancels; the statistic is the sum of the blocks' scores over the root of the sum of their squares.
  If an arm is compared with itself, each block's score is as likely positive as negative, and such
  self-normalized sums have tails no heavier than the normal distribution's, for any block sizes (Efron,
  1969): a pause that hit one arm by chance, with the twenty requests that waited behind it, counts as one event.
  Eight events, all on one side, are the least that decides at half a per cent.
- *Between rounds*, from five on, Student's t of the logarithms of the rounds' ratios: only this covers the effect
  of a restart or a neighbor on one arm's whole replay. Rounds that compare an arm with itself are symmetric
  about zero, which keeps the test at or below its level with heavy tails. Fewer rounds cannot show how
  much restarts differ; a standard deviation is assumed for them.

A percentile's score is bounded: what one arm happened not to show cannot be claimed to be absent, and an end
of the bounds may be open (0 or infinite). The first test is Woodruff's method (1952) for a percentile and Fieller's
(1954) for a ratio of means, on blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats
from latfix.statistics.block_bootstrap import block_length, statistic
from latfix.statistics.decision import FINAL, Rule
from latfix.statistics.distributions import normal_quantile, student_t

#: With five fresh processes per arm, their order alone is one of 252 (2/252 = 0.8 %): from here on no effect of
#: restarts is assumed.
FREE_OF_ALLOWANCE = 5
#: With a growing backlog, the effect of a restart on speed is amplified this much in latency: a few per cent decide
#: whether work piles up (verified by the world "overloaded" of benchmarks/gates/gates.py).
_AMPLIFIED = 7.0
#: Degrees of freedom of the assumed effect of restarts, in addition to the rounds' own.
_KNOWN = 4
#: From this many rounds on, their own spread sets a lower limit, too.
VARIES_FROM = 3
#: If every round differs to the same side by this many times the assumed effect of a restart with piled-up work
#: (three times as fast), the spread among rounds is irrelevant: a service that is overloaded before and not after
#: never repeats itself. By chance, three rounds do so once in 230 comparisons if restarts have twice the effect.
_CLEAR = 2.25
#: A round's ratio beyond this is evidence of no more than this.
_FAR = math.log(5)
#: Fewer requests do not show their dependence.
_LEAST_SEEN = 100
_FARTHEST = math.log(1e4)
_FIRST_STEP = 0.02
_HALVINGS = 9


@dataclass(frozen=True, slots=True)
class Rounds:
    """Interleaved rounds of two arms, laid out for scoring.

    :param base: ``(n,)`` all rounds of the base in a row; NaN if a request did not end ``ok``.
    :param new: ``(m,)`` the same for the other arm.
    :param base_rounds: where each round starts in ``base``; ``new_rounds`` likewise.
    :param paired: ``n == m``, request by request in every round.
    :param blocks: where blocks start: in the paired series, or in ``base``; ``new_blocks`` in ``new``.
    :param backlog: in some replay latencies depend on one another over an eighth of it or more, as with piled-up
        work: it is hardly more than one event.
    """

    base: Floats
    new: Floats
    base_rounds: npt.NDArray[np.intp]
    new_rounds: npt.NDArray[np.intp]
    paired: bool
    blocks: npt.NDArray[np.intp]
    new_blocks: npt.NDArray[np.intp]
    backlog: bool = False
    _known: dict[float | None, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, base: Sequence[Floats], new: Sequence[Floats], *, paired: bool) -> Rounds:
        """Lay rounds out; blocks end with a round.

        The block length fits the dependence of what is scored: the arms' difference if they are paired (a burst that
        is slow in both is no dependence), each arm by itself if not.
        """
        together = paired and all(len(first) == len(second) for first, second in zip(base, new, strict=True))
        lengths = [_block(first, second, together) for first, second in zip(base, new, strict=True)]
        return cls(
            np.concatenate(base),
            np.concatenate(new),
            _starts([len(part) for part in base]),
            _starts([len(part) for part in new]),
            together,
            _block_starts([len(part) for part in base], lengths),
            _block_starts([len(part) for part in new], lengths),
            any(_piled_up(series) for series in (*base, *new)),
        )

    @property
    def count(self) -> int:
        """The number of rounds."""
        return len(self.base_rounds)

    def log_ratio(self, q: float | None) -> float:
        """The logarithm of new over base, all rounds together; NaN if an arm has no latency above 0."""
        return _log_ratio(self.base, self.new, q)

    def log_ratios(self, q: float | None) -> Floats:
        """The same of each round, ``(rounds,)``."""
        if q not in self._known:
            arms = np.split(self.base, self.base_rounds[1:]), np.split(self.new, self.new_rounds[1:])
            self._known[q] = log_ratios(*arms, q)
        return self._known[q]

    def score(self, q: float | None, shift: float) -> float:
        """How much larger the new arm's scores are, as a normal deviate; at most the root of the number of blocks.

        :param q: the percentile as a fraction; ``None`` for the mean.
        :param shift: the logarithm of the hypothetical factor by which the new arm is slower.
        """
        # Half of the factor on either side keeps the score symmetric in the arms.
        base, new = self.base * math.exp(shift / 2), self.new * math.exp(-shift / 2)
        ours, theirs = _scores(base, new, q)
        if self.paired:
            blocks = _sums(theirs - ours, self.blocks)
            total, square = float(blocks.sum()), float(blocks @ blocks)
        else:
            first, second = _sums(ours, self.blocks), _sums(theirs, self.new_blocks)
            total, square = float(second.sum() - first.sum()), float(first @ first + second @ second)
        return total / math.sqrt(square) if square > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Lean:
    """Replacement for an open end of a percentile's bounds, on the side on which the mean is decided.

    Slow requests come in a few stretches of the traffic, too few to decide by their signs alone, however large the
    difference. If the mean, which uses all requests, is decided, and the percentile's own interval agrees, a wider
    interval of it bounds that end. A service and itself then only differ if their means do.

    :param upper: the mean is lower, so that the upper end may be bounded; otherwise the lower one.
    :param half: half of the width of that interval, on the logarithm.
    """

    upper: bool
    half: float


def decision_bounds(rounds: Rounds, q: float | None, rule: Rule, lean: Lean | None = None) -> tuple[float, float]:
    """Bounds of the new arm's statistic over the base's, at ``rule.level``.

    With fewer than :data:`FREE_OF_ALLOWANCE` rounds ``rule.restart_sd`` is allowed for restarts.

    :param q: the percentile as a fraction; ``None`` for the mean.
    :param lean: for a percentile, if the mean is decided.
    :returns: the ratio's bounds, 0 and infinity for open ends, NaN if unknown.
    """
    center, each = rounds.log_ratio(q), rounds.log_ratios(q)
    if not (math.isfinite(center) and np.isfinite(each).all()):
        return (math.nan, math.nan)
    below, above = (_reach(rounds, q, center, side, rule.level) for side in (-1, 1))
    if rounds.count >= FREE_OF_ALLOWANCE:
        least, most = round_bounds(each, rule.level)
        # If the difference lies in one stretch of each replay (a backlog that grew), scores never bound it; the
        # rounds are independent events.
        lo = least if math.isinf(below) else min(center - below, least)
        hi = most if math.isinf(above) else max(center + above, most)
    else:
        allowed = allowance(each, rule, amplified=rounds.backlog)
        if lean is not None and lean.upper and math.isinf(above):
            above = lean.half
        elif lean is not None and not lean.upper and math.isinf(below):
            below = lean.half
        if rounds.backlog and rule.restart_sd > 0:
            # The unbounded part is one event per replay, and larger than any effect of a restart.
            below, above = (0.0 if math.isinf(reach) else reach for reach in (below, above))
        # From three rounds on the variation of their ratios includes the chance within them.
        joined = math.hypot if rounds.count < VARIES_FROM else max
        lo, hi = center - joined(below, allowed), center + joined(above, allowed)
    return (math.exp(lo), math.exp(hi) if math.isfinite(hi) else math.inf)


def between(each: Floats, level: float, *, fitted: int = 0) -> tuple[float, float]:
    """Mean of the rounds' log ratios, and its uncertainty (Student's t, both sides).

    :param fitted: degrees of freedom used by a control.
    """
    spread = float(each.std(ddof=1 + fitted)) / math.sqrt(len(each))
    return float(each.mean()), student_t(1.0 - level, len(each) - 1 - fitted) * spread


def round_bounds(each: Floats, level: float) -> tuple[float, float]:
    """Bounds of the rounds' log ratio by Student's t, of the ratios as they are or limited to a fifth or five.

    A service that is overloaded before and not after never repeats itself: rounds of 0.02 to 0.3 are all far better,
    and vary by more than five of them could decide. How much a round is beyond five times as fast is therefore left
    out, if that decides more; the rest varies as much as restarts with piled-up work at least.
    """
    mean, half = between(each, level)
    bounds = []
    for side, plain in ((-1, half - mean), (1, mean + half)):
        limited = np.maximum(side * each, -_FAR)
        deviation = max(float(limited.std(ddof=1)), _AMPLIFIED * FINAL.restart_sd)
        reach = student_t(1.0 - level, len(each) - 1) * deviation / math.sqrt(len(each))
        bounds.append(side * min(plain, float(limited.mean()) + reach))
    return bounds[0], bounds[1]


def allowance(each: Floats, rule: Rule, *, amplified: bool = False) -> float:
    """The allowance for restarts in the logarithm of the ratio of a few rounds, to either side.

    As if :data:`_KNOWN` degrees of freedom had shown ``rule.restart_sd`` before the rounds added theirs (a
    moderated t, Smyth, 2004). From :data:`VARIES_FROM` rounds on it is at least Student's t of the rounds alone at
    twice the level, so that larger effects of restarts do not cause too many errors either, unless every round is
    clear by itself (:data:`_CLEAR`).

    :param each: the rounds' log ratios.
    :param amplified: work piles up, so that a restart may have :data:`_AMPLIFIED` times the effect.
    """
    if rule.restart_sd <= 0:
        return 0.0
    known = rule.restart_sd * (_AMPLIFIED if amplified else 1.0)
    count = len(each)
    freedom = _KNOWN + count - 1
    limited = np.clip(each, -_FAR, _FAR)
    squares = float(((limited - limited.mean()) ** 2).sum())
    deviation = math.sqrt((_KNOWN * known**2 + squares) / freedom)
    allowed = student_t(1.0 - rule.level, freedom) * deviation / math.sqrt(count)
    clear = min(float(each.max()), -float(each.min())) < -_CLEAR * _AMPLIFIED * rule.restart_sd
    return allowed if clear or count < VARIES_FROM else max(allowed, between(each, 2 * rule.level)[1])


def _reach(rounds: Rounds, q: float | None, center: float, side: int, level: float) -> float:
    """The distance from ``center``, to one side, up to which scores do not reject factors; infinite if unbounded."""
    least = normal_quantile(1.0 - level)

    def rejected(distance: float) -> bool:
        return -side * rounds.score(q, center + side * distance) > least

    inside, outside = 0.0, _FIRST_STEP
    while not rejected(outside):
        inside, outside = outside, 2 * outside
        if outside > _FARTHEST:
            return math.inf
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
    return outside


def log_ratios(base: Sequence[Floats], new: Sequence[Floats], q: float | None) -> Floats:
    """The logarithm of new over base of each round, ``(rounds,)``; NaN if an arm has no latency above 0."""
    return np.array([_log_ratio(ours, theirs, q) for ours, theirs in zip(base, new, strict=True)])


def _log_ratio(base: Floats, new: Floats, q: float | None) -> float:
    before, after = statistic(base, q), statistic(new, q)
    return math.log(after) - math.log(before) if before > 0 and after > 0 else math.nan


def _scores(base: Floats, new: Floats, q: float | None) -> tuple[Floats, Floats]:
    """Each request's score as a share of its arm; 0 for one without a latency.

    Beyond a percentile a request counts 1, short of it 0, with a ramp between the percentiles half as far from
    the end and half as far again: if every request takes a tenth longer, all that lie near show it, not only those
    that cross a line.
    """
    known = [~np.isnan(series) for series in (base, new)]
    scores = np.concatenate([base[known[0]], new[known[1]]])
    if q is not None:
        # The values below which so much of both arms lies.
        ranks = [max(math.ceil(len(scores) * share - 1), 0) for share in (q - (1.0 - q) / 2, q + (1.0 - q) / 2)]
        low, high = np.partition(scores, ranks)[ranks]
        width = max(float(high - low), 1e-12 * float(high))
        scores = np.minimum(np.maximum((scores - low) / width, 0.0), 1.0)
    scores = scores - scores.mean()
    ours, theirs = np.zeros(len(base)), np.zeros(len(new))
    count = int(known[0].sum())
    ours[known[0]] = scores[:count] / max(count, 1)
    theirs[known[1]] = scores[count:] / max(len(scores) - count, 1)
    return ours, theirs


def log_quotient(new: Floats, base: Floats) -> Floats:
    """Logarithm of new over base, element by element; NaN unless both are above 0."""
    usable = (new > 0) & (base > 0)
    result = np.full(new.shape, math.nan)
    result[usable] = np.log(new[usable]) - np.log(base[usable])
    return result


def _block(base: Floats, new: Floats, paired: bool) -> int:
    return block_length(log_quotient(new, base)) if paired else max(block_length(base), block_length(new))


def _piled_up(series: Floats) -> bool:
    known = int(np.count_nonzero(np.isfinite(series)))
    return known >= _LEAST_SEEN and block_length(series) >= known // 8


def _sums(each: Floats, starts: npt.NDArray[np.intp]) -> Floats:
    """Sums from each start to the next; no stretch is empty."""
    return np.asarray(np.add.reduceat(each, starts), dtype=np.float64)


def _starts(lengths: Sequence[int]) -> npt.NDArray[np.intp]:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.intp)


def _block_starts(lengths: Sequence[int], blocks: Sequence[int]) -> npt.NDArray[np.intp]:
    parts = [
        start + np.arange(0, length, max(block, 1), dtype=np.intp)
        for start, length, block in zip(_starts(lengths).tolist(), lengths, blocks, strict=True)
    ]
    return np.concatenate(parts).astype(np.intp)
