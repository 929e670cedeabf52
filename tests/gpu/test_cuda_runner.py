"""The runner on a CUDA device. Skipped without one."""

from __future__ import annotations

import torch

from latfix import Request, Workload
from latfix.profilers.gpu.allocator_counters import cuda_reader
from latfix.profilers.gpu.nvml import Nvml
from latfix.runners.gpu.accelerator import accelerator_of
from latfix.stages import Status
from tests.gpu.marks import ON_CUDA
from tests.runners.engine.served import Served, requests_of, serve

pytestmark = ON_CUDA

_WIDTH = 512


class _Linear(Workload):
    def prepare(self, request: Request) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(request.id))
        return torch.randn(_WIDTH, generator=generator)


def _serve(device: str, count: int) -> Served:
    torch.manual_seed(0)
    model = torch.nn.Linear(_WIDTH, _WIDTH).to(device).eval()
    return serve(
        requests_of(count),
        model,
        adapter=_Linear(),
        device=device,
        place=lambda instance: instance.place_on(accelerator_of(device)),
        max_batch_size=4,
    )


def test_answers_are_those_of_the_cpu() -> None:
    expected, got = (_serve(device, 16).outcomes for device in ("cpu", "cuda:0"))
    for slot in range(16):
        assert got[slot].status == Status.OK
        assert got[slot].output.device.type == "cpu"
        torch.testing.assert_close(got[slot].output, expected[slot].output, rtol=1e-3, atol=1e-3)


def test_every_device_stage_takes_time() -> None:
    rows = _serve("cuda:0", 64).rows
    assert len(rows) == 64
    for stage in ("h2d", "compute", "d2h"):
        assert (rows[f"{stage}_ns"] > 0).all(), stage


def test_the_caching_allocator_and_nvml_are_read() -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    read = cuda_reader("cuda:0")
    assert read is not None and read()["cuda.reserved_bytes"] >= 0
    nvml, line = Nvml.open()
    assert nvml is not None, line
    assert nvml.read()["nvml.memory_used_bytes"] > 0
    nvml.close()
