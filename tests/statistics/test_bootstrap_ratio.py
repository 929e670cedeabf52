"""Ratios of two arms: their value, their 95 % interval, and the bounds that decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from latfix.statistics.bootstrap_ratio import RATIO_KEYS, arm_ratios
from latfix.statistics.decision import SCREENING, RatioEstimate, Rule, judge
from latfix.statistics.latency_summary import summarize_ms
from latfix.statistics.score_bounds import Rounds, allowance, between, decision_bounds, round_bounds

Floats = npt.NDArray[np.float64]
Arms = tuple[list[Floats], list[Floats]]


def _served(arrivals: Floats, service: Floats) -> Floats:
    """Latencies of a first-come-first-served queue with one worker."""
    done = np.cumsum(service)
    return np.asarray(done + np.maximum.accumulate(arrivals - (done - service)) - arrivals, dtype=np.float64)


def _arms(
    rng: np.random.Generator, n: int, rounds: int, *, scale: float = 1.0, restart: float = 0.0, pauses: float = 0.02
) -> Arms:
    """Two arms that replay the same heavy-tailed traffic; every replay has its own noise and rare pauses."""
    work = np.exp(rng.normal(0, 0.6, n))
    arrivals = np.cumsum(rng.exponential(work.mean() / 0.5, n))

    def replay(factor: float) -> Floats:
        service = work * np.exp(rng.normal(0, 0.1, n)) + (rng.random(n) < pauses) * rng.exponential(5.0, n)
        return _served(arrivals, service) * factor * math.exp(rng.normal(0, restart))

    turns = [(replay(1.0), replay(scale)) for _ in range(rounds)]
    return [base for base, _ in turns], [new for _, new in turns]


def _called(bounds: tuple[float, float]) -> bool:
    return not bounds[0] <= 1.0 <= bounds[1]


def _decided(arms: Arms, q: float | None, rule: Rule) -> bool:
    return _called(decision_bounds(Rounds.of(*arms, paired=True), q, rule))


def ratio_of(base: Sequence[npt.ArrayLike], new: Sequence[npt.ArrayLike], key: str, **options: Any) -> RatioEstimate:
    return arm_ratios(base, new, keys=[key], **options)[key]


FREE = Rule(restart_sd=0.0)


# --- value and interval ------------------------------------------------------------------------------------


def test_the_value_is_the_ratio_of_the_pooled_statistics() -> None:
    base, new = _arms(np.random.default_rng(6), 200, 3, scale=0.7)
    estimates = arm_ratios(base, new, seed=0, replicates=50)
    before, after = summarize_ms(np.concatenate(base)), summarize_ms(np.concatenate(new))
    assert tuple(estimates) == RATIO_KEYS
    for key in RATIO_KEYS:
        assert estimates[key].value == pytest.approx(after[key] / before[key])
        assert estimates[key].lo < estimates[key].value < estimates[key].hi


def test_decision_bounds_are_never_narrower_than_the_interval() -> None:
    for rounds in (1, 2, 3, 5):
        base, new = _arms(np.random.default_rng(rounds), 300, rounds, scale=0.7)
        for estimate in arm_ratios(base, new, seed=0, replicates=50).values():
            assert estimate.decision is not None
            assert estimate.decision[0] <= estimate.lo <= estimate.value <= estimate.hi <= estimate.decision[1]
            assert estimate.rounds == rounds and estimate.spread > 0


def test_same_seed_same_interval() -> None:
    base, new = _arms(np.random.default_rng(7), 100, 2)
    first = ratio_of(base, new, "p95", seed=3, replicates=60)
    assert first == ratio_of(base, new, "p95", seed=3, replicates=60)
    other = ratio_of(base, new, "p95", seed=4, replicates=60)
    assert (first.lo, first.hi) != (other.lo, other.hi)


def test_swapped_arms_give_the_inverse() -> None:
    base, new = _arms(np.random.default_rng(8), 400, 5, scale=0.8, restart=0.02)
    for q in (None, 0.5, 0.99):
        lo, hi = decision_bounds(Rounds.of(base, new, paired=True), q, FREE)
        back = decision_bounds(Rounds.of(new, base, paired=True), q, FREE)
        assert 1 / back[1] == pytest.approx(lo, rel=0.01) and 1 / back[0] == pytest.approx(hi, rel=0.01)


def test_pairing_cancels_what_the_arms_share() -> None:
    base, new = _arms(np.random.default_rng(8), 1000, 1, pauses=0.0)
    paired = ratio_of(base, new, "mean", seed=0, rule=FREE)
    unpaired = arm_ratios(base, new, seed=0, rule=FREE, paired=False)["mean"]
    assert paired.value == unpaired.value
    assert math.log(unpaired.hi / unpaired.lo) > 3 * math.log(paired.hi / paired.lo)
    assert math.log(unpaired.bounds[1] / unpaired.bounds[0]) > 3 * math.log(paired.bounds[1] / paired.bounds[0])


def test_two_rounds_that_disagree_widen_the_interval_and_the_bounds() -> None:
    series = np.random.default_rng(9).lognormal(size=400)
    agree = ratio_of([series, series], [series * 1.4, series * 1.4], "mean", seed=0)
    disagree = ratio_of([series, series], [series * 0.9, series * 1.9], "mean", seed=0)
    assert judge(agree) == "worse"
    assert judge(disagree) == "undecided"
    assert (
        not decision_bounds(Rounds.of([series] * 2, [series * 0.9, series * 1.9], paired=True), None, Rule())[0] > 1
    )


def test_lost_requests_are_not_counted_as_fast() -> None:
    series = np.random.default_rng(10).lognormal(size=300)
    lost = np.where(np.arange(300) % 10 == 0, math.nan, series)
    estimate = ratio_of([series], [lost], "p50", seed=0)
    assert estimate.value == pytest.approx(np.nanmedian(lost) / np.median(series))
    assert math.isfinite(estimate.lo) and math.isfinite(estimate.hi)
    assert judge(estimate) == "undecided"


def test_an_arm_without_any_latency_decides_nothing() -> None:
    estimate = ratio_of([np.ones(20)], [np.full(20, math.nan)], "p99", seed=0, replicates=20)
    assert judge(estimate) == "undecided"
    assert estimate.to_json() == {"value": None, "ci95": None}


def test_a_round_without_any_latency_decides_nothing() -> None:
    base, new = _arms(np.random.default_rng(3), 300, 4, scale=0.3)
    new[2] = np.full(300, math.nan)
    assert judge(ratio_of(base, new, "p95", seed=0, replicates=40)) == "undecided"


def test_rounds_must_be_paired() -> None:
    with pytest.raises(ValueError, match="1 rounds of the base and 2 of the new"):
        arm_ratios([[1.0]], [[1.0], [2.0]], seed=0)
    with pytest.raises(ValueError, match="0 rounds"):
        arm_ratios([], [], seed=0)


# --- effects of restarts -----------------------------------------------------------------------------------


def test_one_round_cannot_distinguish_a_small_difference_from_a_restart() -> None:
    """Every request is a tenth slower, without any noise: a restart may have done that, not a factor of two."""
    series = np.random.default_rng(12).lognormal(size=600)
    tenth, half = (ratio_of([series], [series * factor], "p95", seed=0) for factor in (1.1, 0.5))
    assert tenth.lo > 1.0
    assert judge(tenth) == "undecided"
    assert judge(half) == "better"
    assert judge(ratio_of([series], [series * 1.1], "p95", seed=0, rule=SCREENING)) == "worse"


def test_the_allowance_for_restarts_falls_with_rounds_and_grows_with_their_spread() -> None:
    alike = [allowance(np.zeros(rounds), Rule()) for rounds in range(1, 5)]
    assert alike == sorted(alike, reverse=True)
    assert alike[0] == pytest.approx(5.598 * 0.07, rel=1e-3)  # Student's t with 4 degrees of freedom
    assert allowance(np.array([-0.2, 0.0, 0.2]), Rule()) > 1.3 * alike[2]
    assert allowance(np.zeros(1), Rule(restart_sd=0.0)) == 0.0


def test_rounds_that_are_each_clear_may_differ_from_each_other() -> None:
    clear, mixed = np.log([0.05, 0.08, 0.2]), np.log([0.05, 0.08, 0.95])
    assert clear.mean() + allowance(clear, Rule(), amplified=True) < 0 < between(clear, 0.01)[1] + clear.mean()
    assert mixed.mean() + allowance(mixed, Rule(), amplified=True) > 0
    assert allowance(-clear, Rule(), amplified=True) == allowance(clear, Rule(), amplified=True)
    far, fifth = np.log([0.02, 0.1, 0.2]), np.log([0.2, 0.2, 0.2])  # how far beyond a fifth is no spread
    assert allowance(far, Rule(), amplified=True) == pytest.approx(allowance(fifth, Rule(), amplified=True))


def test_five_rounds_detect_a_tenth_that_one_cannot() -> None:
    series = np.random.default_rng(13).lognormal(size=600)
    rng = np.random.default_rng(14)
    new = [series * 1.1 * math.exp(rng.normal(0, 0.005)) for _ in range(5)]
    assert judge(ratio_of([series] * 5, new, "p95", seed=0)) == "worse"
    assert judge(ratio_of([series] * 3, new[:3], "p95", seed=0)) == "undecided"


def test_rounds_that_are_all_far_better_decide_however_much_they_vary() -> None:
    """A backlog that is there before and not after: the ratio varies by a factor of twenty."""
    ratios = np.log([0.02, 0.04, 0.02, 0.34, 0.02])
    mean, half = between(ratios, Rule().level)
    assert mean + half > math.log(0.8)  # hardly decided
    least, most = round_bounds(ratios, Rule().level)
    assert least == mean - half and most < math.log(0.8)
    assert round_bounds(-ratios, Rule().level) == pytest.approx((-most, -least))
    assert round_bounds(np.log([0.02, 0.04, 0.02, 1.5, 0.02]), Rule().level)[1] > 0
    alike = np.log([0.9, 0.91, 0.89, 0.9, 0.92])  # nothing is limited where rounds agree
    mean, half = between(alike, Rule().level)
    assert round_bounds(alike, Rule().level) == pytest.approx((mean - half, mean + half))


def test_a_round_that_is_slow_does_not_make_the_ratio_of_all_look_higher() -> None:
    """Four rounds are fifty times as fast, one three times: together they are between the two, not above both."""
    rng = np.random.default_rng(21)
    base = [rng.lognormal(0, 0.3, 300) for _ in range(5)]
    new = [series * (0.33 if k == 2 else 0.02) for k, series in enumerate(base)]
    found = ratio_of(base, new, "p99", seed=0)
    assert 0.2 < found.value < 0.4 and found.hi < 0.8 and 0.005 < found.lo < 0.02
    assert judge(found) == "better"


def test_the_bounds_follow_the_spread_of_rounds() -> None:
    """The same mean of five rounds, once close together, once far apart."""
    series = np.random.default_rng(15).lognormal(size=600)
    near, far = ([series * 0.8 * math.exp(step * k) for k in (-2, -1, 0, 1, 2)] for step in (0.01, 0.1))
    assert judge(ratio_of([series] * 5, near, "mean", seed=0)) == "better"
    assert judge(ratio_of([series] * 5, far, "mean", seed=0)) == "undecided"
    mean, half = between(np.log([0.8 * math.exp(0.1 * k) for k in (-2, -1, 0, 1, 2)]), 0.05)
    assert math.exp(mean) == pytest.approx(0.8)
    assert half == pytest.approx(2.77645 * 0.1 * math.sqrt(2.5) / math.sqrt(5), rel=1e-4)


def test_no_difference_needs_rounds_that_agree() -> None:
    rng = np.random.default_rng(16)
    base, new = _arms(rng, 1500, 6, pauses=0.0)
    assert judge(ratio_of(base, new, "p50", seed=0)) == "no_difference"
    assert judge(ratio_of(base[:1], new[:1], "p50", seed=0)) == "undecided"


# --- chance within a replay --------------------------------------------------------------------------------


def _with_pauses(series: Floats, starts: tuple[int, ...], length: int = 20) -> Floats:
    slow = series.copy()
    for start in starts:
        slow[start : start + length] += 50.0
    return slow


def test_three_pauses_in_one_arm_are_three_events_and_not_sixty_requests() -> None:
    """p99 is 20 times as high: three pauses, each with 20 requests that waited behind it."""
    series = np.random.default_rng(17).lognormal(size=1000)
    three = _with_pauses(series, (100, 400, 800))
    twelve = _with_pauses(series, tuple(range(50, 1000, 80)))
    few, many = (ratio_of([series], [arm], "p99", seed=0, rule=FREE) for arm in (three, twelve))
    assert few.value > 4 and few.lo > 2 and judge(few) == "undecided"
    assert judge(many) == "worse"


def test_a_score_is_at_most_the_root_of_the_blocks() -> None:
    series = np.random.default_rng(18).lognormal(size=1000)
    rounds = Rounds.of([series], [series * 3], paired=True)
    for q in (None, 0.5, 0.99):
        assert 0 < rounds.score(q, 0.0) <= math.sqrt(len(rounds.blocks)) + 1e-9
        assert rounds.score(q, 0.0) > rounds.score(q, 0.5) > rounds.score(q, 2.0)


def test_two_slow_requests_do_not_bound_a_tail() -> None:
    """p99 of a hundred requests: no factor can be excluded, and the bound is open."""
    series = np.random.default_rng(19).lognormal(size=100)
    lo, hi = decision_bounds(Rounds.of([series], [series], paired=True), 0.99, Rule())
    assert lo < 1e-3 and math.isinf(hi)


def test_backlogs_are_one_stretch_each_and_five_rounds_of_them_decide() -> None:
    """What is slow in the base lies in one stretch of every replay: scores bound nothing, the rounds do."""
    rng = np.random.default_rng(20)
    arrivals = np.arange(400.0)

    def replay(load: float) -> Floats:
        return _served(arrivals, rng.gamma(4.0, load / 4, 400) * np.where(arrivals < 250, 0.6, 1.4))

    base, new = [replay(1.0) for _ in range(5)], [replay(0.5) for _ in range(5)]
    found = ratio_of(base, new, "p99", seed=0)
    assert found.value < 0.2 and judge(found) == "better"
    assert math.isinf(decision_bounds(Rounds.of(base[:2], new[:2], paired=True), 0.99, FREE)[1])


def test_with_piled_up_work_two_rounds_detect_a_tenfold_gain_and_no_doubling() -> None:
    """A few per cent of speed decide whether an overloaded queue doubles its latency."""
    rng = np.random.default_rng(21)
    arrivals = np.cumsum(rng.exponential(1.0, 800))

    def replays(load: float) -> list[Floats]:
        return [_served(arrivals, rng.gamma(4.0, load * restart / 4, 800)) for restart in (1.005, 0.995)]

    base = replays(1.3)
    assert Rounds.of(base, base, paired=True).backlog
    for load, verdict in ((1.3, "undecided"), (1.4, "undecided"), (0.4, "better")):
        for statistic in ("mean", "p99"):
            found = ratio_of(base, replays(load), statistic, seed=0)
            assert judge(found) == verdict, (load, statistic, found)


def test_a_tail_in_few_stretches_is_decided_where_the_mean_is_and_both_agree() -> None:
    """Two bursts hold all slow requests: too few events for their signs, however large the difference."""
    rng = np.random.default_rng(22)
    bursts = np.isin(np.arange(500) // 4, (20, 70))

    def rounds(scale: float, tail: float = 1.0) -> list[Floats]:
        return [np.where(bursts, 8.0 * tail, 1.0) * rng.gamma(30.0, scale / 30, 500) for _ in range(2)]

    base = rounds(1.0)
    faster = arm_ratios(base, rounds(0.3), seed=0)
    assert judge(faster["mean"]) == "better" and judge(faster["p99"]) == "better"
    slower = arm_ratios(base, rounds(3.0), seed=0)
    assert judge(slower["p99"]) == "worse"
    alone = decision_bounds(Rounds.of(base, rounds(0.3), paired=True), 0.99, FREE)
    assert math.isinf(alone[1]), "the percentile's own scores bound nothing"
    # A decided mean does not decide an unchanged tail
    same_tail = arm_ratios(base, rounds(0.3, tail=1 / 0.3), seed=0)
    assert judge(same_tail["mean"]) == "better" and judge(same_tail["p99"]) == "undecided"
    # nor does a tail by itself where the mean is not decided
    only_tail = [np.where(np.arange(500) // 25 == 9, 0.3, 1.0) * series for series in base]
    assert judge(arm_ratios(base, only_tail, seed=0)["p99"]) == "undecided"


# --- many short rounds, each one observation ---------------------------------------------------------------


def test_many_short_rounds_decide_a_tail_of_few_requests() -> None:
    """20 rounds of 100 requests, a restart each: one request of each lies beyond p99, too few for blocks."""
    unknown = np.full(20, math.nan)
    passed = [0, 0]
    for seed in range(20):
        arms = _arms(np.random.default_rng(seed), 100, 20, restart=0.01, pauses=0.0)
        by_blocks, by_rounds = (ratio_of(*arms, "p99", seed=0, control=each) for each in (None, unknown))
        passed = [passed[0] + (by_blocks.bounds[1] < 1.1), passed[1] + (by_rounds.bounds[1] < 1.1)]
        assert by_rounds.bounds[0] <= by_rounds.lo <= by_rounds.value <= by_rounds.hi <= by_rounds.bounds[1]
    assert passed[0] < passed[1] and passed[1] >= 16, passed


def test_fewer_rounds_than_eight_are_not_enough_observations() -> None:
    arms = _arms(np.random.default_rng(3), 100, 7)
    assert ratio_of(*arms, "p99", seed=0, control=np.full(7, math.nan)) == ratio_of(*arms, "p99", seed=0)


def test_rounds_that_agree_do_not_pass_a_part_of_the_traffic_that_is_slower() -> None:
    """One part in four has all slow requests, and they take twice as long; the other parts are as they were."""
    rng = np.random.default_rng(4)
    base = [rng.lognormal(0, 0.1, 100) * (10 if k % 4 == 0 else 1) for k in range(24)]
    new = [each * rng.lognormal(0, 0.01) * (2 if k % 4 == 0 else 1) for k, each in enumerate(base)]
    found = ratio_of(base, new, "p99", seed=0, control=np.full(24, math.nan))
    assert found.value == pytest.approx(2**0.25, rel=0.05)
    assert found.bounds[1] > 1.8, "the ratio of all requests together is 2"


def test_a_round_without_latencies_is_no_observation() -> None:
    base, new = _arms(np.random.default_rng(5), 100, 9)
    new[3] = np.full(100, math.nan)
    found = ratio_of(base, new, "p50", seed=0, control=np.zeros(9))
    assert all(map(math.isnan, found.bounds))


# --- rates of error and of success -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_service_differs_from_itself_at_most_once_in_a_hundred() -> None:
    """Bounds at 1 %, so that the rate can be seen in few comparisons; the benchmark looks at the level in use."""
    rule, called = Rule(level=0.01, restart_sd=0.0), dict.fromkeys((None, 0.95, 0.99), 0)
    for k in range(300):
        arms = _arms(np.random.default_rng(20_000 + k), 300, 1)
        for q in called:
            called[q] += _decided(arms, q, rule)
    # 1 % of 300 are 3; 8 lies beyond the 99th percentile of that count.
    assert max(called.values()) <= 8, called


@pytest.mark.slow
def test_rounds_with_restart_effects_against_themselves() -> None:
    """Restarts move a whole replay by 5 %: only the spread between rounds can know."""
    called, blind = 0, 0
    for k in range(150):
        base, new = _arms(np.random.default_rng(70_000 + k), 250, 5, restart=0.05, pauses=0.0)
        called += _decided((base, new), None, Rule())
        blind += _decided(([np.concatenate(base)], [np.concatenate(new)]), None, FREE)
    assert called <= 4
    assert blind > 8  # the same data as one round, without the spread between rounds


def test_a_fifth_less_latency_is_detected() -> None:
    found, right = 0, 0
    for k in range(40):
        base, new = _arms(np.random.default_rng(9000 + k), 300, 8, scale=0.8, restart=0.03, pauses=0.0)
        lo, hi = decision_bounds(Rounds.of(base, new, paired=True), 0.95, Rule())
        found += hi < 1
        right += lo <= 0.8 <= hi
    assert found >= 36
    assert right >= 39


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [
        (0.5, 0.99, "better"),
        (1.01, 1.02, "worse"),
        (0.96, 1.04, "no_difference"),
        (0.94, 1.04, "undecided"),
        (0.96, 1.06, "undecided"),
        (0.5, math.inf, "undecided"),
        (0.0, 0.9, "better"),
        (1.2, math.inf, "worse"),
        (math.nan, math.nan, "undecided"),
    ],
)
def test_verdicts_by_the_decision_bounds(lo: float, hi: float, verdict: str) -> None:
    assert judge(RatioEstimate(value=1.0, lo=0.999, hi=1.001, decision=(lo, hi))) == verdict
    assert judge(RatioEstimate(value=1.0, lo=lo, hi=hi)) == verdict


@pytest.mark.parametrize("decision", [(0.3, 0.9), (0.0, 0.9), (0.3, math.inf), None])
def test_an_estimate_survives_its_document(decision: tuple[float, float] | None) -> None:
    estimate = RatioEstimate(value=0.5, lo=0.4, hi=0.6, decision=decision, level=0.002, rounds=4, spread=0.07)
    back = RatioEstimate.from_json(estimate.to_json())
    assert (back.value, back.lo, back.hi, back.bounds) == (0.5, 0.4, 0.6, estimate.bounds)
    if decision is not None:
        assert back == estimate
    assert math.isnan(RatioEstimate.from_json({}).value)
    assert RatioEstimate.from_json({"value": 0.5, "ci95": None, "decision": [None, 0.9]}).bounds == (0.0, 0.9)
