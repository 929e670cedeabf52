"""What the card reaches, and how near to it a model's batches come: bytes and operations over measured rates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

#: Bytes of the tensors that are copied on the device: several times its caches.
_COPIED = 4 << 30
_SIDE = 8192
_TIMES = 10


def rates() -> dict[str, Any]:
    """Copy bandwidth, bytes read and written, and rates of matrix products on random numbers, by precision."""
    import torch

    source = torch.empty(_COPIED // 4, device="cuda").normal_()
    there = torch.empty_like(source)
    seconds = _median_s(lambda: there.copy_(source))
    found: dict[str, Any] = {"copy_bytes_per_s": 2 * _COPIED / seconds, "flops": {}}
    source = there = source.new_empty(0)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        a, b = (torch.randn(_SIDE, _SIDE, device="cuda").to(dtype) for _ in range(2))
        found["flops"][name] = 2 * _SIDE**3 / _median_s(lambda a=a, b=b: a @ b)  # type: ignore[misc]
    return found


def hot_path(workload: str, profile: str, reached: dict[str, Any]) -> dict[str, Any]:
    """A middling batch of a workload: its operations and least bytes, the time that they need, and what it took.

    :param reached: of :func:`rates`.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from latfix.runners.adapter import call_model, tensors_of
    from latfix.runners.device.profile import profile_batch
    from latfix.runners.service import Service
    from latfix.runners.warm_up import representative
    from latfix.spec import load_spec
    from latfix.traffic.formats import read_traffic

    spec = load_spec(workload, profile=profile)
    service = Service(spec.folder, spec.entry, spec.settings)
    service.load()
    instance, size = service.models.instances[0], spec.settings.max_batch_size
    traffic = read_traffic(spec.traffic, mapping=spec.traffic_map)
    (value,) = representative(service.models.adapter, traffic, 1)
    batch = instance.collate([value] * size)
    with instance.guard():
        inputs = instance.on_device(batch)
        for _ in range(3):
            output = call_model(instance.model, inputs)
        with FlopCounterMode(display=False) as counted:
            call_model(instance.model, inputs)
        torch.cuda.synchronize()
    weights = sum(p.numel() * p.element_size() for p in instance.model.parameters())
    moved = weights + sum(t.numel() * t.element_size() for t in (*tensors_of(inputs), *tensors_of(output)))
    work = profile_batch(instance, batch, size=size, elements=0)
    floor_s = max(counted.get_total_flops() / reached["flops"]["fp32"], moved / reached["copy_bytes_per_s"])
    return {
        "batch": size,
        "flops": counted.get_total_flops(),
        "bytes": moved,
        "floor_ms": floor_s * 1e3,
        "profile": None if work is None else {**work.to_json(), "kernels": len(work.kernels)},
        "busy_over_floor": None if work is None else work.busy_ns / 1e9 / floor_s,
        "span_over_floor": None if work is None else work.span_ns / 1e9 / floor_s,
    }


def _median_s(run: Callable[[], Any]) -> float:
    import torch

    for _ in range(3):
        run()
    took = []
    for _ in range(_TIMES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begin)
    return statistics.median(took)
