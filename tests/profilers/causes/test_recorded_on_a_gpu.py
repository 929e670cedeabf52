"""Records of a real GPU: an NVIDIA H200 with torch 2.11.

Most are of benchmarks/gpu/faults.py, one fault each. In ``neighbor`` another process multiplies large matrices for
1.5 s of every 4. ``locked`` is the sample recommender in TF32, made without a profile: its four prepare threads keep
the interpreter lock from the thread that launches. ``new_shapes`` is benchmarks/gpu/models.py's encoder in bfloat16:
cuDNN makes a plan of its attention for each new length, 60 ms where later batches of that length take 8.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from tests.profilers.causes.diagnosed import causes_of, diagnosed, own_ms

_RECORDS = Path(__file__).with_name("h200")
_OF_THE_DEVICE = ("transfer.", "dispatch.", "gpu.")


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        ("pageable", "transfer.copy"),
        ("synchronizing", "transfer.sync"),
        ("launching", "dispatch.launch"),
        ("neighbor", "gpu.contention"),
    ],
)
def test_the_injected_cause_leads(record: str, cause: str) -> None:
    """Of the device's causes it has the most; ``traffic.burst`` is the traffic's own."""
    found = causes_of(RunRecord.load(_RECORDS / record))
    device = {name: each.tail_ms for name, each in found.items() if name.startswith(_OF_THE_DEVICE)}
    assert found[cause].named and max(device, key=lambda name: device[name]) == cause


def test_without_a_fault_no_cause_of_the_device_is_named() -> None:
    found = causes_of(RunRecord.load(_RECORDS / "quiet"))
    assert not [name for name, each in found.items() if each.named and name.startswith(_OF_THE_DEVICE)]


def test_another_process_delays_copies_and_compute_only_while_it_computes() -> None:
    """The driver's utilization by process is smeared over seconds; the device's total tells when."""
    record = RunRecord.load(_RECORDS / "neighbor")
    found, own = causes_of(record), own_ms(record, "gpu.contention")
    assert found["gpu.contention"].tail_ms > 3 * found["transfer.copy"].tail_ms
    measured = record.requests["index"] >= 0
    at, own = record.requests["arrival_ns"][measured] / 1e9, own[: np.count_nonzero(measured)]
    working = ((at > 2.1) & (at < 3.4)) | ((at > 6.1) & (at < 7.4))
    resting = ((at > 0.2) & (at < 1.6)) | ((at > 4.2) & (at < 5.6))
    assert own[working].mean() > 0.5 and own[resting].mean() < 0.02 * own[working].mean()


def test_a_launching_thread_that_waits_for_the_interpreter_is_told_from_a_slow_device() -> None:
    """Without a profile, too: what the thread waits beyond a typical batch is for the lock."""
    found = causes_of(RunRecord.load(_RECORDS / "locked"))
    assert found["python.gil"].named and max(found, key=lambda name: found[name].tail_ms) == "python.gil"
    assert found["unexplained"].tail_ms < 0.3 * found["python.gil"].tail_ms


def test_first_uses_are_told_from_slow_batches_also_where_most_batches_are_first_uses() -> None:
    record = RunRecord.load(_RECORDS / "new_shapes")
    found = causes_of(record)
    assert found["cold.start"].named and found["cold.start"].tail_share > 0.9
    assert "new shapes kept coming, 28 of 60 in the second half" in found["cold.start"].evidence
    notes = " ".join(diagnosed(record).notes)
    assert "padded to fewer shapes" in notes and "warmup_requests" not in notes


def test_a_shape_that_warm_up_ran_on_another_thread_is_new_again() -> None:
    """torch keeps cuDNN's plans by thread."""
    record = RunRecord.load(_RECORDS / "new_shapes")
    seen = replace(record, batches={**record.batches, "first_shape": np.zeros_like(record.batches["first_shape"])})
    assert causes_of(seen)["cold.start"].tail_share > 0.9
