"""A service behind an address that computes requests in batches, on simulated time."""

from __future__ import annotations

import re

import numpy as np
import pytest

from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.outside_view import stage_values
from latfix.profilers.evidence.outside.service_queue import serving_of, with_queue, with_waits
from latfix.reports.charts.chart_data import stage_profile
from latfix.results.diagnosis import CauseSummary
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES
from tests.profilers.evidence.outside.test_outside_view import MS, recorded
from tests.profilers.recordings.requests.simulated_log import batched


def served_in_batches(timer: str, **how: float) -> RunRecord:
    """The record of a client of :func:`batched`."""
    table = batched(timer, **how)  # type: ignore[arg-type]
    return recorded(table.arrival_ns, table.arrival_ns + table.latency_ns)


def causes_of(record: RunRecord) -> dict[str, CauseSummary]:
    found = diagnose(record)
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause for cause in found.causes}


@pytest.mark.parametrize("timer", ["arrival", "worker", "batcher"])
def test_the_wait_for_the_timer_is_the_windows(timer: str) -> None:
    causes = causes_of(served_in_batches(timer, load=0.2, window_ms=20.0))
    assert causes["batching.window"].named and causes["batching.window"].own_ms > 5
    assert re.search(r"held open for (19\.9|20)", causes["batching.window"].evidence)
    assert abs(causes["unexplained"].tail_share) < 0.2


def test_others_in_the_batch_cost_what_the_size_explains() -> None:
    causes = causes_of(served_in_batches("arrival", load=0.4, window_ms=0.0))
    assert causes["batching.size"].named and 1 < causes["batching.size"].own_ms < 7  # 1 ms for each other request
    assert "batching.window" not in causes or causes["batching.window"].own_ms == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_waits_for_batches_ahead_are_the_traffics(workers: int) -> None:
    record = served_in_batches("arrival", load=0.85, window_ms=0.0, workers=workers)
    assert serving_of(record).servers == workers
    causes = causes_of(record)
    assert causes["traffic.burst"].named and causes["traffic.burst"].tail_share > 0.5
    assert f"{workers} worker{'s' * (workers > 1)}, batches of up to 8" in causes["traffic.burst"].evidence


def test_the_rule_is_in_the_document() -> None:
    service = diagnose(served_in_batches("arrival", load=0.85, window_ms=5.0, workers=2)).service
    assert service is not None and service.batches is not None and service.servers == 2
    found = service.batches
    assert (found.timer, found.limit) == ("arrival", 8) and found.window_ms == pytest.approx(5.0, rel=0.1)
    assert found.explained_share > 0.9


def test_stages_as_a_client_sees_them_sum_to_the_latency() -> None:
    rows = with_queue(served_in_batches("arrival", load=0.6, window_ms=10.0)).requests
    stages = stage_values(rows)
    assert (np.sum(list(stages.values()), axis=0) == rows["latency_ns"]).all()
    assert np.median(stages["queue"]) > 2 * MS  # it includes the wait for the timer


def test_a_page_divides_latencies_like_the_ledger() -> None:
    record = served_in_batches("arrival", load=0.6, window_ms=10.0)
    shown = with_waits(record)
    groups, stages = stage_profile(shown)
    mean = dict(zip(STAGES, stages[groups.index("all requests")], strict=True))
    waits = with_queue(record).requests
    assert mean["queue"] + mean["batch"] == pytest.approx((waits["queue_ns"] + waits["batch_ns"]).mean() / 1e6)
    assert sum(mean.values()) == pytest.approx(record.requests["latency_ns"].mean() / 1e6)
    assert shown.batches is record.batches and (record.requests["queue_ns"] == 0).all()


def test_batches_of_a_long_run_follow_the_rule_of_its_sample() -> None:
    record = served_in_batches("arrival", load=0.2, window_ms=20.0)
    whole = {cause.cause: cause.tail_ms for cause in diagnose(record).causes}
    scale = Scale(limit=0, chunk=900, stretches=2, stretch=1_000)
    parts = {cause.cause: cause.tail_ms for cause in diagnose(record, scale=scale).causes}
    assert parts["batching.window"] == pytest.approx(whole["batching.window"], rel=0.2)


def test_answers_whose_last_bytes_come_late_show_batches_by_their_first() -> None:
    record = served_in_batches("arrival", load=0.4)
    late = np.random.default_rng(5).choice([0, 41 * MS], len(record.requests["index"]))
    record.requests["finish_ns"] += late
    record.requests["latency_ns"] += late
    assert serving_of(record).rule is not None
    rows = with_queue(record).requests
    assert (np.sum(list(stage_values(rows).values()), axis=0) == rows["latency_ns"]).all()


def test_streams_are_no_batches() -> None:
    record = served_in_batches("arrival", load=0.4)
    record.requests["chunks"] += 5
    assert serving_of(record).rule is None
