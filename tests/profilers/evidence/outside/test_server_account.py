"""What a service reports of its requests' time, joined with its client's, on simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.server_account import READINGS, evenly, server_account
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import MS, N, arrivals, busy_while_serving, recorded, services
from tests.profilers.samples import sample_columns

STEP = 200 * MS
NAMES = {"queue": "0|q_seconds", "compute": "0|c_seconds", "whole": "0|w_seconds"}


def readings(
    end: np.ndarray, *, step: int = STEP, count: float = 1.0, late: int = 0, **stages: np.ndarray
) -> Columns:
    """Readings of metrics that each request's stages are added to when it ends.

    :param count: how many requests are counted for each.
    :param late: how much later than the requests' ends.
    """
    times = np.arange(0, int(end.max()) + 2 * step + late, step)
    order = np.argsort(end)
    place = np.searchsorted(end[order] + late, times, side="right")
    series: dict[str, tuple[np.ndarray, np.ndarray]] = {READINGS: (times, np.ones(len(times)))}
    for stage, spent in stages.items():
        total = np.concatenate([[0], np.cumsum(spent[order])])[place]
        series[f"stage.{stage}|{NAMES[stage]}|sum"] = (times, total)
        series[f"stage.{stage}|{NAMES[stage]}|count"] = (times, count * place)
    return sample_columns(series)


def both(*columns: Columns) -> Columns:
    return {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}


def bad_times(at: np.ndarray) -> np.ndarray:
    """Requests that arrive in one of the bad times: a second in five."""
    return np.asarray(at % (5_000 * MS) < 1_000 * MS)


def tail_ms(found: Diagnosis) -> dict[str, float]:
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause.tail_ms for cause in found.causes}


def parts(found: Diagnosis, key: str) -> dict[str, float]:
    assert found.service is not None
    return {part.part: getattr(part, key) for part in found.service.parts}


@pytest.mark.parametrize(
    ("slow", "cause"), [("queue", "service.queue"), ("compute", "service.compute"), ("network", "network.transit")]
)
def test_the_part_that_a_service_reports_is_named(slow: str, cause: str) -> None:
    """Side by side, so that nothing shows a queue from outside; 80 ms more of one part in the bad times."""
    at = arrivals(100.0)
    spent = {"queue": np.full(N, MS), "compute": services(), "network": np.full(N, 2 * MS)}
    spent[slow] = spent[slow] + np.where(bad_times(at), 80 * MS, 0)
    end = at + np.sum(list(spent.values()), axis=0)
    stages = {"queue": spent["queue"], "compute": spent["compute"], "whole": spent["queue"] + spent["compute"]}
    found = diagnose(recorded(at, end, samples=readings(end - spent["network"] // 2, **stages)))
    assert found.verdict == cause
    assert tail_ms(found)[cause] == pytest.approx(80, rel=0.15)
    assert abs(found.unexplained_ms) < 12
    sentence = next(one.evidence for one in found.causes if one.cause == cause)
    assert "measured by interval" in sentence and "_seconds" in sentence
    slow_ms, others_ms = parts(found, "slow_ms"), parts(found, "typical_ms")
    assert slow_ms[slow] - others_ms[slow] > 60
    tail = found.ledger.latency_ns >= np.quantile(found.ledger.latency_ns, 0.99)
    assert sum(slow_ms.values()) == pytest.approx(found.ledger.latency_ns[tail].mean() / 1e6, rel=0.01)
    assert found.service is not None and "intervals of 0.2 s" in found.service.parts_known
    assert np.isfinite(found.stages_ms["queue"]["mean"])


def test_what_requests_of_one_interval_differ_by_stays_unexplained() -> None:
    """One slow request among twenty of an interval: its wait is known only as far as the others took too short."""
    at = arrivals(100.0)
    alone = np.arange(N) % 20 == 3
    queue = np.where(alone, 200 * MS, 0)
    work = services()
    end = at + queue + work
    samples = readings(end, queue=queue)
    account = server_account(recorded(at, end, samples=samples))
    assert account.parts["queue"].sum() == pytest.approx(queue.sum(), rel=0.1)
    found = tail_ms(diagnose(recorded(at, end, samples=samples)))
    assert found["unexplained"] > 60
    assert found["service.queue"] < 140


def test_shares_are_equal_but_never_above_a_requests_own_time() -> None:
    most = np.array([5, 1, 100, 30]) * MS
    assert evenly(8.0 * MS, most).tolist() == [pytest.approx(7 / 3 * MS), MS, *[pytest.approx(7 / 3 * MS)] * 2]
    assert evenly(100.0 * MS, most).tolist() == [5 * MS, MS, 64 * MS, 30 * MS]
    assert evenly(1e12, most).tolist() == most.tolist()
    assert evenly(0.0, most).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("count", [0.0, 0.5, 5.0])
def test_metrics_that_count_other_requests_are_not_used(count: float) -> None:
    at = arrivals(100.0)
    end = at + services() + np.where(bad_times(at), 80 * MS, 0)
    found = diagnose(recorded(at, end, samples=readings(end, queue=end - at, count=count)))
    assert found.service is not None and not found.service.parts
    assert "service.queue" not in tail_ms(found)
    assert np.isnan(found.stages_ms["queue"]["mean"])
    assert any("q_seconds counted" in note for note in found.notes) == (count > 0)


def test_a_piece_of_a_run_counts_no_requests_of_the_others() -> None:
    at = arrivals(10.0)
    queue = np.where(bad_times(at), 80 * MS, MS)
    end = at + queue + services()
    record = recorded(at, end, samples=readings(end, queue=queue))
    whole, pieces = diagnose(record), diagnose(record, scale=Scale(limit=0, chunk=900, stretches=2, stretch=400))
    assert pieces.verdict == whole.verdict == "service.queue"
    assert tail_ms(pieces)["service.queue"] == pytest.approx(tail_ms(whole)["service.queue"], rel=0.1)
    assert not any("counted" in note for note in pieces.notes)


def test_metrics_that_are_updated_rarely_have_longer_intervals() -> None:
    """Every 2 s, as with an agent that collects them."""
    at = arrivals(100.0)
    queue = np.where(at % (20_000 * MS) < 6_000 * MS, 80 * MS, MS)
    end = at + queue + services()
    updated = (end // (2_000 * MS) + 1) * 2_000 * MS - 1
    account = server_account(recorded(at, end, samples=readings(updated, queue=queue)))
    assert account.interval_ns == pytest.approx(2e9, rel=0.05)
    assert np.corrcoef(account.parts["queue"], queue)[0, 1] > 0.8


@pytest.mark.parametrize("more", [1.0, 1.02])
def test_counts_tell_which_requests_ended_in_an_interval_if_no_others_did(more: float) -> None:
    """Metrics that follow 1.5 s late: by time they would be those of other requests."""
    at = arrivals(100.0)
    queue = np.where(bad_times(at), 80 * MS, MS)
    end = at + queue + services()
    account = server_account(recorded(at, end, samples=readings(end, late=1_500 * MS, count=more, queue=queue)))
    assert (np.corrcoef(account.parts["queue"], queue)[0, 1] > 0.9) == (more == 1.0)


def test_of_two_metrics_the_one_that_counts_these_requests_is_used() -> None:
    at = arrivals(100.0)
    end = at + services()
    samples = readings(end, queue=np.full(N, 2 * MS))
    worse = readings(end, count=1.05, queue=np.full(N, 9 * MS))
    worse["series"] = np.array([str(name).replace("q_sec", "a_sec") for name in worse["series"]], dtype=object)
    others = {name: column[worse["series"] != READINGS] for name, column in worse.items()}
    account = server_account(recorded(at, end, samples=both(samples, others)))
    assert account.sources == {"queue": "q_seconds"}
    assert account.parts["queue"].mean() == pytest.approx(2 * MS, rel=0.01)


def test_a_server_that_computes_on_a_device_waits_for_no_dependency() -> None:
    """Its process is idle meanwhile; with what it reports, that is its own compute."""
    at, slow = arrivals(20.0), np.random.default_rng(5).random(N) < 0.03
    idle = np.where(slow, 150 * MS, 0)
    end = at + services() + idle
    watched = busy_while_serving(at, end, idle)
    reported: dict[str, Any] = {"compute": end - at}
    fine = both(watched, readings(end, step=20 * MS, **reported))
    assert diagnose(recorded(at, end, samples=watched)).verdict == "external.dependency"
    assert diagnose(recorded(at, end, samples=fine)).verdict == "service.compute"
