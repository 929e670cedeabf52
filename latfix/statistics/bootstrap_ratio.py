"""The ratio of two replays of the same traffic, with a 95 % interval for display and bounds for decisions.

The interval is a paired moving-block bootstrap (:mod:`block_bootstrap`) with Student's t; the bounds are in
:mod:`latfix.statistics.score_bounds`. Of many short rounds (``latfix gate``), each round is one observation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats, Ints
from latfix.statistics.block_bootstrap import (
    SortedSample,
    block_counts,
    block_length,
    evidence,
    statistic,
)
from latfix.statistics.control_variate import fit_control
from latfix.statistics.decision import FINAL, RatioEstimate, Rule
from latfix.statistics.distributions import student_t
from latfix.statistics.latency_summary import QUANTILES, influence
from latfix.statistics.score_bounds import Lean, Rounds, between, decision_bounds, log_quotient, log_ratios

#: Statistics that have a ratio with an interval. A maximum is a single request, which never becomes certain.
RATIO_KEYS: tuple[str, ...] = ("mean", *QUANTILES)
#: From this many paired rounds on, they decide without their blocks: each round is an event, and eight events on one
#: side are the least that decides at half a per cent.
ROUNDS_ALONE = 8
#: Ratio of the half-widths of a 99.7 % and a 95 % interval (normal errors).
_SURER = 1.5
#: Normal rounds' interval reaches to about the extreme of five rounds, and less far with more of them.
_SEEN, _BEYOND = 5, 1.25
#: Requests that are drawn at a time.
_AT_ONCE = 1 << 16
_FRACTIONS: tuple[float, ...] = tuple(QUANTILES.values())
#: Order of the results of :meth:`SortedSample.statistics`.
_ORDER: tuple[str, ...] = (*RATIO_KEYS, "max")


def arm_ratios(
    base_blocks: Sequence[npt.ArrayLike],
    new_blocks: Sequence[npt.ArrayLike],
    *,
    seed: int,
    replicates: int = 400,
    keys: Sequence[str] = RATIO_KEYS,
    rule: Rule = FINAL,
    paired: bool = True,
    control: npt.ArrayLike | None = None,
) -> dict[str, RatioEstimate]:
    """Ratio new/base of statistics over interleaved replays.

    The value is the ratio of the statistics of all rounds together. Two sources of chance are measured:

    - *within rounds*: moving blocks of request positions are drawn, the same in both arms, so that what the
      arms share (the traffic, its bursts, the machine's drift over the round) cancels;
    - *between rounds*, with three or more: whole rounds are drawn, with Student's t for the number of rounds. Only
      this covers effects of a restart or of a neighbor on one arm.

    The 95 % interval is the wider of the two, to either side: a round that was slower than all others by a factor
    says that the ratio may be lower, not that it may be higher by as much. With two rounds, the spread between them
    is added as far as it exceeds what the blocks explain (Welch and Satterthwaite). **With one round, an effect on
    one arm for the whole replay looks like a difference**: the interval then covers what the requests of these two
    replays show, not the effect of the next restart; the decision bounds allow for it.

    :param base_blocks: for each round the latencies, any unit, in order of the schedule; NaN if the
        request did not end ``ok``. Both arms have the same length in a round; if they differ, the
        round's positions are drawn independently for each arm.
    :param new_blocks: the same for the other arm; as many rounds.
    :param rule: the confidence that a decision needs.
    :param paired: the same traffic in both arms; otherwise each arm's blocks are drawn independently.
    :param control: each round ran on two fresh processes and is one observation: from :data:`ROUNDS_ALONE` rounds
        on, the ratio is the geometric mean of the rounds' ratios, with Student's t. The values, NaN if unknown, are
        the logarithms of how much more the machine slowed the new arm down; the part of them that shows in the
        ratios is removed (:mod:`latfix.statistics.control_variate`).
    :raises ValueError: no rounds, or not equally many.
    """
    rounds = _rounds(base_blocks, new_blocks)
    value = _log_ratio(rounds)
    left_out = np.array([_log_ratio(rounds[:k] + rounds[k + 1 :]) for k in range(len(rounds))])
    if control is not None and len(rounds) >= ROUNDS_ALONE:
        each = {
            key: log_ratios([r.base for r in rounds], [r.new for r in rounds], QUANTILES.get(key)) for key in keys
        }
        if all(np.isfinite(ratios).all() for ratios in each.values()):
            return _by_rounds(each, np.asarray(control, dtype=np.float64), value, left_out, rule)
    scored = Rounds.of([r.base for r in rounds], [r.new for r in rounds], paired=paired)
    rng = np.random.default_rng(seed)
    drawn = _resampled(rounds, _blocks(rounds, rng, replicates, paired))
    whole = _resampled(rounds, _whole(rounds, rng, replicates)) if len(rounds) > 2 else None
    fewest = min(int((~np.isnan(np.concatenate(blocks))).sum()) for blocks in (base_blocks, new_blocks))
    estimates: dict[str, RatioEstimate] = {}
    least, most = decision_bounds(scored, None, rule)
    better = True if most < 1.0 else False if least > 1.0 else None
    for key in keys:
        k = _ORDER.index(key)
        sides = (math.inf, math.inf)  # a single request has no spread
        if fewest > 1:
            freedom = _ratio_evidence(key, rounds)
            if whole is None:
                sides = _few(drawn[:, k], freedom, left_out[:, k])
            else:
                by_round = scored.log_ratios(QUANTILES.get(key))
                sides = _many(float(value[k]), drawn[:, k], freedom, whole[:, k], by_round)
        lean = None if better is None or key not in QUANTILES else Lean(better, _SURER * sides[better])
        estimates[key] = _estimate(float(value[k]), sides, scored, QUANTILES.get(key), rule, lean)
    return estimates


@dataclass(frozen=True, slots=True)
class _Round:
    """One round: both arms' series in order of arrival, and the block length."""

    base: Floats
    new: Floats
    block: int


def _estimate(
    center: float, sides: tuple[float, float], scored: Rounds, q: float | None, rule: Rule, lean: Lean | None
) -> RatioEstimate:
    if not all(map(math.isfinite, (center, *sides))):
        return RatioEstimate(value=math.exp(center), lo=math.nan, hi=math.nan, rounds=scored.count)
    lo, hi = math.exp(center - sides[0]), math.exp(center + sides[1])
    least, most = decision_bounds(scored, q, rule, lean)
    return RatioEstimate(
        value=math.exp(center),
        lo=lo,
        hi=hi,
        decision=(min(least, lo), max(most, hi)),
        level=rule.level,
        rounds=scored.count,
        spread=_spread(sum(sides) / 2, scored, q, rule),
    )


def _by_rounds(
    each: Mapping[str, Floats], control: Floats, value: Floats, left_out: Floats, rule: Rule
) -> dict[str, RatioEstimate]:
    """The geometric mean of the rounds' ratios.

    Bounds reach at least to the 95 % interval of the ratio of all requests together, so that rounds that agree in
    a difference do not decide against a part of the traffic in which the arms differ otherwise.

    :param each: the rounds' log ratios by key.
    :param value: ``(statistics,)`` log ratios of all requests; ``left_out`` without each round.
    """
    count = len(control)
    apart = np.sqrt((count - 1) / count * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    estimates = {}
    for key, ratios in each.items():
        taken = fit_control(ratios, control)
        mean, half = taken.between(ratios, 0.05)
        wide = taken.between(ratios, rule.level)[1]
        together, around = (float(of[_ORDER.index(key)]) for of in (value, student_t(0.95, count - 1) * apart))
        estimates[key] = RatioEstimate(
            value=math.exp(mean),
            lo=math.exp(mean - half),
            hi=math.exp(mean + half),
            decision=(math.exp(min(mean - wide, together + around)), math.exp(max(mean + wide, together - around))),
            level=rule.level,
            rounds=count,
            spread=half / student_t(0.95, count - 1) * math.sqrt(count),
            corrected=taken.fitted > 0,
        )
    return estimates


def _spread(half: float, scored: Rounds, q: float | None, rule: Rule) -> float:
    """About the standard deviation of the logarithm of one round's ratio.

    :param half: half of the 95 % interval of all rounds, on the logarithm.
    """
    count = scored.count
    within = half / student_t(0.95, 1e6) * math.sqrt(count)
    if count < 3:
        return math.hypot(within, rule.restart_sd / 2)  # the typical effect of restarts, half of the allowance
    mean_half = between(scored.log_ratios(q), 0.05)[1]
    return mean_half / student_t(0.95, count - 1) * math.sqrt(count)


def _rounds(base_blocks: Sequence[npt.ArrayLike], new_blocks: Sequence[npt.ArrayLike]) -> list[_Round]:
    if not base_blocks or len(base_blocks) != len(new_blocks):
        raise ValueError(f"{len(base_blocks)} rounds of the base and {len(new_blocks)} of the new; expected as many")
    rounds = []
    for base, new in zip(base_blocks, new_blocks, strict=True):
        first, second = np.asarray(base, dtype=np.float64), np.asarray(new, dtype=np.float64)
        rounds.append(_Round(first, second, max(block_length(first), block_length(second))))
    return rounds


def _log_ratio(rounds: Sequence[_Round]) -> Floats:
    if not rounds:
        return np.full(len(_ORDER), math.nan)
    base = SortedSample.of(np.concatenate([r.base for r in rounds])).statistics(_FRACTIONS)
    new = SortedSample.of(np.concatenate([r.new for r in rounds])).statistics(_FRACTIONS)
    return log_quotient(new, base)


def _resampled(rounds: Sequence[_Round], draws: Iterator[tuple[Ints, Ints]]) -> Floats:
    """``(resamples, statistics)`` log ratios.

    :param draws: some resamples at a time: how often each request of the base is in one, all rounds in a row,
        ``(some, n)``, and each of the new arm.
    """
    base = SortedSample.of(np.concatenate([r.base for r in rounds]))
    new = SortedSample.of(np.concatenate([r.new for r in rounds]))
    return np.concatenate(
        [
            log_quotient(new.statistics(_FRACTIONS, theirs), base.statistics(_FRACTIONS, ours))
            for ours, theirs in draws
        ]
    )


def _some(rounds: Sequence[_Round], replicates: int) -> Iterator[int]:
    """How many resamples are drawn at a time, until all are: as many as fit into the cache."""
    most = max(_AT_ONCE // max(sum(len(r.base) for r in rounds), 1), 1)
    yield from (min(most, replicates - first) for first in range(0, replicates, most))


def _blocks(
    rounds: Sequence[_Round], rng: np.random.Generator, replicates: int, paired: bool
) -> Iterator[tuple[Ints, Ints]]:
    """Blocks of neighbors drawn from each round: the same in both arms if these are paired and equally long."""
    sizes: list[tuple[int, int]] = []
    arms: tuple[list[int], list[int]] = [], []  # the positions in ``sizes`` of each round's draws
    for r in rounds:
        for arm, series in zip(arms, (r.base, r.new), strict=True):
            if not (arm is arms[1] and paired and len(r.base) == len(r.new)):
                sizes.append((len(series), max(1, min(r.block, len(series)))))
            arm.append(len(sizes) - 1)
    counts = [-(-n // block) for n, block in sizes]
    ends = np.repeat([max(n, 1) for n, _ in sizes], counts)
    for some in _some(rounds, replicates):
        starts = np.split(rng.integers(0, ends, (some, len(ends)), dtype=np.int64), np.cumsum(counts)[:-1], axis=1)
        drawn = [block_counts(n, part, block) for (n, block), part in zip(sizes, starts, strict=True)]
        ours, theirs = (np.concatenate([drawn[k] for k in arm], axis=1) for arm in arms)
        yield ours, theirs


def _whole(rounds: Sequence[_Round], rng: np.random.Generator, replicates: int) -> Iterator[tuple[Ints, Ints]]:
    """Whole rounds drawn."""
    every = np.arange(len(rounds))
    for some in _some(rounds, replicates):
        times = (rng.integers(0, len(rounds), (some, len(rounds), 1)) == every).sum(axis=1)
        yield (
            np.repeat(times, [len(r.base) for r in rounds], axis=1),
            np.repeat(times, [len(r.new) for r in rounds], axis=1),
        )


def _ratio_evidence(key: str, rounds: Sequence[_Round]) -> float:
    """Degrees of freedom of the variance within rounds, from each block's contribution to the ratio.

    A block contributes its excess over the average to the mean, and the number of its requests beyond the limit to
    a percentile, each as new arm less base: what both arms share does not affect the ratio.
    """
    base_limit = statistic(np.concatenate([r.base for r in rounds]), QUANTILES.get(key))
    new_limit = statistic(np.concatenate([r.new for r in rounds]), QUANTILES.get(key))
    added: list[Floats] = []
    for r in rounds:
        base, new = influence(key, r.base, base_limit, r.block), influence(key, r.new, new_limit, r.block)
        added += [new - base] if len(base) == len(new) else [new, base]
    return evidence(np.concatenate(added))


def _few(drawn: Floats, freedom: float, left_out: Floats) -> tuple[float, float]:
    """How far the 95 % interval of one or two rounds reaches below and above, on the logarithm; infinite if unknown.

    :param drawn: log ratios of resampled blocks; ``freedom`` their degrees of freedom.
    :param left_out: log ratios without each round. Two rounds that differ more than the blocks explain add to it.
    """
    finite = _known(drawn)
    if finite is None:
        return math.inf, math.inf
    within, excess = float(np.var(finite, ddof=1)), 0.0
    if len(left_out) == 2 and np.isfinite(left_out).all():
        excess = max(0.0, float(np.square(left_out - left_out.mean()).sum()) / 2 - within)
    total = within + excess
    if total <= 0:
        return 0.0, 0.0
    half = student_t(0.95, total**2 / (within**2 / freedom + excess**2)) * math.sqrt(total)
    return half, half


def _many(center: float, drawn: Floats, freedom: float, whole: Floats, each: Floats) -> tuple[float, float]:
    """The same of three and more rounds: the wider of what blocks and whole rounds show.

    Resamples of a few rounds vary less than new rounds would. The factor makes it Student's interval where the
    rounds' ratios are normal (Hesterberg, 2015). From :data:`_SEEN` rounds on, that ends a little beyond the extreme
    round.

    :param center: the log ratio of all rounds together.
    :param whole: log ratios of resampled rounds; ``each`` of the rounds themselves.
    """
    within, between, rounds = _known(drawn), _known(whole), len(each)
    if within is None:
        return math.inf, math.inf
    below, above = (student_t(0.95, freedom) * spread for spread in _spreads(center, within))
    if between is None or not np.isfinite(each).all():
        return below, above
    factor = student_t(0.95, rounds - 1) * math.sqrt(rounds / (rounds - 1))
    lower, upper = (factor * spread for spread in _spreads(center, between))
    if rounds >= _SEEN:
        lower = min(lower, _BEYOND * max(center - float(each.min()), 0.0))
        upper = min(upper, _BEYOND * max(float(each.max()) - center, 0.0))
    return max(below, lower), max(above, upper)


def _spreads(center: float, drawn: Floats) -> tuple[float, float]:
    """The standard deviation below and above ``center``, each as if the other side were alike."""
    below, above = (
        math.sqrt(2 * float(np.square(np.maximum(side, 0)).mean())) for side in (center - drawn, drawn - center)
    )
    return below, above


def _known(drawn: Floats) -> Floats | None:
    """The finite ones; ``None`` if too few are."""
    finite = drawn[np.isfinite(drawn)]
    return None if len(finite) < max(2, len(drawn) // 2) else finite
