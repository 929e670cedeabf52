"""The simulator as a fixture, for the tests of the search."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from latfix.run_record.run_record import RunRecord
from tests.profilers import simulated_runs


@pytest.fixture(scope="session")
def simulate() -> Callable[..., RunRecord]:
    """:func:`tests.profilers.simulated_runs.simulate`."""
    return simulated_runs.simulate
