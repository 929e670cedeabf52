"""The allocator's setting by the service's own allocations: recorded once, on a separate arm, without timing."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.profilers.allocator_lab.compare_policies import policy_of
from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
from latfix.profilers.allocator_lab.trace import AllocationTrace
from latfix.profilers.gpu.alloc_conf import ALLOC_CONF, OLDER_CONF
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.memory import device_allocator as memory_device_allocator

_MIB = 1 << 20
_ROOM = 1280 * _MIB
_STALLS = 5


def _history(trace: AllocationTrace) -> list[dict[str, Any]]:
    """As torch's allocator writes it, with the calls of the device that the model makes for it."""

    def entry(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(entries)}

    entries: list[dict[str, Any]] = []
    policy = policy_of("", _ROOM)
    live: dict[int, Any] = {}
    for event in trace.events:
        if event.is_free:
            block = live.pop(event.key)
            actions = ("free_requested", "free_completed")
            entries += [entry(action, block.start, block.requested) for action in actions]
            policy.free(block)
            continue
        before = (policy.counters.taken, policy.counters.given)
        live[event.key] = block = policy.allocate(event.size)
        taken, given = policy.counters.taken - before[0], policy.counters.given - before[1]
        entries += [entry("segment_free", -1, given)] if given else []
        entries += [entry("segment_alloc", block.start, taken)] if taken else []
        entries.append(entry("alloc", block.start, event.size))
    return entries


@pytest.fixture
def device(world: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Services on a device that stalls without expandable segments; what to call so that nothing can be recorded."""
    arm, refusal = world.arm_class, [""]
    replay, ask = arm.replay, arm.ask
    world.silent |= {ALLOC_CONF, OLDER_CONF}

    def on_device(self: Any, folder: Path, *rest: Any, **more: Any) -> RunRecord:
        record: RunRecord = replay(self, folder, *rest, **more)
        conf = self.settings.env.get(ALLOC_CONF, "")
        stalls = 0 if "expandable_segments:True" in conf else _STALLS
        memory = {
            "total_bytes": _ROOM,
            "left_bytes": 0,
            "reserved_end_bytes": _ROOM,
            "retries": stalls,
            "allocs": 8 * stalls,
            "frees": 8 * stalls,
            "share": 1.0,
            "backend": "native",
            "settings": {"expandable_segments": not stalls, "PYTORCH_CUDA_ALLOC_CONF": conf},
        }
        hit = np.arange(len(record.requests["latency_ns"])) % 12 == 5
        record.requests["latency_ns"][hit] += 60_000_000 * bool(stalls)
        made = replace(record, meta=record.meta.updated(device="cuda:0", device_memory=memory))
        world.records[folder] = made
        return made

    def answer(self: Any, do: str, **more: Any) -> Any:
        if do != "history":
            return ask(self, do, **more)
        world.asked.append((self.label, "history-end" if "file" in more else "history-begin"))
        assert self.alone, "it has the room of the baseline"
        if "file" in more:
            trace = generate(2, Traffic(turns=400, capacity=1 << 30, filled=0.5, large=0.15))
            Path(more["file"]).write_bytes(pickle.dumps({"device_traces": [_history(trace)], "segments": []}))
            return {}
        return {"why_not": refusal[0]}

    monkeypatch.setattr(arm, "replay", on_device)
    monkeypatch.setattr(arm, "ask", answer)

    def refuse(reason: str) -> None:
        refusal[0] = reason

    yield refuse


@pytest.mark.usefixtures("device")
def test_the_best_setting_for_the_history_is_tried_and_kept(search: Any, world: Any) -> None:
    outcome = search(memory_device_allocator.FIX, tail={"memory.fragmentation": 80.0})
    (step,) = outcome.steps
    assert (step.fix, step.status) == ("memory.device_allocator", "kept"), step.reason
    assert dict(outcome.settings.env) == dict.fromkeys((ALLOC_CONF, OLDER_CONF), "expandable_segments:True")
    assert "0 stalls; without it" in step.verified
    recorded = [(label, what) for label, what in world.asked if what.startswith("history")]
    assert recorded == [("memory-history", "history-begin"), ("memory-history", "history-end")], "once"
    names = [name for label, name, _ in world.replays if label == "memory-history"]
    assert names, "the windows were replayed while it was recorded"
    assert not any("memory-history" in folder for step in outcome.steps for pair in step.pairs for folder in pair)


def test_a_service_that_cannot_be_recorded_shows_the_reason(device: Callable[[str], None], search: Any) -> None:
    device("this build of torch records none")
    outcome = search(memory_device_allocator.FIX, tail={"memory.fragmentation": 80.0})
    (step,) = outcome.steps
    assert (step.status, step.reason) == ("skipped", "this build of torch records none")


def test_on_the_host_nothing_is_recorded(search: Any, world: Any) -> None:
    outcome = search(memory_device_allocator.FIX, tail={"memory.fragmentation": 80.0})
    assert outcome.steps[0].reason == "the model is not on a CUDA device"
    assert not any(label == "memory-history" for label, _ in world.asked)
