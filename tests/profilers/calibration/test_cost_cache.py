"""Unit costs: measured with an interval, cached for as long as the machine is the same, never a reason to fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latfix.profilers.calibration import cost_cache as module
from latfix.profilers.calibration.cost_cache import cache_folder, cpu_model, fingerprint, unit_costs
from latfix.profilers.calibration.microbenchmarks import MEASURES, UnitCost, measure

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measures nothing, and counts how often it would have; the quick check agrees with what it gives."""
    calls: list[int] = []

    def fake() -> dict[str, UnitCost]:
        calls.append(1)
        return {name: UnitCost(value=500.0, low=400.0, high=700.0) for name in MEASURES}

    monkeypatch.setattr(module, "measure", fake)
    monkeypatch.setattr(module, "minor_fault", lambda **_: UnitCost(value=600.0, low=600.0, high=600.0))
    return calls


def test_every_cost_is_found_with_an_interval_around_it() -> None:
    costs = measure()
    assert set(costs) == set(MEASURES)
    for name, cost in costs.items():
        assert 0 <= cost.low <= cost.value <= cost.high, name
        assert cost.high > 0, name
    # What must be so on any machine: more work takes longer.
    assert costs["unmapping_mib"].value > 0.02 * 256 * costs["minor_fault"].value


def test_the_second_run_takes_them_from_the_cache(tmp_path: Path, measured: list[int]) -> None:
    first, second = unit_costs(tmp_path / "new" / "folder"), unit_costs(tmp_path / "new" / "folder")
    assert not first.cached and second.cached
    assert len(measured) == 1
    assert second.costs == first.costs
    assert first.flat() | {"cached": 1} == second.flat()


def test_what_the_record_keeps_are_numbers_under_flat_names(tmp_path: Path, measured: list[int]) -> None:
    flat = unit_costs(tmp_path).flat()
    assert measured
    assert {"minor_fault_ns", "minor_fault_low_ns", "minor_fault_high_ns", "timer_floor_ns", "cached"} <= set(flat)
    assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in flat.values())
    assert flat["minor_fault_ns"] == 500.0 and flat["minor_fault_high_ns"] == 700.0


def _changed(tmp_path: Path, change: Change) -> None:
    (file,) = tmp_path.glob("calibration-*.json")
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["machine"].update(kernel="another"),
        lambda document: document.update(made_s=time.time() - 31 * 86_400),
        lambda document: document.update(made_s=time.time() + 3_600),
        lambda document: document.update(made_s="yesterday"),
        lambda document: document["costs"].pop("timer_floor"),
        lambda document: document["costs"].update(timer_floor=[1.0, 2.0]),
        lambda document: document["costs"].update(timer_floor=[1.0, -2.0, 3.0]),
        lambda document: document["costs"].update(timer_floor=[1.0, True, 3.0]),
        lambda document: document.update(costs=[]),
        lambda document: document["costs"].update(minor_fault=[100.0, 90.0, 110.0]),  # the quick check finds 600
        lambda document: document["costs"].update(minor_fault=[0.0, 0.0, 0.0]),
    ],
)
def test_a_cache_that_does_not_hold_is_measured_anew(tmp_path: Path, measured: list[int], change: Change) -> None:
    unit_costs(tmp_path)
    _changed(tmp_path, change)
    again = unit_costs(tmp_path)
    assert not again.cached and len(measured) == 2
    assert unit_costs(tmp_path).cached, "and what was measured replaces it"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_cache_is_measured_anew(tmp_path: Path, measured: list[int], content: bytes) -> None:
    unit_costs(tmp_path)
    (file,) = tmp_path.glob("calibration-*.json")
    file.write_bytes(content)
    assert not unit_costs(tmp_path).cached
    assert len(measured) == 2


def test_a_cache_that_cannot_be_written_costs_a_measurement_only(tmp_path: Path, measured: list[int]) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert not unit_costs(tmp_path / "file" / "below").cached
    assert len(measured) == 2


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "latfix"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "latfix"


def test_two_machines_share_a_folder(tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    unit_costs(tmp_path)
    monkeypatch.setattr(module, "fingerprint", lambda: fingerprint() | {"cores": -1})
    assert not unit_costs(tmp_path).cached
    assert len(measured) == len(list(tmp_path.glob("calibration-*.json"))) == 2


def test_the_fingerprint_says_what_the_costs_depend_on() -> None:
    machine = fingerprint()
    assert machine == fingerprint() == json.loads(json.dumps(machine))
    assert {"version", "cpu", "cores", "kernel", "libc", "page", "huge_pages", "virtual"} <= set(machine)
    assert machine["cpu"] == cpu_model() and machine["cores"] >= 1
