"""``benchmarks/replay/replay_fidelity.py``: what runs beside the replayer in each condition; rounds at each rate."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.replay import replay_fidelity
from benchmarks.replay.replay_fidelity import CONDITIONS, Sent
from latfix.runners.selftest.faults.cpu_hogs import cores

pytestmark = pytest.mark.alone


def _children() -> int:
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_each_condition_has_its_company_and_three_rounds_at_each_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[bool, int]] = []
    before = _children()

    def send(rate: float, seconds: float, seed: int, held: list[int]) -> Sent:
        del rate, seconds
        seen.append((bool(held), _children() - before))
        return Sent(np.array([1_000, 2_000 + seed]))

    monkeypatch.setattr(replay_fidelity, "KINDS", {"a replayer": send})
    monkeypatch.setattr("sys.argv", ["replay_fidelity", "--seconds", "0.1", "--out", str(tmp_path / "f.json")])
    replay_fidelity.main()
    company = {"idle": (False, 0), "hogs": (False, len(cores())), "lock": (True, 0)}
    company["lock+bursts"] = (True, 2 * len(cores()))
    assert seen == [company[name] for name, rates in CONDITIONS.items() for _ in rates for _ in range(3)]
    assert _children() == before
    document = json.loads((tmp_path / "f.json").read_text())
    assert document["priority"].startswith("replayer: ")
    assert [(row["condition"], row["rate"], row["requests"]) for row in document["rows"]] == [
        (name, rate, 6) for name, rates in CONDITIONS.items() for rate in rates
    ]
