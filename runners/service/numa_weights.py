"""Places a model's weights on the memory node of the worker that computes with them.

The kernel puts a page on the node of the core that touches it first, so a thread on the worker's cores copies the
weights once. The copy also moves weights mapped from a file into memory of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from latfix.runners.engine.worker import ModelInstance
from latfix.runners.service.warm_up import as_worker
from latfix.settings import RunnerSettings


def bring_home(instances: Sequence[ModelInstance], settings: RunnerSettings) -> int:
    """Copy each instance's weights on its worker's cores; returns the number of bytes copied.

    A model shared by several workers is placed where the first of them runs.
    """
    done: set[int] = set()
    copied = 0
    for number, instance in enumerate(instances):
        if id(instance.model) in done or instance.device != "cpu":
            continue
        done.add(id(instance.model))
        copied += as_worker(instance, settings, partial(copy_weights, instance.model), number)
    return copied


def copy_weights(model: Any) -> int:
    """Move parameters and buffers to memory that this thread touches first; returns the number of bytes copied.

    Tensors that shared memory still share it, and the parameters stay the same objects.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        return 0
    copies: dict[int, torch.UntypedStorage] = {}
    total = 0
    with torch.no_grad(), torch.inference_mode(False):
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_inference():
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in copies:
                copies[storage.data_ptr()] = storage.clone()  # type: ignore[no-untyped-call]
                total += storage.nbytes()
            home = tensor.data.new_empty(0)
            home.set_(copies[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride())
            tensor.data = home
    return total
