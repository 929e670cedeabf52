"""Gates: when the data decide, and the result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.formatting import LATENCY_KEYS
from latfix.gates.evaluate import GateResult, check_gates, evaluate, exit_code
from latfix.gates.reference_level import FEWEST_RUNS, Past
from latfix.gates.subject import GateSubject
from latfix.gates.syntax import parse_gate
from latfix.results.diagnosis import CauseSummary, Diagnosis, Source
from latfix.stages import Status
from latfix.statistics.censored import Outcomes
from latfix.statistics.decision import RatioEstimate
from latfix.statistics.latency_summary import summarize_ms, summary_intervals_ms
from tests.records import cause_summary


def _subject(**changes: Any) -> GateSubject:
    values: dict[str, Any] = {
        "latency_ms": dict.fromkeys(LATENCY_KEYS, 100.0),
        "latency_ci95_ms": dict.fromkeys(LATENCY_KEYS, (90.0, 120.0)),
        "requests": {"ok": 1000, "error": 0, "timeout": 0, "shed": 0},
        "throughput_rps": 50.0,
        "accuracy": 0.9,
    }
    return GateSubject(**{**values, **changes})


def _cause(cause: str, share: float, ci95_ms: tuple[float, float]) -> CauseSummary:
    return cause_summary(cause, 20 * share, tail_share=share, ci95_ms=ci95_ms, requests=5)


DIAGNOSIS = Diagnosis(
    workload="ranker",
    device="cpu",
    latency_ms=dict.fromkeys(LATENCY_KEYS, 40.0),
    latency_ci95_ms={"p99": (38.0, 43.0)},
    requests={"ok": 500, "error": 2, "timeout": 0, "shed": 0},
    throughput_rps=25.0,
    verdict="python.gc",
    sentence="",
    percentile=99,
    excess_ms=20.0,
    unexplained_ms=2.0,
    causes=(
        _cause("python.gc", 0.6, (10.0, 14.0)),
        _cause("host.contention", 0.3, (1.0, 9.0)),
        _cause("unexplained", 0.1, (0.0, 4.0)),
    ),
)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("p99<121ms", True),
        ("p99<120ms", None),
        ("p99<=120ms", True),
        ("p99<110ms", None),
        ("p99<95ms", None),
        ("p99<90ms", False),
        ("p99<=89ms", False),
        ("p99>80ms", True),
        ("p99>120ms", False),
        ("throughput>=49.5", True),
        ("throughput>=49.9", None),
        ("throughput>50.5rps", False),
        ("accuracy>=0.9", True),
        ("accuracy>90%", False),
    ],
)
def test_a_gate_passes_or_fails_only_if_the_interval_decides(text: str, passed: bool | None) -> None:
    result = evaluate(parse_gate(text), _subject())
    assert result.passed is passed
    assert result.to_json()["gate"] == text
    assert (result.more_requests is not None) == (passed is None and "100" not in text)


@pytest.mark.parametrize(
    ("ratio", "text", "passed"),
    [
        ((0.9, 1.02), "p99<=baseline*1.05", True),
        ((0.9, 1.2), "p99<=baseline*1.05", None),
        ((1.06, 1.2), "p99<=baseline*1.05", False),
        ((0.2, 0.3), "p99<baseline*0.4", True),
        ((0.9, 1.02), "p99<=baseline+5ms", True),
        ((0.9, 1.02), "p99<=baseline+1ms", None),
    ],
)
def test_a_paired_ratio_decides_against_the_baseline(
    ratio: tuple[float, float], text: str, passed: bool | None
) -> None:
    lo, hi = ratio
    value = (lo + hi) / 2
    new = _subject(
        latency_ms=dict.fromkeys(LATENCY_KEYS, 100.0 * value),
        ratio={"p99": RatioEstimate(value=value, lo=lo, hi=hi)},
        latency_ci95_ms=dict.fromkeys(LATENCY_KEYS, (1.0, 1000.0)),  # the unpaired interval would never decide
    )
    result = evaluate(parse_gate(text), new, _subject())
    assert result.passed is passed
    assert result.limit == pytest.approx(evaluate(parse_gate(text), _subject(), _subject()).limit)


def test_the_figure_of_paired_rounds_is_their_ratio_times_the_baseline() -> None:
    """All requests together may have another ratio, beyond the bounds of the rounds'."""
    ratio = RatioEstimate(value=1.02, lo=1.0, hi=1.03, decision=(0.99, 1.04), rounds=20)
    base = _subject()
    new = replace(_subject(ratio={"p99": ratio}), latency_ms={**base.latency_ms, "p99": 1.2 * base.latency_ms["p99"]})
    result = evaluate(parse_gate("p99<=baseline*1.05"), new, base)
    assert result.passed and result.value == pytest.approx(1.02 * base.latency_ms["p99"])


def test_without_a_ratio_both_intervals_count() -> None:
    base = _subject(latency_ci95_ms=dict.fromkeys(LATENCY_KEYS, (60.0, 160.0)))
    new = _subject(latency_ms=dict.fromkeys(LATENCY_KEYS, 150.0), latency_ci95_ms={"p99": (145.0, 155.0)})
    assert evaluate(parse_gate("p99<=baseline*1.05"), new, base).passed is None
    assert evaluate(parse_gate("p99<=baseline*1.05"), new, replace(base, latency_ci95_ms={})).passed is False


@pytest.mark.parametrize(
    ("text", "failed", "total", "passed"),
    [
        ("error_rate<1%", 0, 1000, True),
        ("error_rate<1%", 0, 100, None),
        ("error_rate<1%", 50, 1000, False),
        ("error_rate<=0", 0, 100, True),
        ("error_rate<=0", 1, 100, False),
    ],
)
def test_rates_have_wilson_intervals(text: str, failed: int, total: int, passed: bool | None) -> None:
    assert evaluate(parse_gate(text), _subject(requests={"ok": total - failed, "error": failed})).passed is passed


@pytest.mark.parametrize(
    ("text", "passed"),
    [("throughput>=baseline", None), ("throughput>=baseline*0.98", True), ("throughput>baseline*1.02", False)],
)
def test_the_end_of_the_last_request_is_no_difference_in_throughput(text: str, passed: bool | None) -> None:
    """1,000 requests in 20 s, the last of which may take its 100 ms or none."""
    for rate in (49.9, 50.0, 50.1):
        assert evaluate(parse_gate(text), _subject(throughput_rps=rate), _subject()).passed is passed


def test_throughput_of_piled_up_requests_is_as_certain_as_the_mean() -> None:
    """The last request waits for all work before it: seconds, of which the mean's interval leaves a few per cent."""
    slow = dict.fromkeys(LATENCY_KEYS, 10_000.0)
    piled = _subject(latency_ms=slow, latency_ci95_ms={"mean": (9_700.0, 10_300.0)})
    assert evaluate(parse_gate("throughput>=48"), piled).passed is True
    assert evaluate(parse_gate("throughput>=49"), piled).passed is None
    assert evaluate(parse_gate("throughput>=48"), replace(piled, latency_ci95_ms={})).passed is None


def test_throughput_of_piled_up_requests_against_a_baseline_allows_for_restarts() -> None:
    slow = dict.fromkeys(LATENCY_KEYS, 10_000.0)
    base = _subject(latency_ms=slow, latency_ci95_ms={"mean": (9_900.0, 10_100.0)})
    ratio = {"mean": RatioEstimate(value=1.04, lo=1.02, hi=1.06, decision=(0.98, 1.1))}
    gate = parse_gate("throughput>=baseline*0.98")
    assert evaluate(gate, replace(base, throughput_rps=48.0, ratio=ratio), base).passed is None
    assert evaluate(gate, replace(base, throughput_rps=48.0), base).passed is None
    assert evaluate(gate, replace(base, throughput_rps=45.0, ratio=ratio), base).passed is False


def test_pooled_rounds_end_once_each() -> None:
    ratio = {"p99": RatioEstimate(value=1.0, lo=0.9, hi=1.1, rounds=5)}
    assert evaluate(parse_gate("throughput>=49.5"), _subject(ratio=ratio)).passed is None
    assert evaluate(parse_gate("throughput>=48.5"), _subject(ratio=ratio)).passed is True


def test_a_cause_against_a_baseline_holds_the_doubt_of_both() -> None:
    def side(share: float, lo: float, hi: float) -> GateSubject:
        return _subject(cause_shares={"python.gc": share}, cause_shares_ci95={"python.gc": (lo, hi)})

    gate = parse_gate("cause:python.gc<=baseline*1.1")
    new = side(0.30, 0.29, 0.31)
    assert evaluate(gate, new, side(0.25, 0.24, 0.26)).passed is False
    assert evaluate(gate, new, side(0.25, 0.10, 0.40)).passed is None, "the baseline may have been 0.3"
    assert evaluate(gate, new, side(0.40, 0.38, 0.42)).passed is True


@pytest.mark.parametrize(
    ("text", "requests", "passed", "more"),
    [
        ("p99.9<20ms", 300, None, 3389),
        ("p99.9<20ms", 3000, True, None),
        ("p99.9<170ms", 300, True, None),
        ("p99.9<10ms", 300, False, None),
        ("p99.9<15ms", 300, None, 3389),
        ("p99.9<14ms", 3000, None, 9000),
        ("p99.95>20ms", 300, None, 7078),
        ("p99<20ms", 300, True, None),
        ("mean<16ms", 300, True, None),
    ],
)
def test_a_percentile_beyond_the_slowest_request_passes_nothing(
    text: str, requests: int, passed: bool | None, more: int | None
) -> None:
    """Three in four runs of 300 requests miss the slowest 1 in 1,000, and each underestimates the figure."""
    keys = (*LATENCY_KEYS, "p99_95")
    run = _subject(
        latency_ms={**dict.fromkeys(keys, 13.0), "max": 13.6},
        latency_ci95_ms=dict.fromkeys(keys, (11.0, 15.0)),
        requests={"ok": requests},
    )
    result = evaluate(parse_gate(text), run)
    assert (result.passed, result.more_requests) == (passed, more), result.reason


def test_pauses_that_a_short_run_missed_are_not_ruled_out() -> None:
    """GIVEN a pause of 100 ms in 1 of 500 requests; THEN no run of 300 passes `p99.9<50ms`; half have none."""
    unmet = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        paused = rng.random(300) < 0.002
        latencies = (10 * rng.lognormal(0, 0.1, 300) + 100 * paused) * 1e6
        run = _subject(
            latency_ms=summarize_ms(latencies),
            latency_ci95_ms=summary_intervals_ms(latencies, seed=0, replicates=50),
            requests={"ok": 300},
        )
        assert evaluate(parse_gate("p99.9<50ms"), run).passed is not True
        unmet += not paused.any()
    assert unmet > 20


@pytest.mark.parametrize(
    ("more", "base", "new", "passed"),
    [("", 0, 0, True), ("+2%", 20, 20, True), ("", 20, 100, False), ("", 20, 22, None)],
)
def test_error_rates_against_a_baseline(more: str, base: int, new: int, passed: bool | None) -> None:
    arms = [_subject(requests={"ok": 1000 - k, "shed": k}) for k in (new, base)]
    assert evaluate(parse_gate(f"error_rate<=baseline{more}"), *arms).passed is passed


def test_a_late_replay_decides_no_latency_gate() -> None:
    late = _subject(trustworthy=False)
    assert evaluate(parse_gate("p99<1s"), late).passed is None
    assert "too late" in evaluate(parse_gate("p99<1s"), late).reason
    assert evaluate(parse_gate("error_rate<1%"), late).passed is True
    assert evaluate(parse_gate("accuracy>=0.8"), late).passed is True


def test_an_empty_or_failed_run_passes_nothing() -> None:
    zeros = dict.fromkeys(LATENCY_KEYS, 0.0)
    empty = _subject(latency_ms=zeros, latency_ci95_ms={}, requests={"ok": 0})
    failed = _subject(latency_ms=zeros, latency_ci95_ms={}, requests={"ok": 0, "error": 100})
    assert evaluate(parse_gate("p99<200ms"), empty).passed is None
    assert evaluate(parse_gate("error_rate<1%"), empty).passed is None
    assert evaluate(parse_gate("p99<200ms"), failed).passed is False
    assert evaluate(parse_gate("error_rate<1%"), failed).passed is False


def test_percentiles_of_survivors_do_not_pass_a_baseline_gate() -> None:
    new = _subject(
        requests={"ok": 900, "shed": 100},
        latency_ms=dict.fromkeys(LATENCY_KEYS, 10.0),
        ratio={"p99": RatioEstimate(value=0.1, lo=0.09, hi=0.11)},
    )
    result = evaluate(parse_gate("p99<=baseline*1.05"), new, _subject())
    assert result.passed is None
    assert "error_rate" in result.reason
    assert "100 of 1000 requests did not end ok" in evaluate(parse_gate("p99<200ms"), new).reason


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("p99<44ms", True),
        ("p99<40.5ms", None),
        ("unexplained_share<25%", True),
        ("unexplained_share<10%", False),
        ("cause:python.gc<10%", False),
        ("cause:python.gc>40%", True),
        ("cause:host.contention<20%", None),
        ("cause:cold.compile<1%", True),
        ("error_rate<5%", True),
        ("throughput>=20", True),
    ],
)
def test_gates_on_a_diagnosis(text: str, passed: bool | None) -> None:
    assert evaluate(parse_gate(text), GateSubject.from_diagnosis(DIAGNOSIS)).passed is passed


@pytest.mark.parametrize("text", ["unexplained_share<25%", "cause:python.gc<10%", "cause:unexplained>1%"])
def test_shares_of_an_unknown_tail_decide_nothing(text: str) -> None:
    """As of a scrape of metrics, or of a single request."""
    unknown = replace(DIAGNOSIS, excess_ms=math.nan, unexplained_ms=math.nan, causes=())
    assert unknown.to_json()["tail"]["unexplained_share"] is None
    result = evaluate(parse_gate(text), GateSubject.from_diagnosis(unknown))
    assert (result.passed, result.value) == (None, None)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("cause:python.gc<10%", False),
        ("cause:cold.compile<1%", None),
        ("cause:cold.compile>1%", None),
        ("cause:cold.compile<=baseline", None),
        ("cause:input.size<1%", True),
        ("cause:traffic.burst<1%", None),
        ("p99<44ms", True),
    ],
)
def test_a_cause_that_the_source_cannot_show_is_unknown_not_absent(text: str, passed: bool | None) -> None:
    """Of a list, ``seen`` holds what has no share in this run; a share may be unknown, too."""
    causes = (*DIAGNOSIS.causes, _cause("traffic.burst", math.nan, (math.nan, math.nan)))
    source, seen = Source(kind="http", path=""), ("input.size", "unexplained")
    outside = GateSubject.from_diagnosis(replace(DIAGNOSIS, causes=causes, source=source, seen=seen))
    inside = GateSubject.from_diagnosis(DIAGNOSIS)
    result = evaluate(parse_gate(text), outside, inside)
    assert result.passed is passed
    if passed is None:
        assert result.value is None and f"{result.gate.cause} is unknown: " in result.reason
    if "baseline" in text:
        assert evaluate(parse_gate(text), inside, outside).passed is None


def test_a_missing_baseline_or_figure_is_the_user_s_mistake() -> None:
    with pytest.raises(InputError, match="no baseline"):
        evaluate(parse_gate("p99<=baseline*1.05"), _subject())
    with pytest.raises(InputError, match=r"no cause:python\.gc"):
        evaluate(parse_gate("cause:python.gc<10%"), _subject())


@pytest.mark.parametrize(
    ("text", "unknown", "passed"),
    [
        ("accuracy>=0.5", "new", None),
        ("accuracy>=0.5", "base", True),
        ("accuracy>=baseline-0.5", "new", None),
        ("accuracy>=baseline-0.5", "base", None),
    ],
)
def test_an_accuracy_that_was_not_measured_passes_no_gate(text: str, unknown: str, passed: bool | None) -> None:
    sides = [_subject(accuracy=None if unknown == side else 0.9) for side in ("new", "base")]
    result = evaluate(parse_gate(text), *sides)
    assert result.passed is passed and (result.value is None) == (passed is None)


@pytest.mark.parametrize("text", ["p99<baseline", "accuracy>=0.9", "cause:python.gc<10%", "unexplained_share<25%"])
def test_gates_that_cannot_be_evaluated_are_refused_before_the_run(text: str) -> None:
    gates = [parse_gate("p99<1s"), parse_gate(text)]
    check_gates(gates, baseline=True, accuracy=True, causes=True)
    with pytest.raises(InputError, match="--gate"):
        check_gates(gates, baseline=False, accuracy=False, causes=False)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [([], 0), ([True, True], 0), ([True, None], 3), ([None, False, True], 1), ([False], 1)],
)
def test_exit_codes(outcomes: list[bool | None], code: int) -> None:
    gate = parse_gate("p99<1s")
    results = [GateResult(gate=gate, value=1.0, limit=1.0, passed=passed, reason="") for passed in outcomes]
    assert exit_code(results) == code


def test_how_many_more_requests_would_decide_and_how_long_they_take() -> None:
    # The limit lies half as far as the interval's end: four times the requests.
    # 50 ok a second of 1,000: 3,000 more take a minute; with half of them lost, they come twice as fast.
    result = evaluate(parse_gate("p99<110ms"), _subject())
    half = evaluate(parse_gate("p99<110ms"), _subject(requests={"ok": 500, "shed": 500}))
    assert result.more_requests == 3000 and result.more_minutes == pytest.approx(1.0)
    assert half.more_minutes == pytest.approx(0.5)
    for words in ("about 3,000 more requests", "95 % interval 90 ms to 120 ms", "(60 s at this traffic's rate)"):
        assert words in result.reason
    on_the_limit = evaluate(parse_gate("p99<100ms"), _subject())
    assert on_the_limit.passed is on_the_limit.more_requests is None and "too close" in on_the_limit.reason
    exact = evaluate(parse_gate("p99<101ms"), _subject(latency_ci95_ms={}))
    assert exact.passed is True, "a figure without an interval"
    assert result.to_json()["more_minutes"] == pytest.approx(1.0)
    assert evaluate(parse_gate("p99<110ms"), _subject(throughput_rps=None)).more_minutes is None


@pytest.mark.parametrize(
    ("failed", "total", "limit", "beside"),
    [(0, 29, 0.01, ""), (0, 200, 0.01, ""), (0, 29, 0.001, ""), (40, 1000, 0.035, ""), (0, 100, 0.02, "<=baseline+")],
)
def test_how_many_more_requests_would_decide_an_error_rate(
    failed: int, total: int, limit: float, beside: str
) -> None:
    """So many, with errors as often, decide, and a tenth fewer do not."""
    gate = parse_gate(f"error_rate{beside or '<'}{100 * limit:g}%")

    def result(more: float) -> GateResult:
        errors = round(failed * (1 + more / total))
        run = _subject(requests={"ok": round(total + more) - errors, "error": errors})
        return evaluate(gate, run, run if beside else None)

    more = result(0).more_requests
    assert result(0).passed is None and more is not None
    assert result(1.05 * more).passed is not None
    assert result(0.9 * more).passed is None


def test_an_error_rate_at_its_limit_is_not_decided_by_more_requests() -> None:
    result = evaluate(parse_gate("error_rate<1%"), _subject(requests={"ok": 990, "error": 10}))
    assert result.passed is None and result.more_requests is None and "too close" in result.reason


def test_an_uncertain_ratio_at_its_limit_is_not_called_undecidable() -> None:
    """The same service may show the limit itself after a few noisy rounds."""
    ratio = RatioEstimate(value=1.1, lo=0.76, hi=1.54, decision=(0.6, 2.0), rounds=5, spread=0.3)
    result = evaluate(parse_gate("p50<=baseline*1.1"), _subject(ratio={"p50": ratio}), _subject())
    assert result.passed is None and result.more_requests is not None
    assert "more rounds of both" in result.reason and result.reason.endswith("would decide it if nothing changed")
    sure = replace(ratio, lo=1.09, hi=1.11, decision=(1.08, 1.12), spread=0.01)
    near = evaluate(parse_gate("p50<=baseline*1.1"), _subject(ratio={"p50": sure}), _subject())
    assert near.passed is None and near.more_requests is None and "too close" in near.reason


def test_rounds_of_both_arms_decide_a_ratio() -> None:
    ratio = RatioEstimate(value=0.97, lo=0.93, hi=1.01, decision=(0.85, 1.12), rounds=3, spread=0.05)
    new = _subject(ratio={"p99": ratio})
    result = evaluate(parse_gate("p99<=baseline*1.05"), new, _subject())
    assert result.passed is None
    assert "more rounds of both" in result.reason and "99.5 % bounds 85 ms to 112 ms" in result.reason
    assert result.more_requests is not None and result.more_minutes is not None
    # Both arms are replayed: a request of each takes twice the time of one.
    assert result.more_minutes == pytest.approx(2 * result.more_requests / 50 / 60)
    # Starts of processes count, where they are known.
    timed = evaluate(parse_gate("p99<=baseline*1.05"), replace(new, round_s=60.0), _subject())
    assert timed.more_requests == result.more_requests and timed.more_minutes == float(
        timed.reason.split("about ")[1][0]
    )


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ((0.3, float("inf")), "bounds 30 ms to no bound"),
        ((0.3, 1e8), "bounds 30 ms to no bound"),
        ((1e-8, 1e8), ", and so few replays cannot tell:"),
        ((float("nan"), float("nan")), ""),
    ],
)
def test_open_and_unknown_bounds_leave_a_gate_undecided(decision: tuple[float, float], words: str) -> None:
    ratio = RatioEstimate(value=0.5, lo=decision[0], hi=decision[1], decision=decision, rounds=1, spread=0.1)
    result = evaluate(parse_gate("p99<baseline"), _subject(ratio={"p99": ratio}), _subject())
    assert result.passed is None and words in result.reason


def _past(*values: float) -> Past:
    figures = [{**dict.fromkeys(LATENCY_KEYS, 1.0), "p99": value} for value in values]
    return Past(runs=tuple(_subject(latency_ms=latency_ms) for latency_ms in figures))


STEADY = (100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 99.0, 100.0)


@pytest.mark.parametrize(
    ("value", "text", "passed"),
    [
        (100.0, "p99<history*1.1", True),
        (104.0, "p99<history*1.1", True),
        (110.0, "p99<history*1.1", None),
        (120.0, "p99<history*1.1", False),
        (100.0, "p99<history+10ms", True),
        (80.0, "p99<history", True),
        (100.0, "p99<history", None),
        (130.0, "p99<history", False),
    ],
)
def test_the_history_decides_if_its_spread_allows(value: float, text: str, passed: bool | None) -> None:
    figures = {**dict.fromkeys(LATENCY_KEYS, 1.0), "p99": value}
    run = _subject(latency_ms=figures, latency_ci95_ms={"p99": (value * 0.99, value * 1.01)})
    result = evaluate(parse_gate(text), run, past=_past(*STEADY))
    assert result.passed is passed, result.reason
    assert "median 100 ms of the last 10 runs" in result.reason


def test_a_larger_spread_of_runs_decides_less() -> None:
    run = _subject(latency_ci95_ms={"p99": (99.5, 100.5)})
    restless = [value + 20 * (-1) ** k for k, value in enumerate(STEADY)]
    # Compared with runs of the same requests, other requests add no uncertainty.
    for known in (run, _subject(latency_ci95_ms={"p99": (60.0, 160.0)})):
        assert evaluate(parse_gate("p99<history*1.1"), known, past=_past(*STEADY)).passed is True
    result = evaluate(parse_gate("p99<history*1.1"), run, past=_past(*restless))
    assert result.passed is None
    assert "runs of an unchanged service differ by up to a factor of 1." in result.reason
    assert result.more_requests is not None and result.more_minutes is not None
    assert f"about {result.more_requests:,} more requests in every run" in result.reason
    on_the_limit = evaluate(parse_gate("p99<history"), run, past=_past(*restless))
    assert on_the_limit.passed is None and on_the_limit.more_requests is None
    assert "compare with a baseline measured side by side" in on_the_limit.reason


@pytest.mark.parametrize("runs", range(FEWEST_RUNS))
def test_too_few_runs_report_how_many_are_missing(runs: int) -> None:
    result = evaluate(parse_gate("p99<history*9"), _subject(), past=_past(*STEADY[:runs]))
    assert result.passed is None and result.limit is None
    assert result.more_runs == FEWEST_RUNS - runs
    assert f"{FEWEST_RUNS - runs} more needed" in result.reason
    assert exit_code([result]) == 3


def test_more_runs_are_requested_if_they_would_decide() -> None:
    run = _subject(latency_ms={**dict.fromkeys(LATENCY_KEYS, 1.0), "p99": 106.5}, latency_ci95_ms={})
    few = evaluate(parse_gate("p99<history*1.1"), run, past=_past(*STEADY[:FEWEST_RUNS]))
    many = evaluate(parse_gate("p99<history*1.1"), run, past=_past(*STEADY))
    assert few.passed is None and few.more_runs is not None and "in the history would decide it" in few.reason
    assert many.passed is True


def test_a_gate_reports_that_the_history_is_off() -> None:
    result = evaluate(parse_gate("p99<history*1.1"), _subject(), past=Past(missing="there is no history /x"))
    assert result.passed is None and "there is no history /x" in result.reason and result.more_runs is None


def test_survivors_and_failed_runs_do_not_pass_against_the_history() -> None:
    gate = parse_gate("p99<history*1.1")
    fast = {"latency_ms": dict.fromkeys(LATENCY_KEYS, 5.0), "latency_ci95_ms": {}}
    lost = evaluate(gate, _subject(requests={"ok": 900, "shed": 100}, **fast), past=_past(*STEADY))
    none = evaluate(gate, _subject(requests={"ok": 0, "error": 100}, **fast), past=_past(*STEADY))
    assert lost.passed is None and "than in the history" in lost.reason
    assert none.passed is False


def test_metrics_other_than_latencies_against_the_history() -> None:
    def past(**changes: Any) -> Past:
        return Past(runs=tuple(_subject(**changes) for _ in range(6)))

    exact = past(accuracy=0.9)
    assert evaluate(parse_gate("accuracy>=history-0.01"), _subject(accuracy=0.895), past=exact).passed is True
    assert evaluate(parse_gate("accuracy>=history-0.01"), _subject(accuracy=0.88), past=exact).passed is False
    assert evaluate(parse_gate("throughput>=history*0.9"), _subject(throughput_rps=40.0), past=past()).passed is False
    steady = past(requests={"ok": 1000})
    assert evaluate(parse_gate("error_rate<=history"), _subject(requests={"ok": 1000}), past=steady).passed is True
    bad = _subject(requests={"ok": 900, "error": 100})
    assert evaluate(parse_gate("error_rate<=history"), bad, past=steady).passed is False
    shares = past(cause_shares={"python.gc": 0.1}, unexplained_share=0.1)
    run = _subject(
        cause_shares={"python.gc": 0.5}, cause_shares_ci95={"python.gc": (0.4, 0.6)}, unexplained_share=0.1
    )
    assert evaluate(parse_gate("cause:python.gc<history+10%"), run, past=shares).passed is False
    assert evaluate(parse_gate("unexplained_share<=history+10%"), run, past=shares).passed is True


def test_a_percentile_that_older_runs_lack_stays_unknown() -> None:
    run = _subject(latency_ms={**dict.fromkeys(LATENCY_KEYS, 100.0), "p97_25": 100.0})
    result = evaluate(parse_gate("p97.25<history*2"), run, past=_past(*STEADY))
    assert result.passed is None and "0 of them with p97.25" in result.reason


def test_a_gate_on_the_history_needs_one() -> None:
    gate = parse_gate("p99<history")
    with pytest.raises(InputError, match="no history here"):
        check_gates([gate], baseline=True, accuracy=True, causes=True)
    with pytest.raises(InputError, match="no history here"):
        evaluate(gate, _subject())
    check_gates([gate], baseline=False, accuracy=False, causes=False, history=True)


def _lossy(*, lost: int = 76, total: int = 600, **changes: Any) -> GateSubject:
    """A run whose timeouts cut off its slowest requests at 12 ms."""
    statuses = np.where(np.arange(total) % (total // lost) == 0, int(Status.TIMEOUT), int(Status.OK))
    waited = np.where(statuses == Status.OK, np.linspace(8e6, 10e6, total), 12e6)
    outcomes = Outcomes.of(waited, statuses)
    ok = int(outcomes.answered.sum())
    return _subject(
        latency_ms=outcomes.summary_ms(),
        latency_ci95_ms=outcomes.intervals_ms(seed=0),
        requests={"ok": ok, "error": 0, "timeout": total - ok, "shed": 0},
        **changes,
    )


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ("p99<15ms", False),  # of those that ended ok it is below 10 ms
        ("p99<11ms", False),
        ("p99>11ms", True),
        ("p99>15ms", None),
        ("max<1s", False),
        ("p50<15ms", True),
        ("mean<15ms", True),
    ],
)
def test_a_percentile_that_is_lost_fails_its_limit(gate: str, passed: bool | None) -> None:
    result = evaluate(parse_gate(gate), _lossy())
    assert result.passed is passed
    if passed is False:
        assert "timeout" in result.reason and "> 12" in result.reason
        assert result.to_json()["value"] is None and result.to_json()["value_at_least"] == pytest.approx(12.0)


def test_losses_do_not_pass_a_baseline() -> None:
    gate = parse_gate("p99<=baseline*1.05")
    assert evaluate(gate, _lossy(), _subject()).passed is False
    assert evaluate(gate, _lossy(), _lossy()).passed is None
    assert evaluate(gate, _subject(), _lossy()).passed is None  # 100 ms may be less than what the baseline lost
    faster = dict.fromkeys(LATENCY_KEYS, 2.0), dict.fromkeys(LATENCY_KEYS, (1.9, 2.1))
    assert evaluate(gate, _subject(latency_ms=faster[0], latency_ci95_ms=faster[1]), _lossy()).passed is True


@pytest.mark.parametrize("gate", ["p99<200ms", "error_rate<5%", "throughput>10", "mean<=baseline*3"])
def test_a_partial_run_passes_no_gate(gate: str) -> None:
    whole, part = _subject(), _subject(partial=True)
    assert evaluate(parse_gate(gate), whole, whole).passed is True
    result = evaluate(parse_gate(gate), part, whole)
    assert result.passed is None and "partial" in result.reason
    if "baseline" in gate:
        assert evaluate(parse_gate(gate), whole, part).passed is None


def test_a_hung_run_fails_limits_that_its_requests_exceeded() -> None:
    waited, statuses = [5e6] * 390 + [60e9] * 10, [Status.OK] * 390 + [Status.UNFINISHED] * 10
    outcomes = Outcomes.of(waited, statuses)
    requests = {"ok": 390, "error": 0, "timeout": 0, "shed": 0, "unfinished": 10}
    hung = _subject(latency_ms=outcomes.summary_ms(), latency_ci95_ms={}, requests=requests, partial=True)
    assert evaluate(parse_gate("p99<15ms"), hung).passed is False
    assert evaluate(parse_gate("p99<70s"), hung).passed is None
