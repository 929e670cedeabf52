"""The models of torch's allocator compared with torch's allocator. Skipped without a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.profilers.allocator_lab.compare_policies import policy_of, replay
from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
from latfix.profilers.allocator_lab.trace import AllocationTrace, write_trace
from tests.gpu.allocator_playback import play_apart
from tests.gpu.marks import ON_CUDA

pytestmark = ON_CUDA

_CAPACITY = 4 << 30


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[AllocationTrace, Path]:
    made = generate(1, Traffic(turns=1000, capacity=_CAPACITY))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_trace(path, made)
    return made, path


@pytest.mark.parametrize("setting", ["", "max_split_size_mb:128", "garbage_collection_threshold:0.8"])
def test_the_model_does_what_torch_does(trace: tuple[AllocationTrace, Path], setting: str) -> None:
    made, path = trace
    real = play_apart(path, _CAPACITY, setting)
    result = replay(made, _CAPACITY, policy_of(setting, _CAPACITY))
    for name in ("failed", "retries", "device_allocs", "device_frees", "peak_reserved"):
        assert getattr(result, name) == real[name], name


def test_the_model_is_close_where_blocks_have_equal_sizes(trace: tuple[AllocationTrace, Path]) -> None:
    """Of equal blocks torch takes the one at the lowest address, and the driver decides on addresses."""
    made, path = trace
    real = play_apart(path, _CAPACITY, "roundup_power2_divisions:8")
    result = replay(made, _CAPACITY, policy_of("roundup_power2_divisions:8", _CAPACITY))
    for name in ("failed", "retries", "device_allocs", "device_frees"):
        assert getattr(result, name) == pytest.approx(real[name], rel=0.3), name
    assert result.peak_reserved == pytest.approx(real["peak_reserved"], rel=0.02)


def test_the_model_of_expandable_segments_is_close(trace: tuple[AllocationTrace, Path]) -> None:
    """The driver decides which free pages are taken first, so counts are only close."""
    made, path = trace
    real = play_apart(path, _CAPACITY, "expandable_segments:True")
    result = replay(made, _CAPACITY, policy_of("expandable_segments:True", _CAPACITY))
    assert result.failed == pytest.approx(real["failed"], abs=2)
    assert result.peak_reserved == pytest.approx(real["peak_reserved"], rel=0.02)


def test_a_stall_takes_longer_than_an_allocation(trace: tuple[AllocationTrace, Path]) -> None:
    real = play_apart(trace[1], _CAPACITY, "")
    assert real["retries"] > 0 and real["max_ms"] * 1e3 > 10 * real["median_us"]
