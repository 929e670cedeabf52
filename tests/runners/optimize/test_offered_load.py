"""Requests that come faster than the service can serve them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from latfix.config.workload_toml import WorkloadSpec
from latfix.runners.optimize import offered_load
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic


@pytest.fixture
def saturate(world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(offered_load, "Arm", world.arm_class)
    monkeypatch.setattr(offered_load, "RunRecord", SimpleNamespace(load=world.load))
    spec = WorkloadSpec(name="w", folder=tmp_path, entry="adapter:W", traffic=tmp_path / "t")

    def call(traffic: Traffic, budget_s: float) -> Traffic:
        return offered_load.saturating(
            spec,
            traffic,
            RunnerSettings(),
            tmp_path,
            budget_s=budget_s,
            watch=cast(Any, lambda *_: nullcontext(lambda *_: None)),
            say=lambda _: None,
        )

    return call


@pytest.mark.parametrize("lead_s", [0, 3600])
def test_requests_come_five_times_as_fast_as_they_are_served(lead_s: int, world: Any, saturate: Any) -> None:
    traffic = world.traffic(60.0)
    found = saturate(replace(traffic, arrival_ns=traffic.arrival_ns + lead_s * 10**9), 300.0)
    (name, folder, _) = world.replays[0]
    assert (name, folder) == ("at once", "at-once") and len(world.replays) == 1
    (record,) = world.records.values()
    ends = record.requests["arrival_ns"] + record.requests["latency_ns"]
    served = len(ends) / ((ends.max() - record.requests["arrival_ns"].min()) / 1e9)
    assert len(found) == min(len(world.traffic(60.0)), int(0.15 * 300 * served))
    assert len(found) / float(np.ptp(found.arrival_ns) / 1e9) == pytest.approx(5 * served, rel=0.01)
    assert not any(arm.alive for arm in world.arms)


def test_a_resumed_search_offers_the_same_load(world: Any, saturate: Any) -> None:
    first, again = (saturate(world.traffic(60.0), 300.0) for _ in range(2))
    assert np.array_equal(first.arrival_ns, again.arrival_ns) and len(world.replays) == 1


def test_few_requests_are_enough_where_the_budget_is_short(world: Any, saturate: Any) -> None:
    assert len(saturate(world.traffic(60.0), 0.5)) < len(world.traffic(60.0))


def test_requests_that_all_came_at_once_still_do(saturate: Any) -> None:
    at_once = Traffic.plain(np.zeros(40, dtype=np.int64), features={"number": np.arange(40)})
    assert saturate(at_once, 300.0).duration_s == 0
