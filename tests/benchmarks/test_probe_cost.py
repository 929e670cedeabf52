"""The cost of probes: what its baseline omits, and the load that it measures under."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.profilers import probe_cost
from latfix.runners.gpu.worker_streams import READY
from tests.conftest import write_workload
from tests.runners.gpu.simulated import SimulatedEvent
from tests.runners.gpu.test_async_batches import Flown


def _counting(calls: list[int], function: Callable[..., None]) -> Callable[..., None]:
    def counted(*arguments: Any) -> None:
        calls.append(1)
        function(*arguments)

    return counted


@pytest.mark.parametrize(("overlap", "least"), [(False, 1), (True, 3)])
def test_without_probes_only_awaited_events_are_recorded(
    monkeypatch: pytest.MonkeyPatch, overlap: bool, least: int
) -> None:
    recorded: list[int] = []
    record = SimulatedEvent.record
    monkeypatch.setattr(SimulatedEvent, "record", _counting(recorded, record))
    read: list[str] = []
    monkeypatch.setattr("latfix.runners.engine.engine.cuda_counters", read.append)
    with_probes = Flown(24, overlap=overlap)
    assert with_probes.wrong() == [] and read
    # Each event is recorded once when it is made.
    assert len(recorded) - 6 * READY == (4 + 2 * overlap) * len(with_probes.batches)
    recorded.clear()
    read.clear()
    with probe_cost._without_probes(overlap=overlap):
        served = Flown(24, overlap=overlap)
    assert served.wrong() == [] and read == []
    assert len(recorded) - least * READY == least * len(served.batches)
    assert not served.batches["copy_in_ns"].any(), "nothing was read"


def test_probes_are_measured_under_a_profiles_load(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", traffic=[{"arrival_s": k * 0.1} for k in range(11)])
    profile = "[profile.gpu.runner]\nmax_batch_size = 3\n[profile.gpu.traffic]\nspeed = 4.0\nrepeat = 2\n"
    with (folder / "workload.toml").open("a") as file:
        file.write(profile)
    spec, traffic = probe_cost._workload(tmp_path, str(folder), "gpu", 40.0, 8.0)
    assert spec.settings.max_batch_size == 3 and len(traffic) == 22
    assert traffic.duration_s == pytest.approx(2.1 / 4)
    spec, traffic = probe_cost._workload(tmp_path, str(folder), "", 40.0, 8.0)
    assert len(traffic) == 11 and traffic.duration_s == pytest.approx(1.0)


@pytest.mark.slow
def test_stretches_with_and_without_probes_are_replayed(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", traffic=[{"arrival_s": k * 0.02} for k in range(40)])
    spec, traffic = probe_cost._workload(tmp_path, str(folder), "", 40.0, 8.0)
    result = probe_cost.measure(spec, traffic, tmp_path, blocks=2, seconds=0.4)
    assert result["requests"] == 40 and result["ratio"]["mean"]["value"] > 0
