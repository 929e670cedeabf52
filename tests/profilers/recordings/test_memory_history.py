"""A memory history: its stalls, and the setting that would have avoided them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from latfix.errors import InputError
from latfix.gates.subject import GateSubject
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.reports.answer import diagnosis_answer
from latfix.results.diagnosis import Diagnosis
from tests.profilers.recordings.devices.test_device_reader import real

MIB = 1 << 20


def entry(action: str, address: int, size: int, time_us: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size * MIB, "stream": 0, "time_us": time_us, "frames": []}


def diagnosed(path: Path, entries: list[dict[str, Any]]) -> Diagnosis:
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [entries]}))
    return diagnose_recording(path, ReadOptions())


def test_a_stall_has_its_time_and_the_setting_that_avoids_it(tmp_path: Path) -> None:
    entries = []
    for k in range(4):  # four segments, each too small for the later allocation
        entries += [entry("segment_alloc", 1000 * k, 20, 10 * k), entry("alloc", 1000 * k, 20, 10 * k + 1)]
    entries += [entry("free_completed", 1000 * k, 20, 100 + k) for k in range(4)]
    entries += [entry("segment_free", 1000 * k, 20, 200 + 100 * k) for k in range(4)]
    entries += [entry("segment_alloc", 9000, 40, 700), entry("alloc", 9000, 40, 710)]
    result = diagnosed(tmp_path / "x", entries)
    assert result.verdict == "memory.fragmentation" and "expandable_segments:True" in result.sentence
    (stall,) = result.slowest
    assert (stall.start_ms, stall.latency_ms) == (0.2, 0.5)
    assert "40.0 MiB requested, 80.0 MiB given back" in stall.id
    why = next(line.words for line in diagnosis_answer(result).lines if line.label == "why")
    assert why.startswith("memory.fragmentation: 1 stall: ")  # of an unknown whole: no share
    document = result.to_json()
    assert document["latency_ms"]["p99"] is None and document["tail"]["excess_ms"] is None
    assert document["source"]["kind"] == "memory" and document["requests"]["timeout"] is None
    assert not GateSubject.from_diagnosis(result).cause_shares  # shares are unknown, so gates on them are undecided


def test_another_pickle_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1.0]}))
    with pytest.raises(InputError, match=r"found a Python pickle, .*load it in an adapter"):
        diagnose_recording(tmp_path / "model.pkl", ReadOptions())


def test_a_history_without_stalls_is_steady(tmp_path: Path) -> None:
    result = diagnosed(tmp_path / "x", [entry("segment_alloc", 0, 20, 0), entry("alloc", 0, 20, 1)])
    assert result.verdict == "steady" and not result.causes and not result.slowest


@pytest.mark.parametrize("shown_by", ["frames", "work between"])
def test_a_program_that_empties_the_cache_does_not_wait(shown_by: str, tmp_path: Path) -> None:
    entries = [entry("segment_alloc", 0, 20, 0), entry("alloc", 0, 20, 1), entry("free_completed", 0, 20, 2)]
    emptied = entry("segment_free", 0, 20, 10)
    if shown_by == "frames":
        emptied["frames"] = [{"name": "forward", "filename": "m.py", "line": 1}, {"name": "THCPModule_emptyCache"}]
    between = [] if shown_by == "frames" else [entry("free_requested", 900, 20, 20)]
    entries += [emptied, *between, entry("segment_alloc", 9000, 40, 9_000_000), entry("alloc", 9000, 40, 9_000_001)]
    assert diagnosed(tmp_path / "x", entries).verdict == "steady"


def test_a_pickle_that_names_a_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps({"segments": [Path("x")]}, protocol=4))
    with pytest.raises(InputError, match="a snapshot is plain data"):
        diagnose_recording(tmp_path / "x", ReadOptions())


def test_real_history() -> None:
    result = real("memory/h100_forward.pickle")
    assert result.verdict == "steady" and any("516 with torch's defaults" in note for note in result.notes)
    assert result.source is not None and result.source.read["held at most, GB"] == 19.67
