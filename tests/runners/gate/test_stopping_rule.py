"""When a gate stops, on simulated time: decided, out of budget, interrupted; what is refused before."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.gates.syntax import parse_gate
from latfix.reports.ci.ci_summary import read_summary
from latfix.reports.ci.junit import junit_xml
from latfix.reports.ci.markdown import markdown
from latfix.results.comparison import Comparison
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.gate.paired_rounds import Round
from latfix.runners.gate.stopping_rule import Decision, check, decide, with_causes
from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.traffic.schedule import Traffic
from tests.profilers.samples import add_samples
from tests.records import build_record, zeros


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects here are clear or none."""
    monkeypatch.setattr("latfix.results.comparison.arm_ratios", partial(arm_ratios, replicates=100))


GATES = [parse_gate("mean<=baseline*1.1"), parse_gate("p50<=baseline*1.1")]
N, ROUND_S = 60, 10.0


def record(latency_ms: np.ndarray, late_ms: float = 0.0) -> RunRecord:
    """Requests that compute a third of the time and wait the rest."""
    n = len(latency_ms)
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"] = np.arange(n)
    rows["latency_ns"] = (latency_ms * 1e6).astype(np.int64)
    rows["compute_ns"] = rows["latency_ns"] // 3
    rows["queue_ns"] = rows["latency_ns"] - rows["compute_ns"]
    rows["dispatch_ns"] = np.full(n, int(late_ms * 1e6))
    traffic = Traffic.plain(np.arange(n) * 20_000_000)
    return build_record(rows, traffic=traffic, traffic_sha256="same", workload="w", scheduled=n)


class Service:
    """Rounds of a service and one that takes ``factor`` times as long, ten seconds each."""

    def __init__(self, factor: float = 1.0, restart: float = 0.02, late: int = 0, interrupt: int = 0) -> None:
        self.now, self.made = 0.0, 0
        self.factor, self.restart, self.late, self.interrupt = factor, restart, late, interrupt

    def clock(self) -> float:
        return self.now

    def rounds(self) -> Iterator[Round]:
        rng = np.random.default_rng(0)
        while True:
            self.now += ROUND_S
            self.made += 1
            if self.made == self.interrupt:
                raise KeyboardInterrupt
            work = rng.lognormal(2, 0.5, N)
            speeds = np.exp(rng.normal(0, self.restart, 2)) * [1.0, self.factor]
            late = 50.0 if self.made <= self.late else 0.0
            first, second = (record(work * speed * rng.lognormal(0, 0.05, N), late) for speed in speeds)
            yield Round(first, second)


def decided(service: Service, budget_s: float = 180.0) -> Decision:
    numbers: list[int] = []
    found = decide(
        GATES,
        service.rounds(),
        budget_s=budget_s,
        seed=0,
        on_round=lambda _round, number, _most: numbers.append(number),
        clock=service.clock,
    )
    assert numbers == list(range(1, len(numbers) + 1))
    return found


def outcome(found: Decision) -> list[bool | None]:
    assert found.comparison is not None
    return [result.passed for result in found.comparison.gates]


def test_an_unchanged_service_passes_before_the_budget_is_over() -> None:
    service = Service()
    found = decided(service)
    assert outcome(found) == [True, True]
    assert 5 <= service.made < 10 and len(found.rounds) == service.made


def test_a_slower_service_fails_and_the_reason_adds_up() -> None:
    found = decided(Service(factor=1.3))
    assert outcome(found) == [False, False] and found.comparison is not None
    assert len(decided(Service(factor=3.0)).rounds) == 5, "the minimum"
    change = found.comparison.why[0]
    assert change.metric == "mean"
    assert sum(change.parts_ms.values()) == pytest.approx(change.after_ms - change.before_ms)
    assert change.parts_ms["queue behind it"] == pytest.approx(2 * change.parts_ms["compute"], rel=1e-3)
    assert change.sentence.startswith("mean + ") and change.sentence.endswith("all else + 0.0")
    again = Comparison.from_json(found.comparison.to_json())
    assert again.why == found.comparison.why


def test_a_noisy_machine_uses_the_budget_and_stays_undecided() -> None:
    service = Service(restart=0.3)
    found = decided(service)
    assert outcome(found) == [None, None]
    assert service.now <= 180 and service.made >= 17


def test_late_rounds_do_not_count() -> None:
    found = decided(Service(late=3))
    assert found.fair.late == 3 and outcome(found) == [True, True] and found.comparison is not None
    assert any(
        " rounds are left out: something else" in note and note.startswith("3 of ") for note in found.comparison.notes
    )
    assert decided(Service(late=100)).comparison is None


def test_rounds_with_a_neighbor_beside_one_service_do_not_count() -> None:
    """It slows the unchanged service ten times in every third round."""
    at = np.arange(5) * 10**9

    class Disturbed(Service):
        def rounds(self) -> Iterator[Round]:
            for found in super().rounds():
                hog = float(self.made % 3 == 0)
                rows = {**found.new.requests, "latency_ns": found.new.requests["latency_ns"] * int(1 + 9 * hog)}
                spent = (at, hog * at.clip(max=10**9))
                series = {"other.all.spent_ns": spent, "other.7.stress.spent_ns": spent}
                yield Round(found.base, add_samples(replace(found.new, requests=rows), series))

    found = decided(Disturbed())
    assert outcome(found) == [True, True] and found.comparison is not None
    assert any("left out: other processes used more" in note for note in found.comparison.notes)


def test_an_interruption_keeps_complete_rounds() -> None:
    found = decided(Service(interrupt=4))
    assert found.interrupted and len(found.rounds) == 3 and found.comparison is not None
    assert found.comparison.notes[0].endswith("in the budget, then interrupted")
    assert decided(Service(interrupt=1)).comparison is None


@pytest.mark.parametrize(("factor", "rounds"), [(1.0, 4), (1.0, 5), (1.3, 4), (2.0, 2), (3.0, 1)])
def test_whoever_interrupts_a_gate_does_not_decide_it(factor: float, rounds: int) -> None:
    assert outcome(decided(Service(factor=factor, interrupt=rounds + 1))) == [None, None]


def test_a_gate_without_a_baseline_is_judged_at_the_end() -> None:
    service = Service()
    gates = [parse_gate("p50<1s")]
    found = decide(gates, service.rounds(), budget_s=95, seed=0, on_round=lambda *_: None, clock=service.clock)
    assert outcome(found) == [True] and service.made == 9


@pytest.mark.parametrize(
    ("gate", "found"),
    [
        ("", "found none"),
        ("p99.9<=baseline*1.1", "found p99.9, which short rounds cannot measure"),
        ("max<1s", "found max, which short rounds cannot measure"),
        ("p99<history*1.1", "found no history"),
        ("accuracy>=0.9", "found no accuracy"),
        ("cause:python.gc<10%", "found no diagnosis"),
    ],
)
def test_gates_that_rounds_cannot_decide_are_refused(gate: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        check([parse_gate(gate)] if gate else [])


def test_the_drift_is_noted() -> None:
    service = Service()
    drifting = (Round(one.base, one.new, math.log(1.1) * (-1) ** k) for k, one in enumerate(service.rounds()))
    found = decide(GATES, drifting, budget_s=180, seed=0, on_round=lambda *_: None, clock=service.clock)
    assert found.comparison is not None
    (note,) = [note for note in found.comparison.notes if "fixed computation" in note]
    assert "corrected" not in note


def test_a_correction_is_noted_where_one_was_made() -> None:
    """One replay of each round is slower, as the control shows; undecided, so that more than five rounds run."""
    service, rng = Service(factor=1.1, restart=0.2), np.random.default_rng(1)

    def slowed() -> Iterator[Round]:
        for one in service.rounds():
            medians = [np.log(np.median(each.requests["latency_ns"])) for each in (one.base, one.new)]
            yield Round(one.base, one.new, medians[1] - medians[0] - math.log(1.1) + rng.normal(0, 0.01))

    found = decide(GATES, slowed(), budget_s=180, seed=0, on_round=lambda *_: None, clock=service.clock)
    assert found.comparison is not None and found.comparison.rounds >= 6
    assert any("the ratios are corrected for that" in note for note in found.comparison.notes)


def test_a_failed_gate_shows_the_causes_wherever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnosed(record: RunRecord, *, percentile: float, seed: int, bootstrap: int) -> SimpleNamespace:
        assert percentile in (95, 0) and seed == 0 and bootstrap == 2
        tail_ms = float(np.percentile(record.requests["latency_ns"], percentile or 50)) / 1e6
        causes = [SimpleNamespace(cause="python.gc", tail_ms=0.75 * tail_ms)]
        return SimpleNamespace(reference_ms=0.25 * tail_ms, causes=causes, latency_ms_ok={"mean": 1.0})

    monkeypatch.setattr("latfix.profilers.latency_causes.diagnose", diagnosed)
    gates = [parse_gate("p95<=baseline*1.1"), parse_gate("mean<=baseline*1.1")]
    for service, failed in ((Service(factor=1.5), True), (Service(), False)):
        found = decide(gates, service.rounds(), budget_s=180.0, seed=0, on_round=lambda *_: None, clock=service.clock)
        comparison = with_causes(found, 0)
        assert comparison is not None
        for change, which in zip(comparison.why, ("requests beyond it", "all requests"), strict=True):
            assert bool(change.causes_ms) is failed
            if failed:
                assert change.causes_ms["python.gc"] == pytest.approx(3 * change.causes_ms["a quiet request"])
                assert change.causes_ms["python.gc"] > 0 and f"; by cause, {which} + " in change.sentence
        document = comparison.to_json()
        assert Comparison.from_json(document).why == comparison.why
        summary = read_summary(document, command="gate", workload="w")
        junit = ElementTree.fromstring(junit_xml(summary, started="2026-01-02T03:04:05", seconds=1.0, host=""))
        for shown in (html.unescape(markdown(summary)), junit.findtext("testsuite/system-err") or ""):
            assert all(change.sentence in shown for change in comparison.why)
