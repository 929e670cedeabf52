"""A live runner serves with every setting: rows are reused, answers are right, threads end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from latfix import Runner
from latfix.runners.live import runner as live
from latfix.stages import STAGES
from tests.runners.engine.served import engine_threads
from tests.runners.live.conftest import MakeRunner

#: Works in ``steps`` steps; answers the request's number multiplied by them.
STEPPED = """
from tests.runners.scheduling.counting_model import Counter, Stepping

class Stepped(Stepping):
    def load(self, device):
        return Counter()
"""
EVERY: list[dict[str, Any]] = [
    {"batching": "adaptive", "target_ms": 50.0, "window_least_ms": 0.0, "window_most_ms": 5.0},
    {"batch_order": "length", "batch_window_ms": 1.0},
    {"schedule": "shortest", "ageing_ms": 50.0},
    {"schedule": "work_per_byte", "memory_limit_mb": 64},
    {"admission": "limit"},
    {"admission": "deadline", "timeout_ms": 20_000.0},
    {"buffer_pool": True, "inference_mode": True},
    {"gc": "freeze", "keep_warm_ms": 5.0, "warmup_shapes": 2},
    {"pin": "workers", "workers": 2, "shared_model": True, "prepare_threads": 2},
    {"precision": "bf16"},
]


def _serve(runner: Runner) -> None:
    """Four callers at once, several rounds of the ring; some of their requests fail."""

    def infer(k: int) -> Any:
        if k % 25 == 24:
            return str(runner.submit({"value": -1, "id": f"bad{k}"}).exception(20))
        return runner.infer_sync({"value": k % 7})

    with ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(infer, range(200)))
    for k, answer in enumerate(answers):
        assert f"bad{k}" in answer if k % 25 == 24 else answer == 2.0 * (k % 7), (k, answer)
    rows = runner.recent()
    assert len(rows) == 16 and (rows["latency_ns"] == sum(rows[f"{stage}_ns"] for stage in STAGES)).all()
    recorder = runner._recorder
    assert len(set(recorder._free)) == recorder.slots
    assert len(set(recorder._free_batches)) == 2 * recorder.slots + 16


@pytest.mark.parametrize("settings", EVERY, ids=lambda settings: "-".join(settings))
def test_every_kind_of_setting_serves(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(live, "WINDOW", 16)
    runner = make_runner(max_batch_size=4, load={"slots": 8, "settings": settings})
    _serve(runner)
    assert runner.evidence()["placement"]["worker"]
    runner.close()
    assert not engine_threads()


def test_a_model_that_works_in_steps(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WINDOW", 16)
    traffic = [{"arrival_s": 0.01 * k, "id": f"{k}", "steps": k % 7} for k in range(10)]
    load = {"slots": 8, "settings": {"batching": "continuous"}}
    runner = make_runner(adapter=STEPPED, traffic=traffic, max_batch_size=4, load=load)
    with ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda k: runner.infer_sync({"id": f"{k}", "steps": k % 7}), range(200)))
    assert answers == [float(k * (k % 7)) for k in range(200)]
    assert len(set(runner._recorder._free_batches)) == 2 * runner._recorder.slots + 16
