"""One moment that makes all of the tail is one incident."""

from __future__ import annotations

from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis
from tests.profilers.drilldown.test_explain import Line


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


def test_slow_requests_in_several_places_are_no_incident() -> None:
    assert diagnosed({100: 300.0, 500: 300.0, 900: 300.0}).incident is None
    assert diagnosed({}).incident is None


def test_a_burst_is_a_moment_that_no_single_batch_made() -> None:
    burst = [20.0 * k for k in range(900)] + [9000.0 + 0.1 * k for k in range(100)]
    incident = diagnose(Line(arrivals=sorted(burst)).record()).incident
    assert incident is not None and incident.batch is None
    assert "no single batch" in incident.sentence("p99")
