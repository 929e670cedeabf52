"""The engine with each policy: which requests are served first, which are refused, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import InputError
from latfix.request import Priority, Request
from latfix.runners.host.cpu_placement import limit_operator_threads
from latfix.runners.scheduling.control import check_key, check_policies
from latfix.runners.scheduling.work_estimates import Batch
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.runners.engine.served import Gate, Served, requests_of

pytestmark = pytest.mark.alone


def slowly(ms: Callable[[torch.Tensor], float]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A slow model that blocks no request."""
    return Gate(-1, ms)


@pytest.mark.parametrize(("ageing_ms", "order"), [(0.0, [0, 2, 1]), (5.0, [0, 1, 2])])
def test_ageing_lets_low_pass_high_that_comes_later(ageing_ms: float, order: list[int]) -> None:
    ranks: list[Priority] = ["normal", "low", "high"]
    gate = Gate()
    served = Served(
        [Request(id=str(k), arrival_s=0.0, priority=rank) for k, rank in enumerate(ranks)], gate, ageing_ms=ageing_ms
    )
    gate.served_behind(served, 1, 2, wait_s=0.04)  # more than two intervals
    assert served.order == order


def test_the_shortest_expected_is_served_first_once_lengths_tell() -> None:
    gate = Gate(24, lambda x: 0.5 * x.shape[1])
    served = Served(requests_of([2, 40] * 12 + [1, 40, 30, 2, 20]), gate, schedule="shortest")
    served.send(*range(24), wait=True)
    gate.served_behind(served, 25, 26, 27, 28, wait_s=0.02)
    assert served.order[24:] == [24, 27, 28, 26, 25]
    assert served.series["runner.work_explained"] > 0.5


def test_a_limit_sheds_at_once_and_counts() -> None:
    gate = Gate()
    served = Served(requests_of([1] * 12), gate, admission="limit")
    served.send(*range(12))
    shed = [slot for slot, outcome in served.outcomes.items() if outcome.status.name == "SHED"]
    gate.go.set()
    rows, _ = served.end()
    # The minimum is two batches of one inside; the limit starts at twice that.
    assert shed == list(range(4, 12))
    assert served.statuses() == ["ok"] * 4 + ["shed"] * 8
    assert served.series["runner.shed_at_limit"] == 8 and served.series["runner.concurrency_limit"] == 4
    assert (rows["batch_id"][4:] == -1).all() and (rows["latency_ns"][4:] == rows["dispatch_ns"][4:]).all()
    assert "as many as latency allows" in served.outcomes[5].error


def test_deadlines_that_cannot_be_met_are_shed_on_arrival_and_in_the_queue() -> None:
    requests = requests_of([1] * 16)
    requests += [
        Request(id=str(16 + k), arrival_s=0.0, deadline_ms=limit) for k, limit in enumerate((None, 15.0, 500))
    ]
    # Request 17 waits for 16 and 18 at 20 ms each, so it cannot be in time.
    served = Served(requests, slowly(lambda _: 20), admission="deadline")
    served.send(*range(16), wait=True)
    served.send(16, 17, 18)
    served.end()
    assert served.statuses()[16:] == ["ok", "shed", "ok"]
    assert served.series["runner.refused_by_deadline"] == 1


def test_the_queue_drops_what_can_no_longer_be_in_time() -> None:
    limits: tuple[float | None, ...] = (None, 5_000.0, None)
    requests = [Request(id=str(k), arrival_s=0.0, deadline_ms=limit) for k, limit in enumerate(limits)]
    gate = Gate()
    served = Served(requests, gate, admission="deadline")

    def learn() -> None:
        assert served.engine.steering is not None
        for _ in range(50):
            served.engine.steering.estimate.learn(Batch(1, 1, 1, 1, 10_000_000_000, 10_000_000_000))

    rows, _ = gate.served_behind(served, 1, 2, before_release=learn)
    assert served.statuses() == ["ok", "shed", "ok"]
    assert served.series["runner.dropped_by_deadline"] == 1
    assert rows["queue_ns"][1] > 30_000_000 and rows["batch_id"][1] == -1
    assert "deadline" in served.outcomes[1].error


def test_a_timeout_of_the_settings_is_a_deadline_too() -> None:
    served = Served(requests_of([1] * 40), slowly(lambda _: 10), admission="deadline", timeout_ms=60.0)
    served.send(*range(16), wait=True)
    served.send(*range(16, 40))
    served.end()
    assert served.statuses().count("shed") >= 12
    assert served.statuses().count("ok") >= 16 + 2


def test_the_controller_moves_the_limits_that_the_queue_goes_by() -> None:
    # Batches harm: twice as many take eight times as long.
    served = Served(
        requests_of([1] * 200),
        slowly(lambda x: 0.5 * x.shape[0] ** 3),
        batching="adaptive",
        max_batch_size=8,
        target_ms=5.0,
        window_least_ms=0.0,
    )
    served.send(*range(200))
    served.end()
    sizes = np.bincount(served.batches["size"], minlength=9)
    assert sizes[1] >= 8 and sizes[2] > 0, "it starts with one, and grows while requests are left behind"
    assert sizes[1] > 4 * sizes[2:].sum() and sizes[8] == 0
    assert served.series["runner.batch_limit"] < 8
    assert served.series["runner.window_ms"] == 0.0
    assert served.series["runner.latency_tail_ms"] > 0


def test_memory_that_batches_need_limits_them() -> None:
    def touched(x: torch.Tensor) -> float:
        """A quarter of a megabyte for each element while it runs, and touches it."""
        return 0.0 * float(torch.ones(x.numel() << 16)[0])

    gate = Gate(24, touched)
    served = Served(
        requests_of([200] * 24 + [1] + [200] * 8), gate, max_batch_size=8, batch_window_ms=0.0, memory_limit_mb=120
    )
    assert served.engine.steering is not None and served.engine.steering.peak is not None
    if not served.engine.steering.peak.available:
        served.end()
        pytest.skip("this system reports no high-water mark")
    served.send(*range(24), wait=True)
    gate.served_behind(served, *range(25, 33), wait_s=0.01)
    assert served.series["runner.bytes_per_element"] > 1e5
    sizes = served.batches["size"]
    assert sizes.max() < 8 and sizes.sum() == 33
    assert served.statuses() == ["ok"] * 33


def test_a_request_of_nonsense_ends_and_affects_no_other() -> None:
    """A program's own requests are not validated."""
    nonsense: list[dict[str, Any]] = [
        {"features": {"length": 1, "tokens": float("nan")}},
        {"features": {"length": 1, "tokens": float("inf")}},
        {"features": {"length": 1, "tokens": 1e300}},
        {"deadline_ms": float("inf")},
        {"deadline_ms": float("nan")},
        {"priority": "urgent"},
        {},
    ]
    requests = [Request(id=str(k), arrival_s=0.0, **held) for k, held in enumerate(nonsense)]
    served = Served(requests, lambda x: x, batch_key="tokens", batch_order="length", max_batch_size=4)
    served.send(*range(len(requests)))
    served.end()
    assert served.statuses() == ["ok"] * 5 + ["error", "ok"]
    assert served.outcomes[5].error == "priority is 'urgent'; expected high, normal or low"


def test_a_dropped_request_has_a_reason() -> None:
    gate = Gate()
    requests = [Request(id=str(k), arrival_s=0.0, deadline_ms=60_000.0) for k in range(3)]
    served = Served(requests, gate, more={"given_up": lambda slot: slot == 1})
    gate.served_behind(served, 1, 2)
    assert served.statuses() == ["ok", "shed", "ok"]
    assert served.outcomes[1].error == "shed: its caller no longer waits"


def test_policies_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"window_least_ms = 10 and window_most_ms = 5"):
        check_policies(RunnerSettings(batching="adaptive", window_most_ms=5.0))
    with pytest.raises(InputError, match=r"memory_limit_mb = 64 with batching = 'continuous'"):
        check_policies(RunnerSettings(batching="continuous", memory_limit_mb=64))
    check_policies(RunnerSettings(window_most_ms=5.0, memory_limit_mb=64))
    with pytest.raises(InputError):
        Service(Path("nowhere"), "workload:Any", RunnerSettings(batching="continuous", memory_limit_mb=64))


def test_a_key_that_the_traffic_does_not_have_is_refused() -> None:
    """Otherwise requests would silently be ordered by the size of their inputs."""
    features = {"tokens": np.array([3.0, np.nan]), "user": np.array(["x", "y"], dtype=object)}
    traffic = Traffic.plain(np.arange(2), features=features)
    check_key(RunnerSettings(), traffic)
    check_key(RunnerSettings(batch_key="tokens"), traffic)
    for key in ("token", "user"):
        with pytest.raises(InputError, match=f"batch_key = '{key}'.*one of tokens, or ''"):
            check_key(RunnerSettings(batch_key=key), traffic)


def test_warming_up_has_the_threads_of_a_worker() -> None:
    """A graph is compiled for a number of threads: with four requested on one core, every thread uses one."""
    found: list[int] = []
    for number, cores in ((4, 1), (4, 0), (0, 1)):
        settings = RunnerSettings(intra_op_threads=number)
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(limit_operator_threads, settings, cores).result())
    assert found == [1, 4, 1]


def test_default_settings_steer_nothing() -> None:
    served = Served(requests_of([1, 1]), lambda x: x)
    served.send(0, 1)
    served.end()
    assert served.engine.steering is None and served.engine.idle_turn is None
    assert set(served.series) == {"runner.queue_depth", "runner.in_flight"}
