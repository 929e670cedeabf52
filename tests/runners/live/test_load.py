"""``load_runner``: the settings in use, warm-up, evidence, and refusals."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import latfix
from latfix import load_runner
from latfix.config.plan import Plan, PlannedFix, read_plan, write_plan
from latfix.errors import InputError, RunnerError
from latfix.runners.host import start_environment as environment
from latfix.runners.host.start_environment import EnvironmentWarning
from tests.runners.engine.served import engine_threads
from tests.runners.live.conftest import MakeRunner

WriteHooked = Callable[..., Path]

#: Writes the requests that it prepares to a file in its folder.
NOTING = """
import torch
from latfix import Request, Workload

class Noting(Workload):
    def load(self, device):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def prepare(self, request):
        with (self.folder / "prepared.txt").open("a") as file:
            file.write(f"{request.id}\\n")
        if request.features.get("bad"):
            raise ValueError("bad one")
        return torch.full((8,), float(request.features["half"]))

    def finish(self, output, request):
        return output.tolist()
"""
TRAFFIC = [{"arrival_s": 0.01 * k, "id": f"t{k}", "half": k % 7} for k in range(30)]


def _plan(path: Path, workload: str = "w", **settings: Any) -> Path:
    size = PlannedFix(id="batch.size", settings={"max_batch_size": 2})
    write_plan(Plan(workload=workload, fixes=(size, PlannedFix(id="batch.other", settings=settings))), path)
    return path


def test_the_plan_comes_over_the_workload_and_overrides_over_both(make_runner: MakeRunner, tmp_path: Path) -> None:
    path = _plan(tmp_path / "plan.toml", max_batch_size=4, prepare_threads=2, keep_precision=[""])
    given = {"max_batch_size": 8, "batch_window_ms": 3.0, "workers": 1}
    for plan in (path, str(path), tmp_path, read_plan(path)):
        runner = make_runner(**given, load={"plan": plan, "settings": {"batch_window_ms": 1, "device": "cpu"}})
        chosen = runner.settings
        assert (chosen.max_batch_size, chosen.prepare_threads, chosen.workers) == (4, 2, 1)
        assert (chosen.batch_window_ms, chosen.keep_precision) == (1.0, ("",))
        assert runner.plan == read_plan(path)
        assert runner.infer_sync({"value": 1}) == 2.0
        assert len(runner.evidence()["threads"]["prepare"]) == 2, "the settings are in use"
    unplanned = make_runner(**given)
    assert unplanned.plan is None and unplanned.settings.max_batch_size == 8


def test_a_plan_of_another_workload_is_pointed_out(make_runner: MakeRunner, tmp_path: Path) -> None:
    path = _plan(tmp_path / "plan.toml", workload="ranker")
    with pytest.warns(RuntimeWarning, match="made for 'ranker', not for 'w'"):
        make_runner(load={"plan": path})


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({"plan": "/nowhere/plan.toml"}, "found no such file; expected a plan"),
        ({"plan": "x" * 300}, "found a path that cannot be read (File name too long)"),
        ({"settings": 5}, "found settings = 5; expected a mapping of settings by name"),
        ({"settings": {1: 2}}, "found settings = {1: 2}"),
        ({"slots": True}, "found slots = True"),
        ({"plan": Plan(workload="w", fixes=(PlannedFix(id="a.b", settings={"workers": 0}),))}, "found workers = 0"),
        ({"settings": {"worker": 2}}, "found unknown key 'worker' in [settings]"),
        ({"settings": {"workers": 0}}, "found workers = 0; expected a whole number from 1 to 256"),
        ({"settings": {"keep_precision": (1,)}}, "expected a list of module names"),
        ({"slots": 0}, "found slots = 0; expected a whole number from 1"),
        ({"slots": 2.0}, "found slots = 2.0"),
        ({"when_full": "block"}, "found when_full = 'block'; expected 'shed' or 'wait'"),
        ({"warm": False, "settings": {"compile": "dynamic"}}, "found warm = False and compile = 'dynamic'"),
        ({"warm": False, "settings": {"backend": "onnxruntime"}}, "found warm = False and backend = 'onnxruntime'"),
        ({"traffic": "/nowhere/traffic.jsonl"}, "found no such file; expected recorded traffic"),
    ],
)
def test_wrong_arguments_are_one_clear_line(make_runner: MakeRunner, load: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)) as caught:
        make_runner(load=load)
    assert "\n" not in caught.value.message
    with pytest.raises(InputError, match="found no such folder or sample"):
        load_runner("no-such-workload")


def test_garbage_of_loading_is_collected_before_requests(make_runner: MakeRunner) -> None:
    """In a service, this garbage caused a pause of 0.27 s at 400 requests per second."""
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["generation"])

    gc.disable()  # no other collections
    gc.callbacks.append(note)
    try:
        runner = make_runner()
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert collected == [2]
    assert runner.infer_sync({"value": 1}) == 2.0


def test_a_model_that_does_not_load_is_one_line(make_runner: MakeRunner) -> None:
    source = """
    from latfix import Workload

    class Broken(Workload):
        def load(self, device):
            raise OSError("weights are gone")
    """
    with pytest.raises(RunnerError, match="weights are gone"):
        make_runner(adapter=source)


def test_warming_up_runs_shapes_and_first_requests_of_the_traffic(write_hooked: WriteHooked) -> None:
    folder = write_hooked(adapter=NOTING, traffic=TRAFFIC, warmup_requests=32, warmup_shapes=2, max_batch_size=4)
    with load_runner(folder) as runner:
        evidence = runner.evidence()
        assert evidence["warmup_shapes"] >= 1 and evidence["warmup_batches"] >= 3
        expected = [f"t{k % 30}" for k in range(32)]
        assert "\n".join(expected) in (folder / "prepared.txt").read_text(), "cyclically, one by one"
        assert runner.stats().requests["ok"] == 0, "warm-up requests are not counted"
        assert runner._service.models.instances[0].seen


def test_warming_up_is_done_by_the_threads_that_serve(write_hooked: WriteHooked) -> None:
    """As before a replay: one-time work of the threads is done, and none of it is counted."""
    adapter = NOTING.replace('f"{request.id}\\n"', 'f"{threading.get_native_id()} {request.deadline_ms}\\n"')
    folder = write_hooked(
        adapter="import threading\n" + adapter,
        traffic=[{**row, "deadline_ms": 1e-3} for row in TRAFFIC],
        warmup_requests=5,
        buffer_pool=True,
    )
    with load_runner(folder) as runner:
        prepared = [line.split() for line in (folder / "prepared.txt").read_text().splitlines()]
        evidence, stats = runner.evidence(), runner.stats()
        serving = {str(native) for native in evidence["threads"]["prepare"]}
        assert [thread in serving for thread, _ in prepared[-5:]] == [True] * 5
        assert all(float(limit) > 1e9 for _, limit in prepared[-5:]), "no caller waits for these"
        assert (stats.window, sum(stats.requests.values()), len(runner.recent())) == (0, 0, 0)
        assert evidence["pool_hits"] == evidence["pool_misses"] == 0
        assert runner._engine.in_flight == 0


def test_without_warming_up_the_traffic_is_not_looked_at(write_hooked: WriteHooked) -> None:
    folder = write_hooked(adapter=NOTING, traffic=TRAFFIC, warmup_requests=4, warmup_shapes=2)
    (folder / "traffic.jsonl").write_text("no traffic at all\n")
    with load_runner(str(folder), warm=False) as runner:
        assert runner.workload == "w"
        assert not (folder / "prepared.txt").exists()
        assert runner.evidence()["warmup_batches"] == 0
        assert len(runner.infer_sync({"half": 1})) == 2
    with pytest.raises(InputError, match=r"traffic\.jsonl"):
        load_runner(folder)


def test_a_service_that_answers_nothing_at_warm_up_does_not_start(write_hooked: WriteHooked) -> None:
    bad = [{**row, "bad": 1} for row in TRAFFIC]
    folder = write_hooked(adapter=NOTING, traffic=bad, warmup_requests=3, gc="freeze")
    with pytest.raises(RunnerError, match="none of 3 requests succeeded; request t0: prepare raised ValueError: bad"):
        load_runner(folder)
    assert gc.isenabled() and gc.get_freeze_count() == 0, "the process is restored"
    assert not engine_threads()
    partly = write_hooked(adapter=NOTING, traffic=[{**TRAFFIC[0], "bad": 1}, *TRAFFIC[1:]], warmup_requests=3)
    load_runner(partly).close()


def test_features_of_the_workload_are_derived_for_its_callers_too(write_hooked: WriteHooked) -> None:
    folder = write_hooked(adapter=NOTING, traffic=[{"arrival_s": 0.0, "whole": 4}])
    with (folder / "workload.toml").open("a") as file:
        file.write('[traffic.map]\nhalf = "whole / 2"\n')
    with load_runner(folder) as runner:
        planned = runner.infer_sync({"whole": 4})
        direct = runner.infer_sync(latfix.Request(id="x", arrival_s=0.0, features={"half": 2}))
        assert planned == direct
        with pytest.raises(InputError, match="half: found no feature whole"):
            runner.infer_sync({"half": 2})


def test_the_evidence_is_what_verify_looks_at(write_hooked: WriteHooked) -> None:
    folder = write_hooked(adapter=NOTING, traffic=TRAFFIC, max_batch_size=4)
    change = {"precision": "int8_dynamic", "buffer_pool": True}
    with load_runner(folder, settings=change) as planned, load_runner(folder) as plain:
        given = [runner.infer_sync({"half": 1}) for runner in (planned, plain, planned)]
        assert given[0] == given[2] != given[1]
        quantized, usual = planned.evidence(), plain.evidence()
    assert any("quantized" in name for name in quantized["modules"])
    assert not any("quantized" in name for name in usual["modules"])
    assert quantized["pool_hits"] + quantized["pool_misses"] == 2 and usual["pool_hits"] == 0
    assert quantized["torch_threads"] == 1 == usual["torch_threads"], "of the runner, not of the calling thread"
    assert quantized["compilations_in_run"] == 0


def test_the_threads_of_one_operator_are_the_workers_own(make_runner: MakeRunner) -> None:
    found: list[int] = []
    runner = make_runner(intra_op_threads=2)
    runner.infer_sync({"payload": {"finish": lambda: found.append(torch.get_num_threads())}})
    assert found == [2]


def test_environment_that_is_not_in_effect_is_warned_of_and_in_the_evidence(
    make_runner: MakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_warned", set())
    monkeypatch.setattr(environment, "environment_at_start", lambda: {"OMP_WAIT_POLICY": "ACTIVE"})
    path = _plan(tmp_path / "plan.toml", env={"MALLOC_CONF": "", "OMP_WAIT_POLICY": "ACTIVE"})
    with pytest.warns(EnvironmentWarning, match="MALLOC_CONF: the process started without it") as caught:
        runner = make_runner(load={"plan": path})
    assert caught[0].filename == __file__.replace("test_load", "conftest"), "it points to the caller of load_runner"
    assert len(caught) == 1 and "OMP_WAIT_POLICY:" not in str(caught[0].message)
    reported = runner.evidence()["environment"]
    assert {name: entry["in_effect"] for name, entry in reported.items()} == {
        "MALLOC_CONF": False,
        "OMP_WAIT_POLICY": True,
    }
    assert runner.infer_sync({"value": 1}) == 2.0


def _run(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(source), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_importing_latfix_stays_light() -> None:
    done = _run("""
        import sys, latfix
        heavy = {"torch", "numpy", "pandas", "pyarrow", "typer", "asyncio"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        assert set(latfix.__all__) <= {*dir(latfix), *latfix._LATER}
        latfix.load_runner, latfix.Runner, latfix.RequestShed
        assert "torch" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_program_that_ends_with_a_runner_open_ends_in_order(write_hooked: WriteHooked) -> None:
    """A thread waits for an answer that the model still computes while the interpreter exits."""
    folder = write_hooked(
        adapter="""
        import time
        import torch
        from latfix import Request, Workload

        class Slow(Workload):
            def load(self, device):
                return torch.nn.Linear(256, 256)

            def prepare(self, request):
                return torch.zeros(256)

            def finish(self, output, request):
                end = time.monotonic() + 0.3
                while time.monotonic() < end:
                    torch.ones(64, 64) @ torch.ones(64, 64)
                return "done"
        """,
        workers=2,
    )
    done = _run(
        """
        import sys, threading, time, latfix
        runner = latfix.load_runner(sys.argv[1], warm=False)
        for _ in range(5):
            threading.Thread(target=runner.infer_sync, args=({},), daemon=True).start()
        time.sleep(0.1)
        print(runner.stats().in_flight)
        """,
        folder,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.strip() == "5"
    assert "Fatal" not in done.stderr and "terminate" not in done.stderr
