"""The syntax of gates: parsed, or refused in one clear line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.gates.syntax import parse_gate, parse_metric


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
        ("p98<200ms", "p98", "<", 0.0, 200.0),
        ("p97.5<200ms", "p97_5", "<", 0.0, 200.0),
        ("p99.90<200ms", "p99_9", "<", 0.0, 200.0),
        ("p999<200ms", "p99_9", "<", 0.0, 200.0),
        ("p99.9999<200ms", "p99_9999", "<", 0.0, 200.0),
        ("p05<200ms", "p5", "<", 0.0, 200.0),
        ("p99<history", "p99", "<", 1.0, 0.0),
        ("p99 < history * 1.1 + 2ms", "p99", "<", 1.1, 2.0),
        ("accuracy>=history-0.01", "accuracy", ">=", 1.0, -0.01),
        ("cause:unexplained<history+5%", "cause:unexplained", "<", 1.0, 0.05),
    ],
)
def test_gates_that_parse(text: str, metric: str, operator: str, factor: float, limit: float) -> None:
    gate = parse_gate(text)
    assert (gate.metric, gate.operator, gate.factor) == (metric, operator, factor)
    assert gate.limit == pytest.approx(limit)
    assert gate.needs_baseline == ("baseline" in text)
    assert gate.needs_history == ("history" in text)
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
    "p0<200ms",
    "p100<200ms",
    "p199<200ms",
    "p99.99999<200ms",
    "p99.<200ms",
    "p-5<200ms",
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
    "p99<history*0",
    "p99<history*",
    "p99<histories",
    "p99<history*baseline",
    "p99<baseline*1" + "0" * 400,
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


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"expected cause:python\.gc;"):
        parse_gate("cause:python.gcs<10%")
    with pytest.raises(InputError, match="expected 'error_rate'"):
        parse_gate("errorrate<1%")
    with pytest.raises(InputError, match="'p0'; expected a percentile from 1 to below 100"):
        parse_gate("p0<1ms")


@pytest.mark.parametrize(
    ("name", "key"), [("p99.9", "p99_9"), ("p97", "p97"), ("throughput", "throughput"), ("cause:observer", None)]
)
def test_metric_names(name: str, key: str | None) -> None:
    assert parse_metric(name) == (key or name)


@pytest.mark.parametrize("name", ["", "p100", "p99<1ms", "cause:gc", "latency", "\x1b[31m"])
def test_an_unknown_metric_is_one_line(name: str) -> None:
    with pytest.raises(InputError, match=r"^--metric .*found .*expected") as caught:
        parse_metric(name)
    assert caught.value.message.isprintable()
