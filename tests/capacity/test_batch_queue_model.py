"""The batch queue's chain against Pollaczek and Khinchine, and against the runner's policy simulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latfix.capacity import batch_queue_model as bulk_queue
from latfix.capacity.batch_queue_model import BatchService, BatchWait, batch_wait, fit_batch_service
from latfix.capacity.measured_load import LoadPoint, load_point
from latfix.capacity.queueing_models import Service, ggc_wait
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

MakeTraffic = Callable[..., Traffic]
Simulate = Callable[..., RunRecord]

EXPONENTIAL = Service(mean=1.0, scv=1.0)


def solved(rate: float, service: BatchService, **more: float) -> BatchWait:
    found = batch_wait(rate, service, **more)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("busy", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("scv", [0.0, 0.5, 1.0, 2.0])
def test_batches_of_one_are_pollaczek_and_khinchine(busy: float, scv: float) -> None:
    found = solved(busy, BatchService(fixed=0.0, each=1.0, scv=scv), most=1)
    known = ggc_wait(busy, Service(mean=1.0, scv=scv))
    assert known is not None
    assert found.wait.mean == pytest.approx(known.mean, rel=0.01)
    assert found.wait.probability == pytest.approx(busy, rel=0.01)
    assert found.mean_size == pytest.approx(1.0)


def test_several_workers_of_batches_of_one_are_erlangs() -> None:
    found = solved(2.4, BatchService(fixed=0.0, each=1.0, scv=1.0), most=1, workers=3)
    known = ggc_wait(2.4, EXPONENTIAL, servers=3)
    assert known is not None
    assert found.wait.mean == pytest.approx(known.mean, rel=0.01)


def replay(
    make_traffic: MakeTraffic, simulate: Simulate, rate: float, most: int, window_ms: float = 0.0, noise: float = 0.0
) -> LoadPoint:
    settings = RunnerSettings(max_batch_size=most, batch_window_ms=window_ms)
    traffic = make_traffic(20_000, rate, seed=5)
    return load_point(simulate(traffic, fixed=0.02, each=0.005, noise=noise, settings=settings))


@pytest.mark.parametrize(("rate", "most"), [(20.0, 8), (60.0, 8), (110.0, 8), (30.0, 2), (120.0, 16)])
def test_waits_and_batches_are_those_of_a_simulated_queue(
    rate: float, most: int, make_traffic: MakeTraffic, simulate: Simulate
) -> None:
    point = replay(make_traffic, simulate, rate, most)
    found = solved(point.offered, BatchService(fixed=0.02, each=0.005, scv=0.0), most=most)
    assert found.wait.total_mean == pytest.approx(float(point.wait.mean()), rel=0.08)
    assert found.mean_size == pytest.approx(point.mean_size, rel=0.03)


def test_service_that_varies(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    point = replay(make_traffic, simulate, 80.0, 8, noise=0.5)
    found = solved(point.offered, BatchService(fixed=0.02, each=0.005, scv=0.5), most=8)
    assert found.wait.total_mean == pytest.approx(float(point.wait.mean()), rel=0.1)


@pytest.mark.parametrize("rate", [5.0, 25.0, 60.0])
def test_a_window_holds_batches_open(rate: float, make_traffic: MakeTraffic, simulate: Simulate) -> None:
    point = replay(make_traffic, simulate, rate, 8, window_ms=40.0)
    found = solved(point.offered, BatchService(fixed=0.02, each=0.005, scv=0.0), most=8, window=0.04)
    assert found.wait.total_mean == pytest.approx(float(point.wait.mean()), rel=0.12)
    assert found.mean_size == pytest.approx(point.mean_size, rel=0.06)
    if rate == 5.0:  # nearly alone: nearly all of the wait is the window
        assert found.wait.held > 0.8 * found.wait.total_mean


def test_no_answer_where_full_batches_cannot_keep_up() -> None:
    service = BatchService(fixed=0.02, each=0.005, scv=0.0)
    assert service.capacity(8) == pytest.approx(8 / 0.06)
    assert batch_wait(8 / 0.06 + 1, service, most=8) is None
    assert batch_wait(8 / 0.06 + 1, service, most=8, workers=2) is not None


def test_burstier_arrivals_wait_longer_and_even_ones_shorter() -> None:
    service = BatchService(fixed=0.02, each=0.005, scv=0.3)
    waits = [solved(90.0, service, most=8, arrival_scv=scv).wait.mean for scv in (0.2, 1.0, 6.0)]
    assert waits[0] < waits[1] < waits[2]


def test_near_full_load_the_limit_takes_over_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    service = BatchService(fixed=0.02, each=0.005, scv=0.5)
    rate = 0.97 * service.capacity(8)
    chain = solved(rate, service, most=8).wait.mean
    monkeypatch.setattr(bulk_queue, "_MOST_STATES", 1)
    assert solved(rate, service, most=8).wait.mean == pytest.approx(chain, rel=0.1)


def test_a_line_through_measured_batches() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 2000)
    times = (0.01 + 0.002 * sizes) * rng.gamma(50, 1 / 50, 2000)
    fitted = fit_batch_service(sizes, times)
    assert fitted.fixed == pytest.approx(0.01, rel=0.03)
    assert fitted.each == pytest.approx(0.002, rel=0.05)
    assert fitted.scv == pytest.approx(1 / 50, rel=0.15)


def test_batching_is_not_credited_with_a_gain_that_was_not_seen() -> None:
    alone = fit_batch_service([1] * 30, [0.01] * 30)
    assert alone.capacity(1) == pytest.approx(100)
    assert alone.capacity(8) == pytest.approx(100)
    faster = fit_batch_service([1, 1, 4, 4], [0.02, 0.02, 0.01, 0.01])
    assert faster.each == 0.0 and faster.fixed > 0, "larger ones that seem faster are taken for as fast"
