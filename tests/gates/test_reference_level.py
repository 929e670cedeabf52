"""Earlier runs as a level: how often an unchanged service seems to differ from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from latfix.gates.evaluate import evaluate
from latfix.gates.reference_level import FEWEST_RUNS, MOST_RUNS, Level, Past
from latfix.gates.subject import GateSubject
from latfix.gates.syntax import parse_gate


def _run(p99: float) -> GateSubject:
    return GateSubject(latency_ms={"p99": p99}, requests={"ok": 500})


def test_the_level_is_a_median_with_its_own_spread() -> None:
    level = Level.of([90.0, 100.0, 110.0, 100.0, 1000.0], "p99")
    assert level.value == 100.0 and level.by_factor
    assert level.spread == pytest.approx(math.sqrt((math.log(0.9) ** 2 + math.log(1.1) ** 2 + math.log(10) ** 2) / 4))
    shares = Level.of([0.0, 0.1, 0.2], "error_rate")
    assert (shares.value, shares.by_factor) == (0.1, False)
    assert shares.spread == pytest.approx(0.1)


def test_more_runs_narrow_the_level() -> None:
    level = Level.of([99.0, 100.0, 101.0, 100.0, 100.0], "p99")
    assert level.one_more(10) < level.one_more()
    assert level.own_doubt(20) < level.own_doubt(10) < level.own_doubt() < level.one_more()


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("runs", [FEWEST_RUNS, MOST_RUNS])
def test_an_unchanged_service_is_rarely_called_changed(runs: int, heavy: bool) -> None:
    """GIVEN runs that differ by 5 % of themselves; THEN `p99<history` fails 2 to 4 of 100, and passes as many."""
    rng = np.random.default_rng(7)
    gate, decided, trials = parse_gate("p99<history"), 0, 600
    for _ in range(trials):
        away = rng.standard_t(3, runs + 1) / math.sqrt(3) if heavy else rng.normal(0, 1, runs + 1)
        values = 100 * np.exp(0.05 * away)
        result = evaluate(gate, _run(values[-1]), past=Past(runs=tuple(_run(v) for v in values[:-1].tolist())))
        decided += result.passed is not None
    assert decided / trials <= (0.09 if heavy else 0.065)


def test_a_rise_that_is_large_for_the_spread_is_detected() -> None:
    rng = np.random.default_rng(8)
    gate, failed, trials = parse_gate("p99<=history*1.05"), 0, 200
    for _ in range(trials):
        values = 100 * np.exp(rng.normal(0, 0.03, MOST_RUNS + 1))
        past = Past(runs=tuple(_run(v) for v in values[:-1].tolist()))
        failed += evaluate(gate, _run(values[-1] * 1.3), past=past).passed is False
    assert failed / trials >= 0.95


def test_why_there_is_no_level() -> None:
    assert Past(missing="off").why_none("p99") == ("off", None)
    words, missing = Past(runs=(_run(1.0), _run(2.0))).why_none("p99")
    assert missing == FEWEST_RUNS - 2 and words.startswith("2 comparable runs in the history: 3 more")
    many = Past(runs=tuple(_run(1.0) for _ in range(7)))
    assert many.level("p99") is not None and many.level("mean") is None
    assert many.why_none("mean")[0].startswith("7 comparable runs in the history, 0 of them with mean")
