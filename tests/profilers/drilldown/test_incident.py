"""One moment that makes all of the tail is one incident."""

from __future__ import annotations

import numpy as np

from latfix.profilers.diagnose import diagnose
from latfix.profilers.drilldown.explain import tell
from latfix.profilers.drilldown.selection import choose_slowest
from latfix.reports.answer import diagnosis_answer
from latfix.results.diagnosis import Diagnosis
from tests.profilers.drilldown.test_explain import Line
from tests.profilers.evidence.outside.test_inferred_batches import served_in_batches
from tests.profilers.evidence.outside.test_outside_view import MS, recorded


def diagnosed(gc: dict[int, float]) -> Diagnosis:
    return diagnose(Line(arrivals=[20.0 * k for k in range(1000)], gc=gc).record())


def test_a_batch_that_held_the_worker_is_named_with_what_is_typical() -> None:
    found = diagnosed({500: 400.0})
    incident = found.incident
    assert incident is not None and incident.worker == 0
    assert incident.held_ms is not None and incident.typical_ms is not None
    assert incident.held_ms > 400 and incident.typical_ms < 20
    assert 9.9 < incident.start_s <= 10.0 < incident.end_s < 11.0
    words = incident.sentence("p99")
    assert words.startswith("All of p99 is one moment: 10.0") and f"batch {incident.batch} held worker 0" in words
    assert Diagnosis.from_json(found.to_json()).incident == incident


def test_a_service_seen_from_outside_has_no_batches_or_workers() -> None:
    at = np.arange(1000) * 20 * MS
    took = np.where((at >= 10_000 * MS) & (at < 10_220 * MS), 400, 8) * MS
    record = recorded(at, at + took)
    found = diagnose(record)
    assert found.incident is not None and found.incident.batch is None
    (line,) = [line for line in diagnosis_answer(found).lines if line.label == "when"]
    assert line.words.startswith("All of p99 is one moment: ") and line.words.endswith("11 requests.")

    (story,) = tell(record, found.ledger, choose_slowest(record, 1))
    assert story.batch is None and story.waits == ()
    assert all(stage.account is None and not stage.parts for stage in story.stages)
    assert "batch" not in story.sentence and "worker" not in story.sentence


def test_an_inferred_batch_that_held_the_worker_is_named() -> None:
    incident = diagnose(served_in_batches("arrival", load=0.4, window_ms=0.0, stalls=1, n=600)).incident
    assert incident is not None and incident.batch is not None and incident.worker == 0
    assert incident.held_ms is not None and incident.typical_ms is not None
    assert 30 < incident.held_ms - incident.typical_ms < 45  # the planted stall is 40 ms


def test_slow_requests_in_several_places_are_no_incident() -> None:
    assert diagnosed({100: 300.0, 500: 300.0, 900: 300.0}).incident is None
    assert diagnosed({}).incident is None


def test_a_burst_is_a_moment_that_no_single_batch_made() -> None:
    burst = [20.0 * k for k in range(900)] + [9000.0 + 0.1 * k for k in range(100)]
    incident = diagnose(Line(arrivals=sorted(burst)).record()).incident
    assert incident is not None and incident.batch is None
    assert "no single batch" in incident.sentence("p99")


def test_a_tail_of_two_is_an_incident_if_the_next_slowest_request_was_there_too() -> None:
    def of_two(gc: dict[int, float], *, pause: float = 0.0) -> Diagnosis:
        return diagnose(Line(arrivals=[20.0 * k + pause * (k > 51) for k in range(110)], gc=gc).record())

    incident = of_two({50: 200.0}).incident
    assert incident is not None and incident.requests == 2
    assert incident.held_ms is not None and incident.held_ms > 200
    assert ", 2 requests; batch " in incident.sentence("p99")
    elsewhere = of_two({50: 60.0, 90: 45.0}, pause=200.0)
    assert np.sort(elsewhere.ledger.latency_ns)[-3:].tolist() == sorted(elsewhere.ledger.latency_ns[[50, 51, 90]])
    assert elsewhere.incident is None
