"""A run's facts: threads, memory, idle work; in this process, and in one that was set up for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.config.workload_toml import load_spec
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.run_record.run_record import RunRecord
from latfix.runners.engine.engine import Engine
from latfix.runners.host.cpu_topology import Domain, Topology, allowed_cores
from latfix.runners.host.kernel_files import System
from latfix.runners.host.start_environment import environment_at_start
from latfix.runners.replay.run_facts import RunFacts, model_bytes, nodes_of_memory
from latfix.runners.replay.run_session import Replay, prepare_folder, replay_into
from latfix.runners.replay.runner_process import RunnerProcess
from latfix.runners.service.loaded_service import Service
from latfix.runners.service.numa_weights import bring_home, copy_weights
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.runners.engine.served import loaded_service

Serve = Callable[..., tuple[Service, dict[str, Any]]]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux only")

LOOKUPS = """
import torch
from latfix import Request, Workload

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(1000, 16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, rows):
        return self.head(self.table(rows).mean(1))

class Lookups(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return Model()

    def prepare(self, request):
        n = int(request.features["value"])
        return torch.tensor([3] * 4 + [n] * (1 + n % 3))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("facts") / "w", adapter=LOOKUPS)


def traffic(n: int = 12) -> Traffic:
    return Traffic.plain(np.arange(n) * 10_000_000, features={"value": np.arange(n)})


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Loads the service in a thread of this process, serves its traffic once, and returns the run's facts."""
    services: list[Service] = []

    def run(idle_s: float = 0.0, **values: Any) -> tuple[Service, dict[str, Any]]:
        with ThreadPoolExecutor(1) as thread:  # it may permanently lose priority
            return thread.submit(lambda: serve_once(idle_s, **values)).result()

    def serve_once(idle_s: float = 0.0, **values: Any) -> tuple[Service, dict[str, Any]]:
        service = loaded_service(folder, "adapter:Lookups", warm=traffic(), **values)
        services.append(service)
        service.protect()
        recorder = StageRecorder(12)
        engine = service.engine(recorder, traffic().request)
        facts = RunFacts(service, engine)
        with engine.places.aside():
            engine.start()
            facts.begin()
            _send(engine, recorder)
            time.sleep(idle_s)
            facts.end()
            engine.shutdown()
        return service, facts.found

    yield run
    for service in services:
        service.release()


def lower_priority() -> int:
    """A nice value that any user may set."""
    return min(os.getpriority(os.PRIO_PROCESS, 0) + 1, 19)


def _send(engine: Engine, recorder: StageRecorder) -> None:
    for slot in range(recorder.slots):
        recorder.scheduled_ns[slot] = time.perf_counter_ns()
        engine.submit(slot)
    assert engine.drain(timeout_s=20)


@linux
def test_a_plain_run_shows_its_threads_and_its_memory(serve: Serve) -> None:
    _, found = serve(workers=2, prepare_threads=1)
    threads = found["placement"]
    everywhere = list(allowed_cores())
    assert [row["allowed"] for row in threads["worker"]] == [everywhere] * 2
    assert [row["operator_threads"] for row in threads["worker"]] == [1, 1]
    assert [row["nice"] for row in threads["worker"] + threads["prepare"]] == [os.getpriority(os.PRIO_PROCESS, 0)] * 3
    assert len(threads["own"]) >= 1
    memory = found["memory"]
    assert memory["model_bytes"] == 2 * 4 * (1000 * 16 + 16 * 2 + 2)
    assert 0 < memory["resident_start_bytes"] <= memory["peak_bytes"]
    assert memory["minor_faults"] >= 0 and memory["prefaulted_bytes"] == 0
    assert found["residence"]["runs"] == 0 and found["collections"] == {}
    nothing_hot = {"hot_rows": 0, "hot_share": 0.0, "lookups": 0}
    assert found["embeddings"] == {"tables": 1, "rows": 1000, "bytes": 64_000, **nothing_hot}
    assert found["setup_notes"] == []


@linux
def test_the_environment_is_that_of_the_start(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocators read variables before ``main``; a run must not report one that was set later."""
    started = environment_at_start()
    for name in ("OMP_WAIT_POLICY", "LD_PRELOAD"):
        monkeypatch.setenv(name, "too-late")
    _, found = serve(env={"LATFIX_TEST_LATE": "1", "PATH": "elsewhere"})
    assert found["environment"]["PATH"] == started["PATH"]
    assert "LATFIX_TEST_LATE" not in found["environment"]
    assert "too-late" not in found["environment"].values()


@linux
def test_threads_take_the_places_that_they_are_given(serve: Serve) -> None:
    """On one core no placement is possible, and the run reports it."""
    lower = lower_priority()
    _, found = serve(pin="workers", nice=lower)
    threads, cores = found["placement"], allowed_cores()
    assert {row["nice"] for row in threads["worker"] + threads["prepare"]} == {lower}
    if len(cores) < 2:
        assert "a worker cannot have a core to itself" in found["setup_notes"][-1]
        return
    (worker,), (prepare,) = threads["worker"], threads["prepare"]
    assert len(worker["allowed"]) == 1 and not set(worker["allowed"]) & set(prepare["allowed"])
    assert threads["worker_cores"] == worker["cores"]


@linux
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="one core is one domain")
def test_workers_and_their_memory_keep_to_their_domains(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that each of two cores is a memory node."""
    one, two = allowed_cores()[:2]
    machine = Topology(
        cores=(one, two),
        physical=((one,), (two,)),
        domains=(Domain(node=0, cores=(one,)), Domain(node=1, cores=(two,))),
    )
    monkeypatch.setattr("latfix.runners.host.cpu_placement.read_topology", lambda: machine)
    touched: list[int] = []

    def copy(model: Any) -> int:
        touched.append(min(os.sched_getaffinity(0)))
        return copy_weights(model)

    monkeypatch.setattr("latfix.runners.service.numa_weights.copy_weights", copy)
    _, found = serve(pin="locality", workers=2, prepare_threads=2)
    assert touched == [two, one], "each copied by a thread on its worker's cores"
    threads = found["placement"]
    assert [row["allowed"] for row in threads["worker"]] == [[two], [one]]
    assert [row["allowed"] for row in threads["prepare"]] == [[two], [one]]
    if Path("/proc/self/numa_maps").exists():
        assert sum(threads["node_pages"].values()) > 0


@pytest.mark.alone
def test_idle_work_is_in_the_record(serve: Serve) -> None:
    service, found = serve(idle_s=0.1, keep_warm_ms=4.0, hot_rows=3)
    done = found["residence"]
    assert done["runs"] > 0 and done["elements"] == 5 and done["failure"] == ""
    assert done["longest_ns"] > 0 and done["rows"] >= 3
    known = found["embeddings"]
    # Every request has row 3 at least four times; other rows share the rest.
    assert known["hot_rows"] == 3 and 0.6 < known["hot_share"] <= 1 and known["lookups"] >= 48
    assert service.models.instances[0].resident is not None


def test_rows_are_learned_from_the_first_requests_where_there_is_no_traffic(folder: Path) -> None:
    service = loaded_service(folder, "adapter:Lookups", hot_rows=2)
    service.protect()
    hot = service.models.instances[0].hot
    assert hot is not None and hot.rows == 0
    service.predict([traffic().request(k % 12) for k in range(80)], in_flight=1)
    assert hot.rows == 2
    service.release()


def test_collector_and_pool_counters_are_in_the_record(serve: Serve) -> None:
    service, found = serve(gc="freeze", buffer_pool=True)
    assert found["collections"]["frozen"] > 0
    assert found["pool_answers"]["hits"] > 0 and found["pool_answers"]["bytes"] > 0
    assert service.models.pools[0].hits > service.models.pools[0].misses


def test_every_size_of_a_batch_is_warmed_up_where_there_are_few(serve: Serve) -> None:
    service, _ = serve(warmup_shapes=8, max_batch_size=5)
    # Inputs of 5, 6 and 7 elements, in batches of 1 to 5.
    assert service.warmup.shapes == 3 and service.warmup.batches == 15
    many, _ = serve(warmup_shapes=8, max_batch_size=40)
    assert many.warmup.batches == 3 * len([1, 2, 4, 8, 16, 32, 40])
    two, _ = serve(warmup_shapes=2)
    assert two.warmup.batches == 2
    shapes = {key[0] for key in two.models.instances[0].seen}
    assert {(1, 5), (1, 7)} <= shapes, "the smallest and the largest"


def test_bytes_that_are_shared_count_once() -> None:
    one = torch.nn.Linear(4, 4)
    tied = torch.nn.Linear(4, 4)
    tied.weight = one.weight
    assert model_bytes([one, tied, "no module"]) == 4 * (16 + 4 + 4)


def test_copied_weights_are_elsewhere_and_the_same() -> None:
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.LSTM(8, 8)
    )
    model[1].weight = model[0].weight
    flat = torch.arange(16.0)
    model.register_buffer("first", flat[:8])
    model.register_buffer("second", flat[4:12])
    model.eval()
    inputs = torch.randn(3, 8)
    with torch.no_grad():
        before = model(inputs)[0]
        where = model[0].weight.data_ptr()
        copied = copy_weights(model)
        assert torch.equal(model(inputs)[0], before)
    assert model[0].weight.data_ptr() != where and model[0].weight is model[1].weight
    assert model.first[4].data_ptr() == model.second[0].data_ptr(), "views of one storage still share it"
    assert copied == model_bytes([model])
    assert copy_weights("no module") == 0


def test_each_model_is_copied_once(folder: Path) -> None:
    for shared, times in ((False, 2), (True, 1)):
        service = loaded_service(folder, "adapter:Lookups", workers=2, shared_model=shared)
        one = model_bytes([service.models.instances[0].model])
        assert bring_home(service.models.instances, service.settings) == times * one
        service.release()


def test_memory_by_node_leaves_files_out(tmp_path: Path) -> None:
    maps = tmp_path / "proc/self/numa_maps"
    maps.parent.mkdir(parents=True)
    maps.write_text(
        "7f00 default anon=5 dirty=5 N0=3 N1=2 kernelpagesize_kB=4\n"
        "7f10 default file=/lib/x.so anon=1 N1=100\n"
        "7f20 default heap anon=7 N0=7\n"
    )
    assert nodes_of_memory(System(tmp_path)) == {"N0": 10, "N1": 2}
    assert nodes_of_memory(System(tmp_path / "none")) == {}


@linux
@pytest.mark.slow
def test_a_runner_process_applies_and_records_all_settings(folder: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "keep_warm_ms": 4.0,
        "hot_rows": 3,
        "prefault_mb": 16,
        "nice": lower_priority(),
        "warmup_shapes": 2,
        "env": {"OMP_WAIT_POLICY": "PASSIVE"},
    }
    spec = load_spec(str(folder))
    settings = spec.settings.with_overrides(values)
    replay = Replay(spec=spec, traffic=traffic(30), settings=settings)
    run = prepare_folder(tmp_path / "run", replay)
    with RunnerProcess(folder, spec.entry, settings, tmp_path / "log") as process:
        process.start()
        record: RunRecord = replay_into(process, run)
    meta = record.meta
    assert record.counts()["ok"] == 30
    assert {place.nice for place in meta.placement.worker} == {values["nice"]}
    assert meta.placement.autogroup_nice in (None, values["nice"])
    assert meta.memory.prefault_kept_bytes > 0.9 * (16 << 20)
    assert meta.environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "glibc.malloc.arena_max=1" in meta.environment["GLIBC_TUNABLES"]
    assert meta.residence is not None and meta.residence.runs > 0 and meta.embeddings.hot_rows == 3
    assert meta.setup_notes == ()
