"""The difference of two services by cause: it adds up, and names what was injected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.latency_causes import QUIET, by_cause, by_stage, explained
from latfix.reports.answer import comparison_answer
from latfix.reports.ci.ci_summary import read_summary
from latfix.reports.ci.junit import junit_xml
from latfix.results.comparison import compare_records
from latfix.run_record.run_record import RunRecord
from tests.profilers.samples import sample_columns
from tests.profilers.simulated_runs import simulate
from tests.records import build_record

Arms = tuple[list[RunRecord], list[RunRecord]]

PAUSED = dict.fromkeys(range(7, 600, 25), ("gc", 30.0))


@pytest.fixture
def arms() -> Arms:
    return [simulate()], [simulate(compute_faults=PAUSED)]


@pytest.mark.parametrize("metric", ["mean", "p99"])
def test_the_cause_that_grew_has_the_difference(metric: str, arms: Arms) -> None:
    (change,) = (by_cause(each, *arms) for each in by_stage([metric, "errors"], *arms))
    assert max(change.causes_ms, key=change.causes_ms.__getitem__) == "python.gc"
    assert abs(change.causes_ms[QUIET]) < 0.5
    if metric == "mean":
        latency = [arm[0].requests["latency_ns"][arm[0].measured].mean() / 1e6 for arm in arms]
        assert sum(change.causes_ms.values()) == pytest.approx(latency[1] - latency[0])
    which = {"mean": "all requests", "p99": "requests beyond it"}[metric]
    assert f"; by cause, {which} + " in change.sentence and ": python.gc + " in change.sentence


def test_the_judged_and_the_gated_latencies_are_explained_once_each(arms: Arms) -> None:
    found = compare_records(arms[0][0], arms[1][0])
    why = explained(found, *arms, metrics=("mean", "p99", "throughput")).why
    assert [change.metric for change in why] == ["p99", "mean"] and all(change.causes_ms for change in why)
    assert explained(compare_records(arms[0][0], arms[0][0]), arms[0], arms[0]).why == ()


def test_a_disturbed_run_is_said_to_be(arms: Arms) -> None:
    samples = sample_columns(
        {
            "other.all.spent_ns": (np.arange(5) * 10**9, np.full(5, 10**9)),
            "other.7.stress.spent_ns": (np.arange(1, 5) * 10**9, np.full(4, 10**9)),
            "thread.latfix-worker-0.cpu_ns": (np.arange(5) * 10**9, np.arange(5) * 10**9),
            "thread.latfix-worker-0.runq_ns": (np.arange(5) * 10**9, np.arange(5) * 10**9),
        }
    )
    new = replace(arms[1][0], samples=samples)
    found = explained(compare_records(arms[0][0], new), arms[0], [new])
    assert found.disturbed.startswith("1 of 2 replays; in the first of them others used 1.0 cores (stress ")
    answer = comparison_answer(found)
    assert answer.lines[0].label == "disturbed" and answer.lines[0].words == found.disturbed
    summary = read_summary(found.to_json(), command="gate", workload="w")
    assert found.disturbed in junit_xml(summary, started="2026-01-02T03:04:05", seconds=1.0, host="")


def test_requests_without_their_batches_are_explained_by_stage_only(arms: Arms) -> None:
    bare = [build_record(arm[0].requests, traffic=arm[0].traffic) for arm in arms]
    found = compare_records(*bare)
    (change,) = explained(found, [bare[0]], [bare[1]]).why
    assert change.parts_ms and not change.causes_ms
