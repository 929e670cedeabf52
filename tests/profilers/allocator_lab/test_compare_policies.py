"""Traces, the comparison of policies on them, and the answer."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from latfix.errors import InputError
from latfix.profilers.allocator_lab.compare_policies import (
    TRIED,
    answer,
    choose,
    compare,
    fragmentation,
    policy_of,
    replay,
)
from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
from latfix.profilers.allocator_lab.trace import AllocationTrace, Event, read_trace, write_trace
from tests.conftest import Canary

_MIB = 1 << 20
_GIB = 1 << 30


def _trace(*steps: tuple[int, int]) -> AllocationTrace:
    """Steps of key and MiB; 0 MiB is a free."""
    return AllocationTrace(events=[Event(key=key, size=mib * _MIB) for key, mib in steps], source="test")


#: A segment that stays split: 40 of 100 MiB are free in it and cannot be given back.
_STUCK = _trace((0, 60), (0, 0), (1, 20), (2, 70), (3, 10))


def test_a_failure_despite_enough_free_memory_is_counted() -> None:
    result = replay(_STUCK, 100 * _MIB, policy_of("", 100 * _MIB))
    assert (result.allocations, result.failed, result.failed_fragmented, result.retries) == (4, 1, 1, 1)
    assert result.worst == {
        "position": 3,
        "bytes": 70 * _MIB,
        "free_bytes": 80 * _MIB,
        "largest_free_block": 40 * _MIB,
        "untaken_bytes": 40 * _MIB,
    }
    assert result.peak_reserved == 60 * _MIB


def test_a_device_that_is_too_small_is_not_fragmentation() -> None:
    result = replay(_trace((0, 60), (1, 60)), 100 * _MIB, policy_of("", 100 * _MIB))
    assert (result.failed, result.failed_fragmented, result.worst) == (1, 0, None)
    result = replay(_trace((0, 200), (0, 0), (1, 50)), 100 * _MIB, policy_of("", 100 * _MIB))
    assert (result.failed, result.peak_reserved) == (1, 50 * _MIB), "a failed allocation is not freed"


def test_the_answer_names_the_setting_that_helps() -> None:
    results = compare(_STUCK, 100 * _MIB, ("", "max_split_size_mb:128", "expandable_segments:True"))
    assert answer(results) == (
        "torch's defaults: 1 stall, 1 failure (1 of them with enough memory free in total). "
        "With expandable_segments:True none would remain (device calls 1 -> 2, held at most 60 -> 100 MiB); "
        "with max_split_size_mb:128 1 failure and 1 stall."
    )
    hopeless = compare(_trace((0, 200)), 100 * _MIB, ("", "expandable_segments:True"))
    assert answer(hopeless).endswith("None of the tested settings does better.")
    assert answer(compare(_trace((0, 20)), 100 * _MIB)) == "torch's defaults: no allocation stalls or fails."


def test_synthetic_traffic_fails_under_the_defaults_despite_free_memory() -> None:
    for seed in range(3):
        trace = generate(seed, Traffic(turns=1000))
        assert trace.peak_bytes < 4 * _GIB, "all of it fits"
        default, expandable = compare(trace, 4 * _GIB, ("", "expandable_segments:True"))
        assert default.failed_fragmented == default.failed > 10
        assert expandable.failed < default.failed / 4
        assert default.peak_stuck > expandable.peak_stuck


def test_synthetic_traffic_is_consistent_and_seeded() -> None:
    want = Traffic(turns=100)
    assert generate(4, want).events == generate(4, want).events != generate(5, want).events
    live: set[int] = set()
    for event in generate(1, Traffic(turns=300)).events:
        if event.is_free:
            live.remove(event.key)
        else:
            assert event.key not in live
            live.add(event.key)


def test_a_trace_survives_writing_and_reading(tmp_path: Path) -> None:
    trace = generate(2, Traffic(turns=50))
    write_trace(tmp_path / "trace.jsonl", trace)
    assert list(read_trace(tmp_path / "trace.jsonl").events) == list(trace.events)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing", "found no JSON"),
        ("[1]", "found [1]; expected an object"),
        ('{"alloc": 1, "free": 1, "bytes": 3}', "expected an object"),
        ('{"alloc": 1}', "found bytes = null"),
        ('{"alloc": 1, "bytes": 0}', "found bytes = 0"),
        ('{"alloc": 1, "bytes": 1e3}', "found bytes = 1000.0"),
        ('{"alloc": true, "bytes": 3}', "found alloc = true"),
        ('{"alloc": 1, "bytes": 3, "stream": "a"}', 'found stream = "a"'),
        ('{"alloc": 1, "bytes": 3, "t_us": NaN}', "found t_us = NaN"),
        ('{"free": 7}', "found free 7; expected a number that is allocated"),
        ('{"alloc": 0, "bytes": 3}', "found alloc 0; expected a number that is not allocated"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"alloc": 0, "bytes": 512}\n\n' + line + "\n")
    with pytest.raises(InputError) as raised:
        read_trace(path)
    assert raised.value.message.startswith(f"{path}:3: ") and message in raised.value.message


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("empty", "binary", "absent"):
        with pytest.raises(InputError, match=name):
            read_trace(tmp_path / name)


def _entry(action: str, address: int, mib: int, t_us: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": mib * _MIB, "stream": 0, "time_us": 1000 + t_us}


def _snapshot(tmp_path: Path, entries: list[dict[str, Any]], segments: list[dict[str, Any]] | None = None) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[], entries], "segments": segments or []}))
    return path


def test_a_snapshot_of_torch_is_read_as_a_trace(tmp_path: Path) -> None:
    path = _snapshot(
        tmp_path,
        [
            _entry("segment_alloc", 100, 20),
            _entry("alloc", 100, 5, 10),
            _entry("free_requested", 100, 5, 20),
            _entry("free_completed", 100, 5, 30),
            _entry("alloc", 100, 7, 40),
            _entry("segment_free", 900, 20, 50),
            _entry("segment_alloc", 500, 40, 60),
            _entry("alloc", 500, 33, 70),
            _entry("oom", 0, 90, 80),
        ],
    )
    trace = read_trace(path)
    assert [(event.key, event.size // _MIB, event.t_us) for event in trace.events] == [
        (0, 5, 10),
        (0, 0, 30),
        (1, 7, 40),
        (2, 33, 70),
    ]
    counted = {"retries": 1, "ooms": 1, "device_allocs": 2, "device_frees": 1}
    assert trace.recorded == {**counted, "peak_reserved": 40 * _MIB}
    assert trace.setting == ""
    assert trace.source == "snapshot.pickle, device 1"


def test_memory_allocated_before_the_history_comes_first(tmp_path: Path) -> None:
    segments = [
        {
            "device": 1,
            "address": 1000,
            "stream": 0,
            "blocks": [
                {"size": 3 * _MIB, "requested_size": 3 * _MIB - 100, "state": "active_allocated"},
                {"size": 4 * _MIB, "state": "inactive"},
            ],
        },
        {"device": 0, "address": 5, "stream": 0, "blocks": [{"size": 512, "state": "active_allocated"}]},
    ]
    entries = [_entry("free_requested", 77, 9), _entry("free_completed", 77, 9), _entry("alloc", 77, 2)]
    trace = read_trace(_snapshot(tmp_path, entries, segments))
    assert [(event.key, event.size) for event in trace.events] == [
        (0, 9 * _MIB),
        (1, 3 * _MIB - 100),
        (0, 0),
        (2, 2 * _MIB),
    ]


def test_peak_memory_is_counted_back_from_the_final_segments(tmp_path: Path) -> None:
    blocks = [{"size": 30 * _MIB, "state": "inactive"}]
    segments = [{"device": 1, "address": 1000, "stream": 0, "blocks": blocks}]
    entries = [_entry("segment_free", 5, 20), _entry("segment_free", 9, 40), _entry("segment_alloc", 1000, 30)]
    assert read_trace(_snapshot(tmp_path, entries, segments)).recorded["peak_reserved"] == 60 * _MIB


def test_a_snapshot_contains_the_allocators_settings(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 * _MIB}
    path.write_bytes(pickle.dumps({"device_traces": [[_entry("alloc", 1, 2)]], "allocator_settings": settings}))
    assert read_trace(path).setting == "max_split_size_mb:64"


def test_recorded_stalls_that_the_model_misses_are_reported() -> None:
    results = compare(_trace((0, 20)), 100 * _MIB)
    assert answer(results, {"retries": 2, "ooms": 1}) == (
        "torch's defaults: no allocation stalls or fails in the model, but 3 did in the recording: the process had "
        "less memory than --capacity."
    )


def test_the_setting_with_the_fewest_stalls_is_chosen() -> None:
    found = choose(_STUCK, 100 * _MIB)
    assert found.setting == "expandable_segments:True" and "none would remain" in found.description
    assert [each["setting"] for each in found.figures["policies"]] == ["", *TRIED]
    with_it = choose(_STUCK, 100 * _MIB, found.setting)
    assert with_it.setting == "" and with_it.description == "expandable_segments:True: no allocation stalls or fails."
    assert choose(_trace((0, 200)), 100 * _MIB).setting == ""


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, canary: Canary) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[canary]]}))
    with pytest.raises(InputError, match=r"it names posix\.mkdir"):
        read_trace(path)


@pytest.mark.parametrize(
    "content", [{"device_traces": [[], []]}, {"segments": []}, [1], {"device_traces": [[{"a": 1}]]}]
)
def test_other_pickles_are_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "other.pickle"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=r"other\.pickle: found .*_record_memory_history"):
        read_trace(path)


def test_a_truncated_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "half.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[_entry("alloc", 1, 1)]]})[:-20])
    with pytest.raises(InputError, match="no readable snapshot"):
        read_trace(path)


def test_the_document_is_json() -> None:
    found = fragmentation(_STUCK, 100 * _MIB, compare(_STUCK, 100 * _MIB)).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["schema"] == "latfix.fragmentation/1" and found["peak_bytes"] == 100 * _MIB
    assert [policy["policy"] for policy in found["policies"]][:2] == ["torch's defaults", "expandable_segments:True"]
