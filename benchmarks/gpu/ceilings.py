"""The card's limits, and how close a model's batches come: bytes and operations over measured rates.

Run by ``test_parts.py`` in a separate process.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.gpu.parts import Part, each_lacks, lacks, measure_here, no_time
from latfix.profilers.gpu.kernel_number_formats import matrix_formats

#: Samples with a floor for their batches. The assistant has none, because its work depends on the lengths of answers.
HOT_PATHS = ("recommender", "vision")
#: A batch below its floor by more than the measurement error shows that the floor is wrong.
_LEAST_OVER_FLOOR = 0.9
#: Bytes of the tensors copied on the device: several times its caches.
_COPIED = 4 << 30
_SIDE = 8192
_TIMES = 10
#: Profiles of a batch: any of them may lack kernels, often the first in a process.
_PROFILES = 3
#: Number formats of a model's kernels, by the type of its weights. float32 convolutions use TF32 by default.
_POSSIBLE: Mapping[str, tuple[str, ...]] = {"float32": ("fp32", "tf32"), "bfloat16": ("bf16",), "float16": ("fp16",)}


def measure(part: Part, deadline: float) -> None:
    """Rates of the card, and the samples' batches over them.

    :param deadline: on the clock of ``time.monotonic``.
    """
    reached = part.attempt("rates", rates)
    for name in HOT_PATHS:
        left = deadline - time.monotonic()
        if left < 5 or lacks(reached):
            part.put(name, no_time(left, 5) if left < 5 else {"skipped": "there are no rates to compare with"})
        else:
            part.attempt(name, lambda name=name: hot_path(name, "gpu", reached))  # type: ignore[misc]


def problems(found: Mapping[str, Any]) -> list[str]:
    """Objections to the measurement."""
    lines = each_lacks(found, ("rates", *HOT_PATHS))
    for name in HOT_PATHS:
        path = found.get(name, {})
        if lacks(path):
            continue
        asked, seen, over = path["profiles"]["asked"], path["profiles"]["found"], path["busy_over_floor"]
        if seen < asked:
            lines.append(f"{name}: {asked - seen} of {asked} profiles show nothing of the device")
        if over is None:
            lines.append(f"{name}: no profile to compare with its floor")
        elif over < _LEAST_OVER_FLOOR:
            lines.append(f"{name}: the device worked for {over:.2f} of the floor, which therefore is wrong")
    return lines


def rates() -> dict[str, Any]:
    """Copy bandwidth (bytes read and written), and rates of matrix products of random numbers by format."""
    import torch

    source = torch.empty(_COPIED // 4, device="cuda").normal_()
    there = torch.empty_like(source)
    seconds = _median_s(lambda: there.copy_(source))
    found: dict[str, Any] = {"copy_bytes_per_s": 2 * _COPIED / seconds, "flops": {}}
    source = there = source.new_empty(0)
    for name, dtype in (
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ):
        a, b = (torch.randn(_SIDE, _SIDE, device="cuda").to(dtype) for _ in range(2))
        with products_in_tf32(name == "tf32"):
            found["flops"][name] = 2 * _SIDE**3 / _median_s(lambda a=a, b=b: a @ b)  # type: ignore[misc]
    del a, b
    torch.cuda.empty_cache()  # leave the memory that a service would find
    return found


@contextlib.contextmanager
def products_in_tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 for float32 products."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def floor_rate(kernels: Mapping[str, int], flops: Mapping[str, float], weights: str) -> tuple[str, float]:
    """Format and rate of the floor: the fastest that any of a model's kernels may use.

    :param kernels: launches by name, of a profile. Without one, or if a name shows no format, all formats that
        weights of this type allow are considered.
    :param flops: operations a second by format.
    :param weights: type of the model's weights, such as ``float32``.
    """
    ran = matrix_formats(kernels)
    named = {str(format_) for format_ in ran if format_ in flops}
    if not named or any(format_ not in flops for format_ in ran):
        named |= set(_POSSIBLE.get(weights, tuple(flops)))
    fastest = max(named, key=lambda name: flops[name])
    return fastest, flops[fastest]


def hot_path(workload: str, profile: str, reached: Mapping[str, Any]) -> dict[str, Any]:
    """A median batch of a workload: its operations and minimum bytes, the time they need, and its duration.

    :param reached: of :func:`rates`.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from latfix.config.workload_toml import load_spec
    from latfix.runners.calls.model_call import call_model
    from latfix.runners.calls.tensor_tree import tensors_of
    from latfix.runners.gpu.kernel_profile import profile_batch
    from latfix.runners.service.loaded_service import Service
    from latfix.runners.service.warm_up import representative
    from latfix.traffic.io.reader import read_traffic

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
    parameters = list(instance.model.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    moved = weights + sum(t.numel() * t.element_size() for t in (*tensors_of(inputs), *tensors_of(output)))
    seen = [profile_batch(instance, batch, size=size, elements=0) for _ in range(_PROFILES)]
    works = [work for work in seen if work is not None]
    # Profiles may lack kernels: the one with the most is the most complete.
    work = max(works, key=lambda each: each.launches, default=None)
    kind = str(parameters[0].dtype).removeprefix("torch.")
    name, rate = floor_rate({} if work is None else work.kernels, reached["flops"], kind)
    floor_s = max(counted.get_total_flops() / rate, moved / reached["copy_bytes_per_s"])
    return {
        "batch": size,
        "flops": counted.get_total_flops(),
        "bytes": moved,
        "format": name,
        "formats": {} if work is None else dict(matrix_formats(work.kernels)),
        "floor_ms": floor_s * 1e3,
        "profiles": {"asked": len(seen), "found": len(works), "launches": [each.launches for each in works]},
        "profile": None if work is None else work.to_json(),
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


if __name__ == "__main__":
    measure_here(measure)
