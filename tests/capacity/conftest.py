"""The simulated service of benchmarks/sweep_world.py as fixtures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.sweep_world import make_traffic, simulate
from latfix.run_record.run_record import RunRecord
from latfix.traffic.schedule import Traffic

MakeTraffic = Callable[..., Traffic]
Simulate = Callable[..., RunRecord]


@pytest.fixture(scope="session", name="make_traffic")
def _make_traffic() -> MakeTraffic:
    return make_traffic


@pytest.fixture(scope="session", name="simulate")
def _simulate() -> Simulate:
    return simulate
