"""What ran in one forward pass: modules, kernels, dtypes, memory layouts. Observed, never derived from settings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from typing import Any

from latfix.runners.calls.model_call import call_model
from latfix.runners.calls.tensor_tree import tensors_of
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.model_transforms.precision import kept_modules
from latfix.runners.model_transforms.precision_support import by_torchao

#: Operators of these libraries are kernels; the rest of a profile is bookkeeping.
_LIBRARIES = ("aten::", "quantized::", "mkldnn::", "onednn::", "torch_ipex::")


def census(
    instance: ModelInstance, batch: Any, keep: Collection[str] = (), *, hooks: bool = True
) -> dict[str, dict[str, int]]:
    """Run ``batch`` once, as a request would, and count what ran.

    :param keep: names of the modules that were to keep their precision.
    :param hooks: count modules too; a compiled model would be recompiled for it.
    :returns: ``modules``: leaf modules that ran, by type; ``kept``: those of them inside modules that were to keep
        their precision. ``dtypes`` of their outputs; for a graph (TorchScript, torch.export), whose layers are not
        called as modules, those of its own outputs. ``layouts`` in memory of four-dimensional outputs:
        ``channels_last``, ``contiguous``, or ``either`` if the shape makes no difference. ``kernels``: operators of
        the framework that ran, by name.
    """
    import torch

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs its start and stop
    modules: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    layouts: Counter[str] = Counter()
    exempt = kept_modules(instance.model, keep) if hooks else set()

    def note(module: Any, _: Any, output: Any) -> None:
        modules[_kind(module)] += 1
        if id(module) in exempt:
            kept[_kind(module)] += 1
        if isinstance(output, torch.Tensor):
            dtypes[str(output.dtype).removeprefix("torch.")] += 1
            if output.dim() == 4:
                layouts[_layout(output)] += 1

    handles = []
    if hooks:
        # Before existing hooks of a module, which may convert its output to what its neighbors expect.
        working = [module for module in instance.model.modules() if does_work(module)]
        working = [module for module in working if not isinstance(module, torch.jit.ScriptModule)]  # takes no hooks
        handles = [module.register_forward_hook(note, prepend=True) for module in working]
    try:
        with instance.guard(), instance.working():
            inputs = instance.on_device(batch)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
                answer = call_model(instance.model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    if hooks and not dtypes:  # a graph, whose layers are not called as modules
        dtypes.update(str(tensor.dtype).removeprefix("torch.") for tensor in tensors_of(answer))
    return {
        "modules": dict(modules),
        "dtypes": dict(dtypes),
        "kept": dict(kept),
        "layouts": dict(layouts),
        "kernels": {event.key: int(event.count) for event in seen.key_averages() if event.key.startswith(_LIBRARIES)},
    }


def weight_kinds(model: Any, keep: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """Types of the weights of the model's linear layers, compiled or not, with the number of layers of each.

    :param keep: names of the modules that were to keep their precision; their layers are counted separately.
    """
    import torch

    model = getattr(model, "_orig_mod", model)  # inside the compiler's wrapper
    if not isinstance(model, torch.nn.Module):
        return {"weights": {}, "kept_weights": {}}
    exempt = kept_modules(model, keep)
    changed: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            weight = module.weight
            kind = _type_name(type(weight)) if by_torchao(weight) else str(weight.dtype).removeprefix("torch.")
            (kept if id(module) in exempt else changed)[kind] += 1
    return {"weights": dict(changed), "kept_weights": dict(kept)}


def does_work(module: Any) -> bool:
    """True for a leaf, or a framework module whose children only hold its parameters (int8 layers)."""
    return not list(module.children()) or ".quantized." in type(module).__module__


def _kind(module: Any) -> str:
    weight = getattr(module, "weight", None)
    return _type_name(type(weight)) if by_torchao(weight) else _type_name(type(module))


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _layout(tensor: Any) -> str:
    import torch

    plain = tensor.is_contiguous()
    last = tensor.is_contiguous(memory_format=torch.channels_last)
    if plain and last:
        return "either"
    return "channels_last" if last else "contiguous" if plain else "other"
