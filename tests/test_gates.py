"""Gates: what is parsed, what is refused, and when the data can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.gates import GateResult, GateSubject, check_gates, evaluate, exit_code, parse_gate
from latfix.statistics import LATENCY_KEYS, RatioEstimate


def _subject(**changes: Any) -> GateSubject:
    values: dict[str, Any] = {
        "latency_ms": dict.fromkeys(LATENCY_KEYS, 100.0),
        "latency_ci95_ms": dict.fromkeys(LATENCY_KEYS, (90.0, 120.0)),
        "requests": {"ok": 1000, "error": 0, "timeout": 0, "shed": 0},
        "throughput_rps": 50.0,
        "accuracy": 0.9,
    }
    return GateSubject(**{**values, **changes})


DIAGNOSIS: dict[str, Any] = {
    "latency_ms": dict.fromkeys(LATENCY_KEYS, 40.0),
    "latency_ci95_ms": {"p99": [38.0, 43.0]},
    "requests": {"ok": 500, "error": 2, "timeout": 0, "shed": 0},
    "throughput_rps": 25.0,
    "tail": {"excess_ms": 20.0, "unexplained_ms": 2.0, "unexplained_share": 0.1},
    "causes": [
        {"cause": "python.gc", "tail_share": 0.6, "ci95_ms": [10.0, 14.0]},
        {"cause": "host.contention", "tail_share": 0.3, "ci95_ms": [1.0, 9.0]},
        {"cause": "unexplained", "tail_share": 0.1, "ci95_ms": [0.0, 4.0]},
    ],
    "trustworthy": True,
}


@pytest.mark.parametrize(
    ("text", "metric", "operator", "factor", "limit"),
    [
        ("p99<200ms", "p99", "<", 0.0, 200.0),
        ("p99<=baseline*1.05", "p99", "<=", 1.05, 0.0),
        (" p99 <= baseline * 1.05 ", "p99", "<=", 1.05, 0.0),
        ("mean<0.2s", "mean", "<", 0.0, 200.0),
        ("p50<250us", "p50", "<", 0.0, 0.25),
        ("p99.9<1s", "p99_9", "<", 0.0, 1000.0),
        ("p99_9<1s", "p99_9", "<", 0.0, 1000.0),
        ("max<=2.5s", "max", "<=", 0.0, 2500.0),
        ("p95<=baseline+10ms", "p95", "<=", 1.0, 10.0),
        ("p95<=baseline*1.1+1ms", "p95", "<=", 1.1, 1.0),
        ("throughput>=40", "throughput", ">=", 0.0, 40.0),
        ("throughput>=40rps", "throughput", ">=", 0.0, 40.0),
        ("throughput>baseline*0.95", "throughput", ">", 0.95, 0.0),
        ("error_rate<1%", "error_rate", "<", 0.0, 0.01),
        ("error_rate<=0", "error_rate", "<=", 0.0, 0.0),
        ("error_rate<=baseline+0.5%", "error_rate", "<=", 1.0, 0.005),
        ("accuracy>=0.9", "accuracy", ">=", 0.0, 0.9),
        ("accuracy>=90%", "accuracy", ">=", 0.0, 0.9),
        ("accuracy>=baseline-0.01", "accuracy", ">=", 1.0, -0.01),
        ("unexplained_share<25%", "unexplained_share", "<", 0.0, 0.25),
        ("cause:python.gc<10%", "cause:python.gc", "<", 0.0, 0.1),
        ("p90<1e2ms", "p90", "<", 0.0, 100.0),
    ],
)
def test_gates_that_parse(text: str, metric: str, operator: str, factor: float, limit: float) -> None:
    gate = parse_gate(text)

    assert (gate.metric, gate.operator, gate.factor) == (metric, operator, factor)
    assert gate.limit == pytest.approx(limit)
    assert gate.needs_baseline == (factor > 0)
    assert parse_gate(gate.text) == gate


MALFORMED = [
    "",
    " ",
    "p99",
    "p99<",
    "<200ms",
    "p99 200ms",
    "p99=200ms",
    "p99==200ms",
    "p99!=200ms",
    "p99<>200ms",
    "p99=<200ms",
    "p99<200",
    "p99<200m",
    "p99<200min",
    "p99<200 ms ms",
    "p99<-200ms",
    "p99<nanms",
    "p99<infs",
    "p99<1e999ms",
    "p99<20,5ms",
    "p99<0x10ms",
    "p98<200ms",
    "P99<200ms",
    "latency<200ms",
    "p99<200%",
    "p99<baseline*",
    "p99<baseline*0",
    "p99<baseline*-1",
    "p99<baseline*1.05%",
    "p99<baseline+5%",
    "p99<baseline+10",
    "p99<1.05*baseline",
    "p99<base",
    "p99<baselines",
    "p99<200ms<300ms",
    "p99<200ms and mean<1s",
    "throughput>=40ms",
    "throughput>=40%",
    "error_rate<1",
    "error_rate<101%",
    "error_rate<5ms",
    "accuracy>=high",
    "accuracy>=0.9ms",
    "cause:<10%",
    "cause:python.gcc<10%",
    "cause:nothing<10%",
    "cause:python.gc<10ms",
    "unexplained<25%",
    "p99\n<\x00200ms",
    "p" * 5000 + "<1ms",
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_gates_are_one_clear_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_gate(text)

    message = caught.value.message
    assert message.startswith("--gate ") and "expected" in message and "p99<200ms" in message
    assert "\n" not in message and len(message) < 500
    assert caught.value.exit_code == 2


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        gate = parse_gate(text)
    except InputError as error:
        assert "\n" not in error.message
    else:
        assert gate.metric and gate.operator in ("<", "<=", ">", ">=")


def test_a_misspelled_name_is_put_right() -> None:
    with pytest.raises(InputError, match=r"expected cause:python\.gc;"):
        parse_gate("cause:python.gcs<10%")
    with pytest.raises(InputError, match="expected 'error_rate'"):
        parse_gate("errorrate<1%")


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
        ("throughput>=50", True),
        ("throughput>50rps", False),
        ("accuracy>=0.9", True),
        ("accuracy>90%", False),
    ],
)
def test_a_gate_passes_or_fails_only_where_the_interval_tells(text: str, passed: bool | None) -> None:
    result = evaluate(parse_gate(text), _subject())

    assert result.passed is passed
    assert result.to_json()["gate"] == text
    assert (result.more_requests is not None) == (passed is None and "100" not in text)


def test_how_many_more_requests_would_tell() -> None:
    # The limit lies half as far as the interval's end: four times the requests.
    result = evaluate(parse_gate("p99<110ms"), _subject())

    assert result.more_requests == 3000
    assert "about 3000 more requests" in result.reason
    assert "95 % interval 90 ms to 120 ms" in result.reason


def test_on_the_limit_no_number_of_requests_tells() -> None:
    result = evaluate(parse_gate("p99<100ms"), _subject())

    assert result.passed is None and result.more_requests is None
    assert "too close" in result.reason


def test_a_figure_without_interval_is_exact() -> None:
    assert evaluate(parse_gate("p99<101ms"), _subject(latency_ci95_ms={})).passed is True


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
        latency_ci95_ms=dict.fromkeys(LATENCY_KEYS, (1.0, 1000.0)),  # the unpaired interval would never tell
    )

    result = evaluate(parse_gate(text), new, _subject())

    assert result.passed is passed
    assert result.limit == pytest.approx(evaluate(parse_gate(text), _subject(), _subject()).limit)


def test_without_a_ratio_both_intervals_count() -> None:
    base = _subject(latency_ci95_ms=dict.fromkeys(LATENCY_KEYS, (60.0, 160.0)))
    new = _subject(latency_ms=dict.fromkeys(LATENCY_KEYS, 150.0), latency_ci95_ms={"p99": (145.0, 155.0)})

    assert evaluate(parse_gate("p99<=baseline*1.05"), new, base).passed is None
    assert evaluate(parse_gate("p99<=baseline*1.05"), new, replace(base, latency_ci95_ms={})).passed is False


def test_rates_have_wilson_intervals() -> None:
    def judged(text: str, failed: int, total: int) -> bool | None:
        requests = {"ok": total - failed, "error": failed, "timeout": 0, "shed": 0}
        return evaluate(parse_gate(text), _subject(requests=requests)).passed

    assert judged("error_rate<1%", 0, 1000) is True
    assert judged("error_rate<1%", 0, 100) is None
    assert judged("error_rate<1%", 50, 1000) is False
    assert judged("error_rate<=0", 0, 100) is True
    assert judged("error_rate<=0", 1, 100) is False


def test_error_rates_against_a_baseline() -> None:
    def judged(text: str, base: int, new: int) -> bool | None:
        arms = [_subject(requests={"ok": 1000 - k, "shed": k}) for k in (new, base)]
        return evaluate(parse_gate(text), arms[0], arms[1]).passed

    assert judged("error_rate<=baseline", 0, 0) is True
    assert judged("error_rate<=baseline+2%", 20, 20) is True
    assert judged("error_rate<=baseline", 20, 100) is False
    assert judged("error_rate<=baseline", 20, 22) is None


def test_a_late_replay_decides_no_latency() -> None:
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


def test_percentiles_of_survivors_do_not_pass_against_the_baseline() -> None:
    new = _subject(
        requests={"ok": 900, "shed": 100},
        latency_ms=dict.fromkeys(LATENCY_KEYS, 10.0),
        ratio={"p99": RatioEstimate(value=0.1, lo=0.09, hi=0.11)},
    )

    result = evaluate(parse_gate("p99<=baseline*1.05"), new, _subject())

    assert result.passed is None
    assert "error_rate" in result.reason
    assert "100 of 1000 requests did not end ok" in evaluate(parse_gate("p99<200ms"), new).reason


def test_a_figure_that_could_not_be_estimated_decides_nothing() -> None:
    unknown = _subject(ratio={"p99": RatioEstimate(value=1.0, lo=float("nan"), hi=float("nan"))})

    assert evaluate(parse_gate("p99<=baseline*1.05"), unknown, _subject()).passed is None


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


def test_gates_on_an_optimization() -> None:
    side = {"latency_ms": {"p99": 100.0}, "throughput_rps": 10.0, "requests": {"ok": 500}, "accuracy": 0.91}
    document = {
        "before": side,
        "after": {**side, "latency_ms": {"p99": 30.0}, "accuracy": 0.905},
        "ratio": {"p99": {"value": 0.3, "ci95": [0.25, 0.36]}, "p50": {}, "mean": {"value": None, "ci95": None}},
    }
    after, before = (GateSubject.from_optimization(document, side) for side in ("after", "before"))

    assert evaluate(parse_gate("p99<=baseline*0.4"), after, before).passed is True
    assert evaluate(parse_gate("p99<=baseline*0.3"), after, before).passed is None
    assert evaluate(parse_gate("accuracy>=baseline-0.01"), after, before).passed is True
    assert evaluate(parse_gate("accuracy>=baseline-0.001"), after, before).passed is False


def test_a_missing_baseline_or_figure_is_the_user_s_mistake() -> None:
    with pytest.raises(InputError, match="no baseline"):
        evaluate(parse_gate("p99<=baseline*1.05"), _subject())
    with pytest.raises(InputError, match="no accuracy"):
        evaluate(parse_gate("accuracy>=0.9"), _subject(accuracy=None))
    with pytest.raises(InputError, match=r"no cause:python\.gc"):
        evaluate(parse_gate("cause:python.gc<10%"), _subject())


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
