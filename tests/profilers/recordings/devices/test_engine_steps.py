"""Engine steps: only the time that a step lost is attributed, even if the device was slower in parallel."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from latfix.errors import InputError
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.results.diagnosis import Diagnosis
from tests.profilers.recordings.devices.test_device_reader import cause_ms, real

HEADER = (
    "cycle,pid,hostname,beta_pct,function_name,metric_name,device,func_type,mu_pct,sigma_pct,duration,"
    "interpolation_status,anchor_name,anchor_dur_us,cycle_start_ts,instances_count,simple_name"
)


def table(
    *, begin: float = 0.0, length: float = 600e3, oncpu: float = 1000e3, gpu: float = 40e3, clock: float = 141_000
) -> str:
    """Twelve steps, each function with two metrics."""
    rows = [HEADER]
    for k in range(12):
        for part, metric, value, took in (
            ("oncpu", "cpu_frequency", 87.5, oncpu),
            ("oncpu", "host_cpu_usage", 7.0, oncpu),
            ("gpu_compute", "gpu_sm_frequency", clock, gpu),
            ("gpu_compute", "gpu_usage", 100.0, gpu),
        ):
            extra = 1e3 * (k % 3)
            rows.append(
                f"{k + 1},7,,1.0,{part},{metric},Host,{part},{value},0,{took},*,Scheduler.run_batch,"
                f"{length + extra},{begin + 1e6 * k},1,{part}"
            )
    return "\n".join(rows) + "\n"


def against(folder: Path, reference: str, other: str) -> Diagnosis:
    (folder / "x.csv.gz").write_bytes(gzip.compress(other.encode()))
    (folder / "y.csv").write_text(reference)
    return diagnose_recording(folder, ReadOptions())


def test_a_slowdown_is_not_contention(tmp_path: Path) -> None:
    result = against(tmp_path, table(), table(begin=1e9, length=1300e3, oncpu=2500e3))
    assert result.verdict == "host.slowdown"
    assert result.excess_ms == pytest.approx(700) and cause_ms(result, "host.slowdown") == pytest.approx(700, abs=1.5)
    assert result.ledger.conservation_error_ns() == 0


def test_a_slower_device_hidden_behind_the_host_gets_nothing(tmp_path: Path) -> None:
    result = against(tmp_path, table(), table(begin=1e9, gpu=160e3, clock=21_000))
    assert result.verdict == "steady" and not any(entry.named for entry in result.causes)
    assert cause_ms(result, "gpu.clocks") <= result.excess_ms < 3


def test_a_slower_device_gets_the_loss_of_the_step(tmp_path: Path) -> None:
    result = against(tmp_path, table(), table(begin=1e9, length=700e3, gpu=400e3, clock=21_000))
    assert result.verdict == "gpu.clocks" and cause_ms(result, "gpu.clocks") == pytest.approx(100, abs=1.5)
    same = against(tmp_path, table(), table(begin=1e9, length=700e3, gpu=400e3))
    assert cause_ms(same, "gpu.slowdown") == pytest.approx(100, abs=1.5)


def test_without_a_reference_slow_steps_are_compared_with_the_faster_half(tmp_path: Path) -> None:
    slow = table(begin=1e9, length=1300e3, oncpu=1700e3).replace(",7,,", ",8,,").splitlines(keepends=True)
    (tmp_path / "x.csv").write_text(table() + "".join(slow[1:41]))
    result = diagnose_recording(tmp_path / "x.csv", ReadOptions())
    assert result.verdict == "host.slowdown" and cause_ms(result, "host.slowdown") == pytest.approx(700, abs=3)


def test_the_earlier_table_is_the_reference_unless_named(tmp_path: Path) -> None:
    (tmp_path / "normal_perf.csv").write_text(table(begin=2e9))
    (tmp_path / "abnormal_perf.csv").write_text(table(begin=1e9, length=1300e3, oncpu=2500e3))
    assert diagnose_recording(tmp_path, ReadOptions()).verdict == "host.slowdown"
    alone = diagnose_recording(tmp_path / "normal_perf.csv", ReadOptions())
    assert alone.verdict == "steady" and alone.requests["ok"] == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER + "\n", "without a step"),
        (table().replace("600000.0", "inf", 1), ":2: "),
        (table()[:-40], "row"),
        (table().replace("40000.0", "-1", 1), "microseconds"),
        (table().replace("600000.0", "1e20", 1), "microseconds"),
    ],
)
def test_damaged_tables_are_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        diagnose_recording(tmp_path / "t.csv", ReadOptions())
    assert words in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("cpu_compute_squeeze_out", "host.slowdown"),
        ("gpu_memory_squeeze_out_PCIe", "steady"),
        ("gpu_instability", ""),
    ],
)
def test_real_engine_steps(name: str, verdict: str) -> None:
    result = real(f"engine_steps/sglang_{name}")
    if name == "gpu_instability":  # the GPU's clock at its minimum
        assert 0 < cause_ms(result, "gpu.clocks") <= result.excess_ms < 1001 - 750
    else:
        assert result.verdict == verdict
        assert (verdict == "steady") == (not any(entry.named for entry in result.causes))
