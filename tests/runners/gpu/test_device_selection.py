"""Workers on a simulated number of devices: placement of models, readings, messages.

The number of devices is faked, and models stay on the CPU.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from latfix.adapter_api import Workload
from latfix.errors import InputError, RunnerError
from latfix.profilers.gpu.allocator_counters import BatchCounters, RunningBatches
from latfix.profilers.gpu.device_probes import allocator_probes, lines_of, nvml_probes, open_devices
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.probes.sampler import Sampler
from latfix.profilers.probes.stage_recorder import EventLog, SampleLog
from latfix.runners.engine.engine import Engine
from latfix.runners.gpu.device_selection import in_mode, on_device, place_workers, placement_note
from latfix.runners.scheduling.control import check_policies
from latfix.runners.service.load import LoadedModels, convert_models, load_models
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from tests.conftest import FakeCuda
from tests.runners.engine.served import Served, instance_of
from tests.runners.gpu.simulated import SimulatedAccelerator

GPUs = Callable[[int], None]

ADAPTER = """
import torch
from latfix import Workload

LOADED = []

class Model(torch.nn.Module):
    def forward(self, x):
        return x

class Told(Workload):
    def load(self, device):
        LOADED.append(device)
        model = Model()
        model.where = device
        return model

    def prepare(self, request):
        return torch.zeros(2)
"""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> GPUs:
    """Simulates a machine with that many GPUs."""
    current: list[int] = []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    def make(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "device", device)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1] if current else 0)
        monkeypatch.setattr(
            "latfix.runners.service.load.accelerator_of", lambda device: SimulatedAccelerator(device=device)
        )

    return make


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"workers": 3}, [0, 0, 0]),
        ({"workers": 5, "devices": 2}, [0, 1, 0, 1, 0]),
        ({"workers": 4, "devices": 0}, [0, 1, 2, 3]),
        ({"workers": 2, "devices": 0}, [0, 1]),
        ({"workers": 3, "devices": 0, "device": "cuda:2"}, [2, 3, 2]),
        ({"workers": 2, "devices": 2, "device": "cuda:1"}, [1, 2]),
        ({"workers": 2, "device": "cuda:3"}, [3, 3]),
    ],
)
def test_workers_are_spread_in_turn(settings: dict[str, Any], expected: list[int], gpus: GPUs) -> None:
    gpus(4)
    assert place_workers(RunnerSettings(**settings)) == [f"cuda:{index}" for index in expected]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"workers": 4, "devices": 3},
            "devices = 3: found 2 CUDA devices from cuda:0 on; lower it, or use 0 for all",
        ),
        ({"workers": 4, "devices": 2, "device": "cuda:1"}, "devices = 2: found 1 CUDA devices from cuda:1 on"),
        ({"workers": 1, "devices": 2}, "devices = 2 with workers = 1: .*set workers = 2"),
        ({"workers": 2, "devices": 2, "device": "cuda:5"}, 'device = "cuda:5": found 2 CUDA devices'),
    ],
)
def test_fewer_devices_than_requested_are_refused_in_one_line(
    settings: dict[str, Any], words: str, gpus: GPUs
) -> None:
    gpus(2)
    with pytest.raises(RunnerError, match=words) as caught:
        place_workers(RunnerSettings(**settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_on_the_cpu_the_setting_has_no_effect_which_is_reported(device: str, gpus: GPUs) -> None:
    gpus(0 if device == "auto" else 2)
    settings = RunnerSettings(workers=3, devices=2, device=device)
    devices = place_workers(settings)
    assert devices == ["cpu"] * 3
    assert placement_note(settings, devices) == "devices = 2 has no effect: all workers run on the CPU"
    assert placement_note(RunnerSettings(workers=3), devices) == ""


def test_a_limit_of_memory_is_for_one_device() -> None:
    with pytest.raises(InputError, match="memory_limit_mb = 64 with devices = 2"):
        check_policies(RunnerSettings(workers=2, devices=2, memory_limit_mb=64))
    check_policies(RunnerSettings(workers=2, memory_limit_mb=64))


@pytest.mark.parametrize(("shared", "loads"), [(True, [0, 1]), (False, [0, 1, 0, 1])])
def test_one_model_a_device_where_it_is_shared_else_one_a_worker(
    shared: bool, loads: list[int], gpus: GPUs, tmp_path: Path
) -> None:
    gpus(2)
    (tmp_path / "adapter.py").write_text(ADAPTER)
    settings = RunnerSettings(workers=4, devices=2, shared_model=shared)
    models = load_models(tmp_path, "adapter:Told", settings)
    names = [f"cuda:{index}" for index in (0, 1, 0, 1)]
    assert [instance.device for instance in models.instances] == names
    assert [instance.model.where for instance in models.instances] == names
    assert len(models.distinct()) == len(loads)
    assert models.device == "cuda:0" and models.notes == []


def test_a_model_is_called_with_its_device_as_the_current_one(gpus: GPUs) -> None:
    gpus(3)
    with on_device("cuda:2"):
        assert torch.cuda.current_device() == 2
    assert torch.cuda.current_device() == 0
    with in_mode("cuda:1", torch.inference_mode()):
        assert torch.cuda.current_device() == 1 and torch.is_inference_mode_enabled()
    with on_device("cuda:2"), on_device("cuda:0"):
        assert torch.cuda.current_device() == 0, "a library may have left another one current"
    with in_mode("cuda:1", torch.no_grad()), in_mode("cuda:0", torch.inference_mode()):
        assert torch.cuda.current_device() == 0 and torch.is_inference_mode_enabled()
    for device, count in (("cpu", 3), ("cuda:0", 1)):
        gpus(count)
        mode = torch.no_grad()
        assert in_mode(device, mode) is mode


class _Nvml(Nvml):
    """One device's NVML readings."""

    def __init__(self, clock: float, others: float | None = None) -> None:
        self._clock, self._share = clock, others
        self.closed = False

    def read(self) -> dict[str, float]:
        found = {"nvml.sm_clock_mhz": self._clock}
        return found if self._share is None else {**found, "nvml.others_sm_util": self._share}


def test_every_device_has_its_own_series_and_the_first_keeps_its_names() -> None:
    readers = {"cuda:1": _Nvml(1980.0), "cuda:3": _Nvml(1200.0, others=40.0)}
    probes = open_devices(
        ["cuda:1", "cuda:3", "cuda:1"],
        open_nvml=lambda device: (readers[device], f"NVML: H100 of {device}"),
        allocator=lambda device: lambda: {"cuda.allocated_bytes": float(device[-1])},
    )
    assert [probe.device for probe in probes] == ["cuda:1", "cuda:3"]
    assert lines_of(probes) == {"nvml": "NVML: H100 of cuda:1", "nvml.3": "NVML: H100 of cuda:3"}
    taken: dict[str, float] = {}
    samples = SampleLog()
    polled = [*nvml_probes(probes, taken.__setitem__), *allocator_probes(probes)]
    with Sampler(polled, samples, EventLog(), name="test"):
        pass
    rows = [json.loads(line) for line in samples.drain(0).splitlines()]
    found = {series: value for _, series, value in rows if not series.startswith("poll.")}
    assert found == {
        "nvml.sm_clock_mhz": 1980.0,
        "nvml.3.sm_clock_mhz": 1200.0,
        "nvml.3.others_sm_util": 40.0,
        "cuda.3.allocated_bytes": 3.0,
    }
    assert taken == {"cuda:3": 0.4}
    polls = {series for _, series, _ in rows if series.startswith("poll.")}
    assert polls == {"poll.nvml_ns", "poll.nvml.3_ns", "poll.cuda.3_ns"}


def test_a_device_that_nvml_does_not_open_is_reported_and_the_others_are_read() -> None:
    probes = open_devices(
        ["cuda:0", "cuda:1"],
        open_nvml=lambda device: (None, "NVML: not read") if device == "cuda:0" else (_Nvml(1.0), "NVML: B"),
        allocator=lambda _: None,
    )
    assert lines_of(probes) == {"nvml": "NVML: not read", "nvml.1": "NVML: B"}
    assert [probe.name for probe in nvml_probes(probes, lambda *_: None)] == ["nvml.1"]
    assert list(allocator_probes(probes)) == []
    assert lines_of(open_devices(["cpu", "cpu"])) == {"nvml": "NVML: not read, the model is not on a GPU"}


def engine_on(devices: Sequence[str], **settings: Any) -> Engine:
    """An engine that is not started, with a worker on each of the devices."""
    instances = [instance_of(None, device) for device in devices]
    return Served([], instances=instances, start=False, workers=len(devices), **settings).engine


def test_other_processes_on_a_device_affect_its_workers() -> None:
    routed = engine_on(["cuda:0", "cuda:1", "cuda:1"], routing="weighted")
    routed.device_taken("cuda:1", 0.5)
    load = routed.load()
    assert [load[f"runner.worker_{k}.weight"] for k in range(3)] == [1.0, 2.0, 2.0]
    pulled = engine_on(["cuda:0", "cuda:1"])
    pulled.device_taken("cuda:1", 0.5)
    assert not any("weight" in series for series in pulled.load())


@pytest.mark.parametrize(
    ("devices", "backend", "kind"),
    [
        (["cuda:0", "cuda:0"], "native", BatchCounters),
        (["cuda:0", "cuda:1"], "native", RunningBatches),
        (["cuda:0", "cuda:1"], "pluggable", type(None)),
        (["cpu", "cpu"], "native", type(None)),
    ],
)
def test_how_the_devices_counters_are_read(devices: Sequence[str], backend: str, kind: type, torch_on: Any) -> None:
    torch_on(FakeCuda(), FakeCuda(), backend=backend)
    assert type(engine_on(devices).device_memory) is kind


def test_the_memory_of_every_device_is_limited(gpus: GPUs, torch_on: Any, tmp_path: Path) -> None:
    gpus(2)
    devices = FakeCuda(), FakeCuda()
    torch_on(*devices)
    (tmp_path / "adapter.py").write_text(ADAPTER)
    settings = RunnerSettings(workers=3, devices=2, device_memory_share=0.25)
    service = Service(tmp_path, "adapter:Told", settings)
    service.load()
    service.release()
    assert [device.share() for device in devices] == [0.25, 0.25] and service.process.notes == []


def test_engines_are_made_with_their_own_device_as_the_current_one(
    gpus: GPUs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch-tensorrt builds and loads on the current device, not on that of the model and its inputs."""
    gpus(2)
    made: list[tuple[str, int]] = []

    def convert(model: Any, _batches: Any, _seen: Any, _settings: Any, _sources: Any, device: str, *_: Any) -> Any:
        made.append((device, torch.cuda.current_device()))
        return model, SimpleNamespace(to_json=lambda: {"device": device})

    monkeypatch.setattr("latfix.runners.backends.tensorrt.convert.convert", convert)
    instances = [instance_of(torch.nn.Identity(), f"cuda:{index}") for index in (1, 0)]
    monkeypatch.setattr(Workload, "folder", Path(), raising=False)
    with on_device("cuda:1"):  # left by a library
        convert_models(
            LoadedModels(instances[0].adapter, instances, "cuda:1"), [], RunnerSettings(backend="tensorrt")
        )
    assert made == [("cuda:1", 1), ("cuda:0", 0)]
