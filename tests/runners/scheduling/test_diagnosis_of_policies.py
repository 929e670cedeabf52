"""The diagnosis of runs whose policy it cannot replay: every nanosecond attributed, few unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.queueing.adaptive_batching import BatchController, Bounds, Seen
from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedBatch, SimulatedQueue
from latfix.queueing.serving_order import Backlog, FixedLimits, Limits, Ordering
from latfix.settings import RunnerSettings
from tests.runners.scheduling.simulated_runs import offer, recorded

MS = 1_000_000
PAUSE = 60 * MS


def mixed_lengths(rng: np.random.Generator, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return rng.integers(20, 400, n).astype(np.int64)


def _run(traffic: list[Offered], backlog: Backlog, limits: Limits, pauses: dict[int, int], **more: Any) -> Simulated:
    order = {id(one): slot for slot, one in enumerate(traffic)}

    def service(members: Sequence[Offered]) -> int:
        longest = max(one.length for one in members)
        paused = sum(pauses.get(order[id(one)], 0) for one in members)
        return int((3.0 + 0.5 * len(members) + 0.01 * len(members) * longest) * MS) + paused

    return SimulatedQueue(service=service, backlog=backlog, limits=limits, **more).run(traffic)


def _controlled(traffic: list[Offered]) -> tuple[Limits, dict[str, Any]]:
    """The batch controller, and the function that shows it each batch."""
    controller = BatchController(Bounds(most=4, least_window_ns=2 * MS, most_window_ns=50 * MS, target_ns=60 * MS))
    arrival = [one.arrival_ns for one in traffic]

    def observe(batch: SimulatedBatch, _inside: int) -> None:
        controller.observe(Seen.of(batch, arrival))

    return controller, {"observe": observe}


ADAPTIVE: dict[str, Any] = {
    "batching": "adaptive",
    "max_batch_size": 4,
    "window_least_ms": 2.0,
    "window_most_ms": 50.0,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"schedule": "shortest", "ageing_ms": 40.0},
        {"schedule": "shortest", "ageing_ms": 40.0, "max_batch_size": 4},
        {"ageing_ms": 30.0},
        {**ADAPTIVE, "target_ms": 60.0},
    ],
    ids=["shortest", "shortest in batches", "ageing", "adaptive"],
)
def test_pauses_are_named_and_nothing_swells(changed: dict[str, Any]) -> None:
    traffic = offer((10.0, 75.0), lengths=mixed_lengths, ranks=(0.2, 0.6, 0.2), seed=4)
    traffic = [replace(one, share=one.length / 200) for one in traffic]
    some = np.random.default_rng(5).choice(len(traffic), len(traffic) // 60, replace=False)
    pauses = {int(slot): PAUSE for slot in some}
    settings = RunnerSettings(**changed)
    ordering = Ordering(schedule=settings.schedule, ageing_ns=int(settings.ageing_ms * MS))
    limits: Limits = FixedLimits(settings.max_batch_size, 0)
    more: dict[str, Any] = {}
    if settings.batching == "adaptive":
        limits, more = _controlled(traffic)
    run = _run(traffic, Backlog(ordering=ordering), limits, pauses, **more)
    found = diagnose(recorded(traffic, run, settings, pauses=pauses), bootstrap=20)
    assert found.ledger.conservation_error_ns() == 0
    share = {cause.cause: cause.tail_share for cause in found.causes}
    assert abs(share.get("unexplained", 0.0)) < 0.1
    assert found.verdict == "host.contention"
    contention = next(cause for cause in found.causes if cause.cause == "host.contention")
    assert contention.propagated_ms > 0 and contention.tail_share > 0.4


def test_a_moved_window_is_the_windows_doing() -> None:
    # GIVEN a service that held every batch for 30 ms although its settings have another window
    traffic = offer((20.0, 12.0), lengths=mixed_lengths, seed=6)
    run = _run(traffic, Backlog(), FixedLimits(4, 30 * MS), {})
    found = diagnose(recorded(traffic, run, RunnerSettings(**ADAPTIVE)), bootstrap=20)
    entries = {cause.cause: cause.own_ms for cause in found.causes}
    assert entries["batching.window"] == pytest.approx(30.0, abs=6.0)
    assert abs(entries.get("host.contention", 0.0)) < 3.0
