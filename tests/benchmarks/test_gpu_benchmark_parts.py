"""Parts of the benchmarks for a GPU, as far as they work without one: what they make of runs, profiles and output."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import ceilings, faults, fragmentation, stages
from benchmarks.gpu.commands import Ended
from benchmarks.gpu.findings import Findings
from benchmarks.gpu.judging import FAULTS, FRAGMENTATION, SHOWN, STAGED, problems
from benchmarks.gpu.parts import PARTS
from latfix.config.workload_toml import load_spec
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings

_SECONDS = {part.name: part.seconds for part in PARTS}


# fragmentation


def _service(folder: Path) -> Path:
    trace = fragmentation.traffic_of_allocations(turns=4, in_use=1 << 20)
    return fragmentation.write_workload(folder, trace, turns=4, device="cpu", share=0.5)


def _run(**values: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "memory_causes": {"memory.fragmentation": {"named": True}},
        "retries": 10,
        "verdict": "memory.fragmentation",
        "latency_ms": {"p99": 40.0},
        "reserve_mb": 512,
    }
    return run | values


def test_a_workload_that_has_run_is_copied_without_what_the_run_left(tmp_path: Path) -> None:
    folder = _service(tmp_path / "defaults")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "adapter.cpython-311.pyc").write_bytes(b"compiled")
    other = fragmentation.with_settings(folder, "reserved", reserve_mb=512)
    assert {file.name for file in other.iterdir()} == {file.name for file in folder.iterdir()} - {"__pycache__"}
    assert load_spec(str(other)).settings.reserve_mb == 512 and load_spec(str(folder)).settings.reserve_mb == 0


def test_a_run_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnose(workload: Path, _: float) -> dict[str, Any]:
        if workload.name == "reserved":
            raise OSError("disk full")
        return _run(retries=0 if workload.name == "expandable" else 10)

    monkeypatch.setattr(fragmentation, "diagnose", diagnose)
    found = Findings()
    fragmentation.replays(found, _service(tmp_path / "defaults"), time.monotonic() + 100)
    assert found.items["memory.pool"]["failed"] == "OSError: disk full"
    assert found.items["defaults"]["retries"] == 10 and found.items["memory.device_allocator"]["retries"] == 0
    shown = fragmentation.shown(found.items)
    assert all(shown.values()) and len(shown) == 2
    assert problems("fragmentation", {**found.items, "shown": shown})


def test_without_the_first_run_the_others_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "diagnose", lambda *_: {"failed": "stopped"})
    found = Findings()
    fragmentation.replays(found, _service(tmp_path / "defaults"), time.monotonic() + 100)
    assert set(found.items) == set(FRAGMENTATION) and "skipped" in found.items["memory.pool"]
    assert fragmentation.shown(found.items) == {}


def test_what_is_looked_at_is_what_is_judged() -> None:
    gone = _run(memory_causes={}, retries=0, verdict="none", latency_ms={"p99": 20.0})
    shown = fragmentation.shown({"defaults": _run(), "memory.pool": gone})
    assert len(shown) == SHOWN and all(shown.values())
    assert not all(fragmentation.shown({"defaults": _run(), "memory.pool": _run()}).values())


def test_time_suffices_for_three_runs() -> None:
    traffic_s = fragmentation.TURNS / fragmentation.RATE
    # Beside its traffic a run takes 7 s without a GPU; what CUDA takes to start comes on top of it.
    assert _SECONDS["fragmentation"] >= 3 * (traffic_s + 12) + 10


# faults

_EVIDENCE: dict[str, Any] = {
    "scheduled": 960,
    "device": "cuda:0",
    "device_profile": [{"launches": 17}] * 10,
    "calibration": {"copy_in_ns": 3000.0, "copy_out_ns": 3000.0},
    "probes": {"nvml": "NVML: Test 9000"},
}
_QUIET: dict[str, Any] = {"causes": [{"cause": "traffic.burst", "named": True}]}


def test_a_run_with_all_evidence_lacks_none() -> None:
    assert faults.missing_evidence(_EVIDENCE, {"ok": 955}) == []


@pytest.mark.parametrize(
    ("change", "ok", "said"),
    [
        ({}, 940, "940 of 960 requests ended ok"),
        ({"scheduled": 0}, 0, "0 of 0 requests"),
        ({"device": "cpu"}, 960, "the device was cpu"),
        ({"device_profile": [{}] * 7}, 960, "7 batches were profiled"),
        ({"device_profile_failure": "RuntimeError: CUPTI"}, 960, "CUPTI"),
        ({"calibration": {"copy_in_ns": 1.0}}, 960, "copy_out_ns was not measured"),
        ({"probes": {"nvml": "NVML: not read, the package nvidia-ml-py is not installed"}}, 960, "not read"),
        ({"probes": {}}, 960, "not read"),
    ],
)
def test_what_a_run_lacks_is_said_and_then_nothing_is_right(change: dict[str, Any], ok: int, said: str) -> None:
    lacking = faults.missing_evidence(_EVIDENCE | change, {"ok": ok})
    assert len(lacking) == 1 and said in lacking[0]
    quiet = faults.judged("Quiet", _QUIET, lacking, others_told=True)
    assert quiet["right"] is False and quiet["evidence_missing"] == lacking


def test_a_run_without_any_record_proves_nothing() -> None:
    assert len(faults.missing_evidence({}, {})) == 6


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_its_cause(fault: str) -> None:
    named = {"causes": [{"cause": faults.EXPECTED[fault] or "batch.size", "named": True}]}
    other = {"causes": [{"cause": "transfer.other", "named": True}]}
    assert faults.judged(fault, named, [], others_told=True)["right"] is True
    assert faults.judged(fault, other, [], others_told=True)["right"] is False


def test_a_neighbor_whose_work_nobody_tells_is_neither_right_nor_wrong() -> None:
    unseen = faults.judged("Neighbor", _QUIET, [], others_told=False)
    assert unseen["right"] is None and "others_sm_util" in unseen["cannot_be_told"]
    assert faults.judged("Neighbor", _QUIET, ["the device was cpu"], others_told=False)["right"] is False
    found = {"causes": [{"cause": "gpu.contention", "named": True}]}
    assert faults.judged("Neighbor", found, [], others_told=False)["right"] is True


def test_the_neighbor_is_waited_for_and_ended() -> None:
    begun = time.monotonic()
    program = "import time; time.sleep(0.3); print('ready', flush=True); time.sleep(60)"
    with faults.neighbor(program, 30) as process:
        assert time.monotonic() - begun >= 0.3 and process.poll() is None
    assert process.returncode == -9


@pytest.mark.parametrize(
    ("program", "seconds"),
    [("raise SystemExit(3)", 30), ("import time; time.sleep(60)", 0.2)],
    ids=["dies", "silent"],
)
def test_a_neighbor_that_does_not_begin_is_an_error(program: str, seconds: float) -> None:
    with pytest.raises(RuntimeError, match="was not at work"), faults.neighbor(program, seconds):
        pass


def test_a_neighbor_that_died_meanwhile_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_LOAD", "print('ready', flush=True)")

    def diagnosed(*_: Any) -> dict[str, Any]:
        time.sleep(0.5)
        return {"right": True, "evidence_missing": []}

    monkeypatch.setattr(faults, "_diagnosed", diagnosed)
    result = faults._planted("Neighbor", time.monotonic() + 30)
    assert result["right"] is False and "had ended with 0" in result["evidence_missing"][0]


def test_a_run_that_does_not_end_is_told_and_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> Ended:
        return Ended(exit_code=1, output="boom", seconds=1.0, stopped=False)

    monkeypatch.setattr(faults, "run", run)
    monkeypatch.setattr(faults, "_LOAD", "raise SystemExit(1)")
    found = Findings()
    faults.measure(found, time.monotonic() + 60)
    assert set(found.items) == set(FAULTS)
    assert found.items["Quiet"] == {"failed": "latfix diagnose ended with 1: boom", "output": "boom"}
    assert "was not at work" in found.items["Neighbor"]["failed"]
    late = Findings()
    faults.measure(late, time.monotonic() + 5)
    assert all("no time" in item["skipped"] for item in late.items.values())


# stages


def _event(category: str, name: str, begin_us: float, length_us: float) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": begin_us, "dur": length_us}


def test_a_stage_is_from_its_first_operator_to_its_last() -> None:
    events = [
        _event("cpu_op", "aten::mm", 0, 900),
        _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 5),
        _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 5),
        _event("kernel", "sgemm", 30, 100),
        _event("kernel", "relu", 150, 10),
        {"cat": "ac2g", "name": "no length", "ts": 0},
    ]
    assert stages.spans(events) == {"copy_in": 15e3, "compute": 130e3}


def test_stages_are_compared_by_differences_and_ratios() -> None:
    compared = stages.compared([(110e3, 100e3), (120e3, 100e3), (90e3, 100e3)])
    assert compared["difference_ns"] == 10e3 and compared["ratio"] == pytest.approx(1.1)
    assert (compared["least_difference_ns"], compared["largest_difference_ns"]) == (-10e3, 20e3)
    assert stages.compared([]) == {"batches": 0}


def test_profiles_that_lost_kernels_are_counted() -> None:
    found = stages.sessions([32, 0, 32, 30])
    assert (found["asked"], found["found"], found["least_kernels"], found["most_kernels"]) == (4, 3, 0, 32)


def test_the_workload_of_large_copies_copies_64_mib_a_request(tmp_path: Path) -> None:
    stages.write_copies(tmp_path)
    spec = load_spec(str(tmp_path))
    service = Service(spec.folder, spec.entry, RunnerSettings(device="cpu"))
    service.load()
    row = service.models.adapter.prepare(None)  # type: ignore[arg-type]
    assert row.numel() * row.element_size() == 64 << 20
    model = service.models.instances[0].model
    with torch.no_grad():
        assert model(row[None, :8]).shape == (1, 8)
    assert set(STAGED) == {"recommender", "copies"}


# ceilings

_RATES = {"fp32": 50.0, "tf32": 380.0, "bf16": 750.0, "fp16": 740.0}


@pytest.mark.parametrize(
    ("kernels", "weights", "expected"),
    [
        ({"ampere_sgemm_128x64_tn": 4}, "float32", "fp32"),
        (
            {"sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128": 3},
            "float32",
            "tf32",
        ),
        ({"ampere_sgemm_128x64_tn": 4, "cutlass_80_tensorop_s1688gemm_128x128_tn_align4": 1}, "float32", "tf32"),
        ({"ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn": 2}, "bfloat16", "bf16"),
        ({"some_gemm_without_a_format": 2}, "float32", "tf32"),
        ({"ampere_sgemm_128x64_tn": 4, "some_gemm_without_a_format": 2}, "float32", "tf32"),
        ({}, "float32", "tf32"),
        ({}, "float16", "fp16"),
    ],
)
def test_a_floor_is_told_by_the_fastest_format_that_may_have_run(
    kernels: dict[str, int], weights: str, expected: str
) -> None:
    assert ceilings.floor_rate(kernels, _RATES, weights) == (expected, _RATES[expected])


@pytest.mark.parametrize("before", [False, True])
def test_products_are_in_tf32_only_meanwhile(before: bool) -> None:
    kept, flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cuda.matmul
    try:
        flags.allow_tf32 = before
        for allowed in (True, False):
            with pytest.raises(RuntimeError, match="meanwhile"), ceilings.products_in_tf32(allowed):
                assert flags.allow_tf32 is allowed
                raise RuntimeError("meanwhile")
            assert flags.allow_tf32 is before
    finally:
        flags.allow_tf32 = kept


def test_without_rates_there_is_no_floor_but_what_failed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "rates", lambda: dict[str, Any]()["no memory"])
    found = Findings()
    ceilings.measure(found, time.monotonic() + 60)
    assert "KeyError" in found.items["rates"]["failed"] and "skipped" in found.items["vision"]


def test_one_sample_that_fails_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def hot_path(name: str, *_: Any) -> dict[str, Any]:
        if name == "recommender":
            raise RuntimeError("CUDA error")
        return {"batch": 10}

    monkeypatch.setattr(ceilings, "rates", lambda: {"flops": _RATES})
    monkeypatch.setattr(ceilings, "hot_path", hot_path)
    found = Findings()
    ceilings.measure(found, time.monotonic() + 60)
    assert found.items["vision"] == {"batch": 10} and found.items["rates"] == {"flops": _RATES}
    assert found.items["recommender"]["failed"] == "RuntimeError: CUDA error"
