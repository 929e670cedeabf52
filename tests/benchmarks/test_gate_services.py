"""The services that gates are measured on: slower copies, and decisions on recorded rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.gates import gate_services
from latfix.runners.gate.paired_rounds import Round
from tests.runners.gate.test_stopping_rule import record


@pytest.mark.parametrize("service", ["service", "recommender", "example"])
def test_both_sides_differ_in_their_computation_alone(service: str, tmp_path: Path) -> None:
    arms, traffic = gate_services.sides(service, 1.3, tmp_path)
    base, head = cast(tuple[Any, Any], arms)
    assert len(traffic) > 100
    if service == "service":
        commands = [arm.command.partition(" exec ") for arm in (base, head)]
        assert [command[0] for command in commands] == ["LONGER=1", "LONGER=1.3"]
        starts, ports = zip(*(command[2].split(" --port ") for command in commands), strict=True)
        assert starts[0] == starts[1] and ports[0] != ports[1]
        return
    adapter = (tmp_path / "slower" / "workload.py").read_text()
    compile(adapter, "workload.py", "exec")
    assert adapter.count("class Longer(") == 1 and ", 1.3)" in adapter
    assert base.settings == head.settings


def test_recorded_rounds_are_decided_by_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_services, "DRAWS", 3)
    rng = np.random.default_rng(0)
    rounds = []
    for _ in range(12):
        work = rng.lognormal(2, 0.5, 60)
        base, new = (record(work * factor * rng.lognormal(0, 0.03, 60)) for factor in (1.0, 1.3))
        rounds.append((Round(base, new), 10.0))

    found = gate_services.cell(rounds, 1.3, 120.0)

    assert found["rounds"] == 12 and found["round_s"] == 10.0
    gates = {name: entry for name, entry in found.items() if isinstance(entry, dict)}
    statistics = {name: gates.pop(name) for name in list(gates) if name.endswith(" of a round")}
    assert set(gates) == {
        f"{key}<=baseline*{limit}" for key in ("mean", "p50", "p95", "p99") for limit in ("1", "1.1")
    }
    assert statistics["mean of a round"]["ratio"] == pytest.approx(1.3, rel=0.02)
    assert statistics["mean of a round"]["spread"] == statistics["mean of a round"]["spread_at_equal_pace"] < 0.05
    assert gates["mean<=baseline*1.1"]["failed"] == 1 and gates["mean<=baseline*1.1"]["minutes"] < 2
    assert all(entry["passed"] == 0 and entry["right"] == "failed" for entry in gates.values())
    drawn = gate_services.cell(rounds[:8], 1.3, 70.0)["mean<=baseline*1.1"]
    assert drawn["passed"] == 0 and drawn["failed"] + drawn["undecided"] == pytest.approx(1)
