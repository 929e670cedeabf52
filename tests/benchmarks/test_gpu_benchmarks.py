"""The GPU benchmarks without a GPU: time limits, results item by item, and what counts as shown."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import ceilings, commands, faults, fragmentation, stages
from benchmarks.gpu import conftest as gpu_conftest
from benchmarks.gpu import machine as machine_facts
from benchmarks.gpu import test_parts as parts
from benchmarks.gpu.commands import TIMED_OUT, Ended, run
from benchmarks.gpu.nvml_recording import recorded_nvml
from benchmarks.gpu.parts import Part, lacks, merged, no_time
from latfix.config.workload_toml import load_spec
from latfix.profilers.allocator_lab.compare_policies import policy_of
from latfix.profilers.allocator_lab.free_blocks import Block
from latfix.profilers.allocator_lab.policy import OutOfMemory
from latfix.profilers.allocator_lab.trace import Event
from latfix.profilers.gpu.nvml_api import NvmlRefused
from latfix.run_record.process_facts import DeviceWork
from latfix.run_record.run_meta import RunMeta
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings

_MIB = 1 << 20
Found = dict[str, Any]
Change = Callable[[Found], object]

# commands

_SLEEPS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(120)"
#: Starts a sleeping process, in its own session if requested, and reports when it is running.
_STARTS = """
import pathlib, subprocess, sys, time
file = pathlib.Path(sys.argv[1])
subprocess.Popen([sys.executable, "-c", sys.argv[3], str(file)], start_new_session=sys.argv[2] == "apart")
while not (file.exists() and file.read_text()):
    time.sleep(0.01)
print("it is running")
file.with_suffix(".started").touch()
"""


def _starting(file: Path, where: str, then: str) -> list[str]:
    return [sys.executable, "-c", _STARTS + then, str(file), where, _SLEEPS]


def _time_out_once(patch: pytest.MonkeyPatch, is_running: Callable[[], bool]) -> None:
    """Make the next wait for a process time out as soon as it has done its work, instead of after its limit."""
    wait = subprocess.Popen.wait

    def timed_out(process: subprocess.Popen[bytes], timeout: float) -> int:
        patch.setattr(subprocess.Popen, "wait", wait)
        while not is_running():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(process.args, timeout)

    patch.setattr(subprocess.Popen, "wait", timed_out)


def _is_gone(pid: int) -> bool:
    """True once a process has ended, reaped or not."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(200):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_a_command_runs_in_this_tree_and_reports_how_it_ended() -> None:
    code = "import os, sys, latfix; print(os.getcwd(), latfix.__file__); print('and', file=sys.stderr); sys.exit(3)"
    ended = run([sys.executable, "-c", code], 30)
    assert ended.exit_code == 3 and ended.why == "exit code 3: and"
    assert ended.output.splitlines()[0] == f"{commands.ROOT} {commands.ROOT / 'latfix' / '__init__.py'}"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
@pytest.mark.parametrize(
    ("where", "then", "code"),
    [("along", "time.sleep(120)", TIMED_OUT), ("apart", "time.sleep(120)", TIMED_OUT), ("along", "", 0)],
)
def test_a_command_that_ends_or_is_stopped_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, then: str, code: int
) -> None:
    if code:
        _time_out_once(monkeypatch, (tmp_path / "pid.started").exists)
    ended = run(_starting(tmp_path / "pid", where, then), 30)
    assert ended.exit_code == code and ended.seconds < 30
    assert "it is running" in ended.output and ("stopped" in ended.why) == bool(code)
    assert _is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_an_interruption_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, file = subprocess.Popen.wait, tmp_path / "pid"

    def interrupted(*_: Any) -> int:
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        while not (file.exists() and file.read_text()):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", _SLEEPS, str(file)], 60)
    assert _is_gone(int(file.read_text()))


# results


def test_items_are_on_disk_before_the_next_is_measured_and_a_failure_affects_no_other(tmp_path: Path) -> None:
    part = Part(tmp_path / "some.json")
    part.put("first", {"value": 1})
    part.attempt("second", lambda: dict[str, Any]()["nowhere"])
    code = (
        "import os, sys; from pathlib import Path; from benchmarks.gpu.parts import Part; "
        "part = Part(Path(sys.argv[1])); part.put('third', {'value': 3}); "
        "part.attempt('fourth', lambda: os.kill(os.getpid(), 9))"
    )
    assert run([sys.executable, "-c", code, str(part.file)], 30).exit_code == -9
    assert list(part.found) == ["first", "second", "third"] and part.found["third"] == {"value": 3}
    assert part.found["second"]["failed"] == "KeyError: 'nowhere'" and "test_gpu" in part.found["second"]["trace"]


def test_results_of_a_stopped_part_are_kept_and_it_has_not_passed(tmp_path: Path) -> None:
    (tmp_path / "slow_part.py").write_text(
        "import time; from benchmarks.gpu.parts import measure_here\n"
        "measure_here(lambda part, _: (part.put('first', {'value': 1}), time.sleep(60)))\n"
    )
    part = Part(tmp_path / "slow.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        _time_out_once(patch, lambda: "first" in part.found)
        assert part.measure("slow_part", 30)["first"] == {"value": 1}
    with pytest.raises(AssertionError, match="its process: stopped after"):
        part.check([])
    assert not part.read()["complete"] and "stopped" in part.read()["problems"][""][0]


def test_parts_of_several_calls_are_merged(tmp_path: Path) -> None:
    def write(folder: str, name: str, date: str, *, complete: bool) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        Part(tmp_path / folder / f"{name}.json").update(date=date, complete=complete)

    write("a", "doctor", "2026-01-01", complete=True)
    write("b", "doctor", "2026-01-02", complete=False)
    write("a", "stages", "2026-01-01", complete=True)
    write("b", "stages", "2026-01-02", complete=True)
    (tmp_path / "a" / "other.json").write_text("[1]")
    found = merged([tmp_path / "b", tmp_path / "a"])["parts"]
    assert {name: part["date"] for name, part in found.items()} == {"doctor": "2026-01-01", "stages": "2026-01-02"}


def test_without_a_device_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**machine_facts.facts(), "cuda": False}
    ended = Ended(exit_code=0, output=f"a warning\n{json.dumps(known)}\n", seconds=1.0)
    monkeypatch.setattr(gpu_conftest, "run", lambda *_: ended)
    with pytest.raises(pytest.exit.Exception, match="there is no CUDA device here") as refused:
        inspect.unwrap(gpu_conftest.machine)()
    assert refused.value.returncode == 3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"value": 1}, ""),
        ({}, "nothing"),
        (None, "nothing"),
        ({"failed": "KeyError"}, "failed: KeyError"),
        (no_time(3, 20), "skipped: no time: 3 s were left, it needs 20 s at least"),
    ],
)
def test_a_result_that_holds_nothing_says_why(value: Any, reason: str) -> None:
    assert lacks(value).startswith(reason) and bool(lacks(value)) == bool(reason)


def test_runs_are_kept_beside_the_results(tmp_path: Path) -> None:
    made = Part(tmp_path / "faults.json")
    for fault in ("Quiet", "Pageable"):
        (made.runs(fault) / "run.json").write_text("{}")
    assert made.runs("Quiet") == tmp_path / "runs" / "faults" / "Quiet" and not list(made.runs("Quiet").iterdir())
    assert (tmp_path / "runs" / "faults" / "Pageable" / "run.json").exists()


# checks of each part

_STAGE = {"batches": 40, "told_ns": 5e6, "difference_ns": 40e3}
_SESSIONS = {"asked": 40, "found": 40, "least_kernels": 32, "most_kernels": 32}
_STAGED = {"stages": dict.fromkeys(("copy_in", "compute", "copy_out"), _STAGE), "sessions": _SESSIONS}
_PATH = {"profiles": {"asked": 3, "found": 3}, "busy_over_floor": 1.4}
_RUN: Found = {"right": True, "expected": "transfer.copy", "named": ["transfer.copy"], "evidence_missing": []}
_DONE = Ended(exit_code=0, output="", seconds=1.0)
_DIED = Ended(exit_code=4, output="boom", seconds=1.0)

#: By part: its judge, and a result that passes.
_GOOD: dict[str, tuple[Callable[[Any], list[str]], Found]] = {
    "doctor": (lambda found: parts.problems_of_doctor(_DONE, found), {"findings": []}),
    "tests": (lambda found: parts.problems_of_tests(_DONE, found), {"passed": 40, "not_passed": []}),
    "ceilings": (ceilings.problems, {"rates": {"flops": {}}, "recommender": _PATH, "vision": _PATH}),
    "stages": (stages.problems, {"recommender": _STAGED, "copies": _STAGED}),
    "faults": (lambda found: faults.problems("Quiet", found), _RUN),
    "fragmentation": (
        fragmentation.problems,
        {
            **{name: {"retries": 3} for name in fragmentation.RUNS},
            "shown": dict.fromkeys(("a", "b", "c", "d", "e"), True),
        },
    ),
    "probes": (
        lambda found: parts.problems_of_probes(_DONE, found),
        {"measured": {"device": "cuda:0", "requests": 900, "ratio": {"p50": {"value": 1.0}}}},
    ),
    "samples": (
        lambda found: parts.problems_of_samples(_DONE, found),
        {"verdict": "no_gain", "steps": [{"status": "skipped"}, {"status": "no_gain"}]},
    ),
}


def _set(*path: Any, value: Any) -> Change:
    """Replace the value at a path."""

    def change(found: Found) -> None:
        inner: Any = found
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize("part", _GOOD)
def test_a_part_with_all_evidence_passes(part: str) -> None:
    judge, good = _GOOD[part]
    assert judge(good) == []


@pytest.mark.parametrize("part", ["ceilings", "stages", "fragmentation"])
def test_every_item_is_required(part: str) -> None:
    judge, good = _GOOD[part]
    for item in (name for name in good if name != "shown"):
        rest = {name: value for name, value in good.items() if name != item}
        assert judge(rest) == [f"{item}: nothing was found"]
        assert judge({**rest, item: {"failed": "RuntimeError: CUDA"}}) == [f"{item}: failed: RuntimeError: CUDA"]
        assert judge({**rest, item: {"skipped": "no time"}}) == [f"{item}: skipped: no time"]


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("doctor", lambda found: found.pop("findings"), "no findings"),
        ("tests", _set("not_passed", value=["tests/gpu/test_x.py::test_y"]), "test_y"),
        ("tests", _set("passed", value=0), "no test has passed"),
        ("ceilings", _set("vision", "profiles", "found", value=1), "2 of 3 profiles"),
        ("ceilings", _set("vision", "busy_over_floor", value=None), "no profile"),
        ("ceilings", _set("vision", "busy_over_floor", value=0.5), "which therefore is wrong"),
        ("stages", _set("copies", "stages", "copy_in", "difference_ns", value=-150e3), "copies, copy_in"),
        ("stages", _set("copies", "stages", "compute", "batches", value=4), "only 4 batches"),
        ("stages", _set("copies", "sessions", "found", value=37), "3 of 40 batches show no kernel"),
        ("stages", _set("copies", "sessions", "least_kernels", value=28), "28 to 32 kernels"),
        ("faults", _set("right", value=False), "expected transfer.copy, named transfer.copy"),
        ("faults", _set("evidence_missing", value=["cpu"]), "no evidence: cpu"),
        ("fragmentation", _set("shown", "a", value=False), "not shown: a"),
        ("fragmentation", lambda found: found["shown"].pop("a"), "4 of 5"),
        ("fragmentation", _set("skipped", value="no CUDA device here"), "skipped: no CUDA"),
        ("probes", lambda found: found.pop("measured"), "nothing was measured"),
        ("probes", _set("measured", "device", value="cpu"), "measured on cpu"),
        ("samples", lambda found: found.pop("verdict"), "no verdict"),
        ("samples", _set("steps", value=[{"status": "skipped"}] * 3), "none of 3 fixes was tried"),
    ],
)
def test_reasons_against_a_part_are_reported(part: str, change: Change, reason: str) -> None:
    judge, good = _GOOD[part]
    found = json.loads(json.dumps(good))
    change(found)
    assert any(reason in line for line in judge(found)), judge(found)


def test_a_failed_command_fails_its_part() -> None:
    assert parts.problems_of_doctor(_DIED, {"findings": []}) == ["exit code 4: boom"]
    assert parts.problems_of_samples(_DIED, {})[0] == "exit code 4: boom"


def test_short_copies_may_differ_by_the_hosts_way_to_them() -> None:
    """Two per cent of 100 µs are less than the host takes from the event to the copy."""
    found: Found = json.loads(json.dumps({"recommender": _STAGED, "copies": _STAGED}))
    short = found["recommender"]["stages"]
    short["copy_in"] = {"batches": 40, "told_ns": 100e3, "difference_ns": 45e3}
    short["copy_out"] = {"batches": 40, "told_ns": 4e3, "difference_ns": 8e3}
    assert stages.problems(found) == []
    short["copy_out"]["difference_ns"] = 12e3
    assert len(stages.problems(found)) == 1


def test_missing_an_invisible_neighbor_is_not_wrong() -> None:
    unseen = {**_RUN, "right": None, "named": [], "cannot_be_told": "no series"}
    assert faults.problems("Neighbor", unseen) == []


def test_outcomes_are_read_from_partial_pytest_output() -> None:
    found = parts.outcomes(
        "tests/gpu/test_some.py::test_passes[a b] PASSED        [ 20%]\n"
        "tests/gpu/test_some.py::test_fails FAILED  [ 40%]\n"
        "tests/gpu/test_some.py::test_skipped SKIPPED (no such device)\n"
        "tests/gpu/test_some.py::test_breaks PASSED\ntests/gpu/test_some.py::test_breaks ERROR [ 80%]\n"
        "tests/gpu/test_some.py::test_hangs \n"
    )
    assert (found["passed"], found["skipped_tests"]) == (1, 1)
    assert found["not_passed"] == [f"tests/gpu/test_some.py::test_{name}" for name in ("fails", "breaks")]
    assert found["under_way"] == ["tests/gpu/test_some.py::test_hangs"]


@pytest.mark.parametrize("error", [ImportError("no pynvml"), NvmlRefused(9, "Driver Not Loaded")])
def test_a_sample_runs_without_an_nvml_recording(tmp_path: Path, error: Exception) -> None:
    def refuses() -> Any:
        raise error

    with recorded_nvml(tmp_path / "nvml.jsonl", refuses) as why:
        assert why == str(error)


def test_nvml_is_recorded_during_a_sample(tmp_path: Path) -> None:
    def refuses(*_: Any) -> Any:
        raise NvmlRefused(3, "Not Supported")

    calls = SimpleNamespace(ask=refuses, close=lambda: None)
    with recorded_nvml(tmp_path / "nvml.jsonl", lambda: calls) as why:
        assert why == ""
        time.sleep(1.2)
    assert len((tmp_path / "nvml.jsonl").read_text().splitlines()) > 10


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


def test_a_workload_is_copied_without_compiled_modules(tmp_path: Path) -> None:
    folder = _service(tmp_path / "defaults")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "adapter.cpython-311.pyc").write_bytes(b"compiled")
    other = fragmentation.with_settings(folder, "reserved", reserve_mb=512)
    assert {file.name for file in other.iterdir()} == {file.name for file in folder.iterdir()} - {"__pycache__"}
    assert load_spec(str(other)).settings.reserve_mb == 512 and load_spec(str(folder)).settings.reserve_mb == 0


def test_a_failed_run_does_not_affect_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnose(workload: Path, _: float) -> dict[str, Any]:
        if workload.name == "reserved":
            raise OSError("disk full")
        return _run(retries=0 if workload.name == "expandable" else 10)

    monkeypatch.setattr(fragmentation, "diagnose", diagnose)
    part = Part(tmp_path / "fragmentation.json")
    fragmentation.replays(part, _service(tmp_path / "defaults"), time.monotonic() + 100)
    assert part.found["memory.pool"]["failed"] == "OSError: disk full"
    assert part.found["defaults"]["retries"] == 10 and part.found["memory.device_allocator"]["retries"] == 0
    shown = fragmentation.shown(part.found)
    assert all(shown.values()) and len(shown) == 2
    monkeypatch.setattr(fragmentation, "diagnose", lambda *_: {"failed": "stopped"})
    alone = Part(tmp_path / "alone.json")
    fragmentation.replays(alone, _service(tmp_path / "others"), time.monotonic() + 100)
    assert set(alone.found) == set(fragmentation.RUNS) and "skipped" in alone.found["memory.pool"]
    assert fragmentation.shown(alone.found) == {}


def test_the_judged_key_is_displayed() -> None:
    gone = _run(memory_causes={}, retries=0, verdict="none", latency_ms={"p99": 20.0})
    shown = fragmentation.shown({"defaults": _run(), "memory.pool": gone})
    assert len(shown) == fragmentation.SHOWN and all(shown.values())
    assert not all(fragmentation.shown({"defaults": _run(), "memory.pool": _run()}).values())


def _refused(reserved_mib: int) -> tuple[int, int]:
    """Refused requests, and the allocator's retries, of the service in torch's model. A refused turn is repeated."""
    allocator = policy_of("", fragmentation.LIMIT + 256 * _MIB)
    allocator.allocate(64 * _MIB)  # weights
    if reserved_mib:
        allocator.free(allocator.allocate(reserved_mib * _MIB))
    for size in (32, 64):  # the libraries' workspaces
        allocator.allocate(size * _MIB)
    turns: dict[int, list[Event]] = {}
    for event in fragmentation.traffic_of_allocations().events:
        turns.setdefault(int(event.t_us // 1000), []).append(event)
    held: dict[int, Block] = {}
    turn = refused = 0
    for _ in range(fragmentation.TURNS):
        try:
            for event in turns.get(turn, ()):
                new = None if event.is_free else allocator.allocate(event.size)
                if (old := held.pop(event.key, None)) is not None:
                    allocator.free(old)
                if new is not None:
                    held[event.key] = new
            turn += 1
        except OutOfMemory:
            refused += 1
    return refused, allocator.counters.retries


@pytest.mark.parametrize(("reserved_mib", "refused", "retries"), [(0, 0, 13), (28_718, 217, 217), (30_544, 0, 0)])
def test_the_model_foretells_what_an_h200_did(reserved_mib: int, refused: int, retries: int) -> None:
    """13 retries, and 217 refused requests with a pool of 1.25 times the peak in use (torch 2.11). A pool of all that
    was held, as ``memory.pool`` reserves now, has not run there."""
    assert _refused(reserved_mib) == (refused, retries)


# faults

_EVIDENCE = RunMeta(
    scheduled=960,
    device="cuda:0",
    device_profile=(DeviceWork(launches=17),) * 10,
    calibration={"copy_in_ns": 3000.0, "copy_out_ns": 3000.0},
    probes={"nvml": "NVML: Test 9000"},
)
_QUIET: dict[str, Any] = {"causes": [{"cause": "traffic.burst", "named": True}]}


def test_a_complete_run_lacks_no_evidence() -> None:
    assert faults.missing_evidence(_EVIDENCE, {"ok": 955}) == []


@pytest.mark.parametrize(
    ("change", "ok", "reason"),
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
def test_missing_evidence_is_reported_and_nothing_is_right(change: dict[str, Any], ok: int, reason: str) -> None:
    lacking = faults.missing_evidence(_EVIDENCE.updated(**change), {"ok": ok})
    assert len(lacking) == 1 and reason in lacking[0]
    quiet = faults.judged("Quiet", _QUIET, lacking, others_reported=True)
    assert quiet["right"] is False and quiet["evidence_missing"] == lacking


def test_a_run_without_a_record_lacks_all_evidence() -> None:
    assert len(faults.missing_evidence(RunMeta(), {})) == 6


@pytest.mark.parametrize("fault", faults.EXPECTED)
def test_a_fault_is_recognized_by_its_cause(fault: str) -> None:
    named = {"causes": [{"cause": faults.EXPECTED[fault] or "batch.size", "named": True}]}
    other = {"causes": [{"cause": "transfer.other", "named": True}]}
    assert faults.judged(fault, named, [], others_reported=True)["right"] is True
    assert faults.judged(fault, other, [], others_reported=True)["right"] is False


def test_a_neighbor_of_unknown_work_is_neither_right_nor_wrong() -> None:
    unseen = faults.judged("Neighbor", _QUIET, [], others_reported=False)
    assert unseen["right"] is None and "others_sm_util" in unseen["cannot_be_told"]
    assert faults.judged("Neighbor", _QUIET, ["the device was cpu"], others_reported=False)["right"] is False
    found = {"causes": [{"cause": "gpu.contention", "named": True}]}
    assert faults.judged("Neighbor", found, [], others_reported=False)["right"] is True


def test_the_neighbor_is_awaited_and_ended() -> None:
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
def test_a_neighbor_that_does_not_start_is_an_error(program: str, seconds: float) -> None:
    with pytest.raises(RuntimeError, match="was not at work"), faults.neighbor(program, seconds):
        pass


def test_a_neighbor_that_died_during_the_run_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(faults, "_LOAD", "print('ready', flush=True)")

    def diagnosed(*_: Any) -> dict[str, Any]:
        time.sleep(0.5)
        return {"right": True, "evidence_missing": []}

    monkeypatch.setattr(faults, "_diagnosed", diagnosed)
    result = faults.planted("Neighbor", tmp_path, 30)
    assert result["right"] is False and "had ended with 0" in result["evidence_missing"][0]


def test_a_run_without_a_diagnosis_reports_how_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(faults, "run", lambda *_: _DIED)
    assert faults.planted("Quiet", tmp_path, 60)["failed"] == "latfix diagnose: exit code 4: boom"


# stages and ceilings


def _event(category: str, name: str, begin_us: float, length_us: float) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": begin_us, "dur": length_us}


def test_a_stage_lasts_from_its_first_to_its_last_operation() -> None:
    events = [
        _event("cpu_op", "aten::mm", 0, 900),
        _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 5),
        _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 5),
        _event("kernel", "sgemm", 30, 100),
        _event("kernel", "relu", 150, 10),
        {"cat": "ac2g", "name": "no length", "ts": 0},
    ]
    assert stages.spans(events) == {"copy_in": 15e3, "compute": 130e3}


def test_a_batch_has_the_operations_in_its_marked_range() -> None:
    ranges = [_event("user_annotation", f"batch.{k}", 100 * k, 90) for k in (1, 2)]
    kernels = [_event("kernel", "relu", begin, 10) for begin in (95, 105, 180, 195, 210)]
    events = [*ranges, *kernels, _event("gpu_user_annotation", "batch.1", 0, 500), {"cat": "ac2g"}]
    found = [event["ts"] for event in stages.within(events, "batch.1") if event["cat"] == "kernel"]
    assert found == [105, 180] and stages.within(events, "batch.3") == []


def test_stages_are_compared_by_differences_and_ratios() -> None:
    compared = stages.compared([(110e3, 100e3), (120e3, 100e3), (90e3, 100e3)])
    assert compared["difference_ns"] == 10e3 and compared["ratio"] == pytest.approx(1.1)
    assert (compared["least_difference_ns"], compared["largest_difference_ns"]) == (-10e3, 20e3)
    assert stages.compared([]) == {"batches": 0}


def test_profiles_that_lost_kernels_are_counted() -> None:
    found = stages.sessions([32, 0, 32, 30])
    assert (found["asked"], found["found"], found["least_kernels"], found["most_kernels"]) == (4, 3, 0, 32)


def test_the_workload_of_large_copies_copies_64_mib_per_request(tmp_path: Path) -> None:
    stages.write_copies(tmp_path)
    spec = load_spec(str(tmp_path))
    service = Service(spec.folder, spec.entry, RunnerSettings(device="cpu"))
    service.load()
    row = service.models.adapter.prepare(None)  # type: ignore[arg-type]
    assert row.numel() * row.element_size() == 64 << 20
    model = service.models.instances[0].model
    with torch.no_grad():
        assert model(row[None, :8]).shape == (1, 8)


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
def test_a_floor_is_that_of_the_fastest_format_that_may_have_run(
    kernels: dict[str, int], weights: str, expected: str
) -> None:
    assert ceilings.floor_rate(kernels, _RATES, weights) == (expected, _RATES[expected])


def test_without_rates_there_is_no_floor_and_a_failed_sample_leaves_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hot_path(name: str, *_: Any) -> dict[str, Any]:
        if name == "recommender":
            raise RuntimeError("CUDA error")
        return {"batch": 10}

    monkeypatch.setattr(ceilings, "rates", lambda: {"flops": _RATES})
    monkeypatch.setattr(ceilings, "hot_path", hot_path)
    part = Part(tmp_path / "ceilings.json")
    ceilings.measure(part, time.monotonic() + 60)
    assert part.found["vision"] == {"batch": 10} and part.found["rates"] == {"flops": _RATES}
    assert part.found["recommender"]["failed"] == "RuntimeError: CUDA error"
    monkeypatch.setattr(ceilings, "rates", lambda: dict[str, Any]()["no memory"])
    ceilings.measure(part, time.monotonic() + 60)
    assert "KeyError" in part.found["rates"]["failed"] and "skipped" in part.found["vision"]
