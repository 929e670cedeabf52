"""The models of torch's allocator against torch's allocator. Skipped, saying so, where there is no CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from latfix.profilers.allocator_lab.compare_policies import policy_of, replay
from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
from latfix.profilers.allocator_lab.trace import AllocationTrace, write_trace
from tests.gpu.allocator_playback import play_apart

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

_CAPACITY = 4 << 30


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[AllocationTrace, Path]:
    made = generate(1, Traffic(turns=1000, capacity=_CAPACITY))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_trace(path, made)
    return made, path


@pytest.mark.parametrize(
    "setting", ["", "max_split_size_mb:128", "roundup_power2_divisions:8", "garbage_collection_threshold:0.8"]
)
def test_the_model_does_what_torch_does(trace: tuple[AllocationTrace, Path], setting: str) -> None:
    made, path = trace
    told = play_apart(path, _CAPACITY, setting)
    result = replay(made, _CAPACITY, policy_of(setting, _CAPACITY))
    for name in ("failed", "retries", "device_allocs", "device_frees", "peak_reserved"):
        assert getattr(result, name) == told[name], name


def test_expandable_segments_are_near(trace: tuple[AllocationTrace, Path]) -> None:
    """Which free pages are taken first is the driver's business: counts are near, failures the same."""
    made, path = trace
    told = play_apart(path, _CAPACITY, "expandable_segments:True")
    result = replay(made, _CAPACITY, policy_of("expandable_segments:True", _CAPACITY))
    assert result.failed == pytest.approx(told["failed"], abs=2)
    assert result.peak_reserved == pytest.approx(told["peak_reserved"], rel=0.02)


def test_a_stall_takes_longer_than_an_allocation(trace: tuple[AllocationTrace, Path]) -> None:
    told = play_apart(trace[1], _CAPACITY, "")
    assert told["retries"] > 0 and told["max_ms"] * 1e3 > 10 * told["median_us"]
