"""Graphs for a service: the captured batches, and requests that run as graphs.

The device is a fake: it computes at once, so that a fake capture can record the model's calls.
"""

# ruff: noqa: ARG002 - the fake device ignores most arguments
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.adapter_api import Workload
from latfix.request import Request
from latfix.runners.gpu.cuda_graphs import facts_of
from latfix.runners.service.graph_capture import capture_graphs, shapes_to_capture
from latfix.runners.service.load import LoadedModels
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.runners.engine.served import instance_of, serve
from tests.runners.gpu.simulated import SimulatedAccelerator
from tests.runners.gpu.test_cuda_graphs import FakeCapturer, Scorer


class PlainAccelerator(SimulatedAccelerator):
    """A device whose memory is the host's."""

    current: Any = None

    @contextlib.contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def upload(self, host: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        return host.clone()

    def is_here(self, tensor: torch.Tensor) -> bool:
        return False


class Adapter(Workload):
    """Requests with as many items as their payload's number."""

    def prepare(self, request: Request) -> Any:
        generator = torch.Generator().manual_seed(int(request.id))
        ids = torch.randint(1, 50, (int(request.payload),), generator=generator)
        return {"ids": ids, "extra": torch.randn(3, generator=generator)}


def _traffic(lengths: list[int]) -> Traffic:
    n = len(lengths)
    return Traffic.plain(np.arange(n) * 1_000_000, ids=[str(k) for k in range(n)], payloads=list(lengths))


def _models(settings: RunnerSettings) -> LoadedModels:
    instances = [instance_of(Scorer().eval(), "plain:0", Adapter()) for _ in range(settings.workers)]
    for instance in instances:
        instance.place_on(PlainAccelerator("plain:0"))
    return LoadedModels(Adapter(), instances, "plain:0")


def test_graphs_are_captured_in_the_stream_that_serves() -> None:
    """Graphs of one pool share its memory only if they share a stream."""
    settings = RunnerSettings(max_batch_size=2, cuda_graphs=True, workers=2)
    models = _models(settings)
    seen: list[Any] = []

    class Watching(FakeCapturer):
        def __call__(self, run: Any) -> Any:
            seen.append([each.accelerator.current for each in models.instances])  # type: ignore[union-attr]
            return super().__call__(run)

    capture_graphs(models, _traffic([3, 5, 9]), settings, lambda _: Watching(), pads=True)
    first, second = (each.lane for each in models.instances)
    assert first is not None and second is not None and first.compute is not second.compute
    half = len(seen) // 2
    assert half >= 4 and seen == [[first.compute, None]] * half + [[None, second.compute]] * half


def test_the_longest_of_many_is_among_what_is_captured() -> None:
    """A sample of a hundred would probably miss it, and its batches would be the slowest."""
    lengths = [3 + k % 17 for k in range(3000)]
    lengths[1234] = 60
    found = [len(value["ids"]) for value in shapes_to_capture(Adapter(), _traffic(lengths), seconds=20.0)]
    assert found[-1] == 60 and found == sorted(found) and len(found) <= 9 and found[0] == 3


def test_a_request_that_cannot_be_prepared_is_left_out() -> None:
    assert [len(value["ids"]) for value in shapes_to_capture(Adapter(), _traffic([4, -1, 6]), seconds=5.0)] == [4, 6]


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_are_answered_by_graphs(workers: int) -> None:
    settings = RunnerSettings(max_batch_size=4, cuda_graphs=True, workers=workers)
    lengths = [3 + (k * 7) % 11 for k in range(60)]
    traffic, models = _traffic(lengths), _models(settings)
    plain = models.instances[0].model
    capture_graphs(models, traffic, settings, lambda _: FakeCapturer(), pads=True)
    served = serve(
        [traffic.request(k) for k in range(len(lengths))],
        instances=models.instances,
        max_batch_size=4,
        cuda_graphs=True,
        workers=workers,
    )
    for slot, outcome in served.outcomes.items():
        assert outcome.status == Status.OK, outcome.error
        alone = {name: value.unsqueeze(0) for name, value in models.adapter.prepare(traffic.request(slot)).items()}
        with torch.no_grad():
            expected = plain(**alone)
        torch.testing.assert_close(outcome.output["score"], expected["score"][0], rtol=1e-4, atol=1e-4)
    batches = served.batches
    assert (batches["graph"] == 1).all() and len(models.graphed()) == workers
    facts = facts_of(models.graphed())
    assert facts["graph_replays"] == len(batches) and facts["graph_misses"] == {}
    assert facts["graphs_captured"] >= 3 * 8


def test_a_batch_without_a_graph_is_marked() -> None:
    settings = RunnerSettings(max_batch_size=2, cuda_graphs=True)
    models = _models(settings)
    capture_graphs(models, _traffic([5, 6]), settings, lambda _: FakeCapturer(), pads=True)
    longer = _traffic([5, 9])
    requests = [longer.request(k) for k in range(2)]
    batches = serve(requests, instances=models.instances, max_batch_size=1, cuda_graphs=True).batches
    batches.sort(order="padded_length")
    assert batches["graph"].tolist() == [1, -1]
    assert facts_of(models.graphed())["graph_misses"] == {"no graph of 1x9, 1x3": 1}


def test_on_the_cpu_the_setting_has_no_effect_and_is_noted(tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text(
        "import torch\nfrom latfix import Workload\n"
        "class Plain(Workload):\n"
        "    def load(self, device):\n        return torch.nn.Linear(2, 2)\n"
        "    def prepare(self, request):\n        return torch.ones(2)\n"
    )
    settings = RunnerSettings(device="cpu", cuda_graphs=True, overlap=True, pinned_staging=True)
    service = Service(tmp_path, "adapter:Plain", settings)
    service.load()
    service.warm_shapes(_traffic([1]))
    assert [note for note in service.process.notes if "not in effect on the CPU" in note] == [
        f"{name} needs a GPU: not in effect on the CPU" for name in ("pinned_staging", "overlap", "cuda_graphs")
    ]
    assert service.predict([Request(id="0", arrival_s=0.0)])[0].status == Status.OK
    assert service.device_profile(_traffic([1])) == {} and not service.models.graphed()
    service.release()
