"""Loading model instances, changing them as the settings ask, and the evidence that the change took effect."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.errors import RunnerError
from latfix.runners.adapter import USER_ERRORS, call_model, describe, load_adapter, move
from latfix.runners.buffers import BufferPool
from latfix.runners.worker import ModelInstance
from latfix.settings import RunnerSettings
from latfix.workload import Workload

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class LoadedModels:
    """Model instances of a service, ready to serve.

    :param instances: one a worker, or the same one for each where ``shared_model`` is set.
    :param pools: buffer pools in use, for their counters.
    :param load_s: seconds that loading took.
    """

    adapter: Workload
    instances: list[ModelInstance]
    device: str
    pools: list[BufferPool] = field(default_factory=list)
    load_s: float = 0.0


def resolve_device(wanted: str) -> str:
    """The torch device that ``device`` in the settings means on this machine.

    :raises RunnerError: a CUDA device is asked for and there is none such.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return "cpu"
    device = "cuda:0" if wanted in ("auto", "cuda") else wanted
    if int(device.partition(":")[2]) >= count:
        raise RunnerError(f'device = "{wanted}": found {count} CUDA devices; use device = "cpu" or "auto"')
    return device


def load_models(folder: Path, entry: str, settings: RunnerSettings) -> LoadedModels:
    """Load the workload's model once a worker and apply precision, compilation and pooling.

    :raises RunnerError: the adapter or its model failed.
    """
    import torch

    started = time.perf_counter()
    torch.manual_seed(settings.seed)
    device = resolve_device(settings.device)
    if settings.intra_op_threads:
        torch.set_num_threads(settings.intra_op_threads)
    loaded: LoadedModels | None = None
    model: Any = None
    for number in range(settings.workers):
        if number == 0 or not settings.shared_model:
            adapter = load_adapter(folder, entry)
            model = _load_one(adapter, device, settings)
        if loaded is None:
            loaded = LoadedModels(adapter, [], device)
        collate, pool = adapter.collate, None
        if settings.buffer_pool and pool_applies(adapter):
            pool = BufferPool()
            loaded.pools.append(pool)
            collate = pool.collate
        dtype = torch.bfloat16 if settings.precision == "bf16" else None
        loaded.instances.append(ModelInstance(adapter, model, device, dtype, collate, set(), pool))
    assert loaded is not None, "settings.workers is at least 1"
    loaded.load_s = time.perf_counter() - started
    return loaded


def pool_applies(adapter: Workload) -> bool:
    """Whether the adapter batches by the default collate, which a buffer pool can stand in for."""
    return type(adapter).collate is Workload.collate


def _load_one(adapter: Workload, device: str, settings: RunnerSettings) -> Any:
    import torch

    try:
        model = adapter.load(device)
    except USER_ERRORS as error:
        raise RunnerError(f"{type(adapter).__name__}.load({device!r}) raised {describe(error)}") from error
    if not isinstance(model, torch.nn.Module):
        found = type(model).__name__
        raise RunnerError(f"{type(adapter).__name__}.load returned {found}; expected a torch.nn.Module")
    model.eval()
    try:
        return _compiled(_in_precision(model, settings), settings)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        what = f"precision = {settings.precision!r}, compile = {settings.compile!r}"
        raise RunnerError(f"changing the model ({what}) raised {describe(error)}") from error


def _in_precision(model: torch.nn.Module, settings: RunnerSettings) -> torch.nn.Module:
    import torch

    if settings.precision == "bf16":
        return model.to(torch.bfloat16)
    if settings.precision == "int8_dynamic":
        with warnings.catch_warnings():
            # Deprecated in favor of torchao, whose int8 pays only when compiled; this one works today.
            warnings.simplefilter("ignore")
            quantized: torch.nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
                model, {torch.nn.Linear}, dtype=torch.qint8
            )
        return quantized
    return model


def _compiled(model: torch.nn.Module, settings: RunnerSettings) -> Any:
    if settings.compile == "off":
        return model
    import torch
    import torch._dynamo
    import torch._inductor.config

    torch._inductor.config.freezing = True
    torch._dynamo.config.recompile_limit = 64
    parts = getattr(model, "compile_parts", None)
    if parts is None:
        return torch.compile(model, dynamic=True)
    # A model with a Python loop of its own (token by token) names what is worth compiling inside it.
    for name in parts():
        setattr(model, name, torch.compile(getattr(model, name), dynamic=True))
    return model


def compiler_missing() -> str:
    """Why ``torch.compile`` cannot work here; empty where it can."""
    wanted = os.environ.get("CXX", "g++")
    if any(shutil.which(name) for name in (wanted, "g++", "clang++")):
        return ""
    return "torch.compile needs a C++ compiler and found neither g++ nor clang++"


def _does_work(module: torch.nn.Module) -> bool:
    """A leaf, or a module of the framework's own whose children only hold its parameters (int8 layers)."""
    return not list(module.children()) or ".quantized." in type(module).__module__


@dataclass(frozen=True, slots=True)
class KernelCensus:
    """What ran in one forward pass: leaf modules by type, and output types by dtype."""

    modules: Mapping[str, int]
    dtypes: Mapping[str, int]


def census(instance: ModelInstance, batch: Any) -> KernelCensus:
    """Run ``batch`` once with hooks on the leaf modules and count what ran.

    Hooks sit on the uncompiled module: call it before the measured run, on an instance that is not compiled.
    """
    import torch

    modules: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()

    def note(module: Any, inputs: Any, output: Any) -> None:
        del inputs
        kind = type(module)
        modules[f"{kind.__module__}.{kind.__qualname__}"] += 1
        if isinstance(output, torch.Tensor):
            dtypes[str(output.dtype).removeprefix("torch.")] += 1

    handles = [module.register_forward_hook(note) for module in instance.model.modules() if _does_work(module)]
    try:
        with torch.no_grad():
            call_model(instance.model, move(batch, instance.device, instance.dtype))
    finally:
        for handle in handles:
            handle.remove()
    return KernelCensus(dict(modules), dict(dtypes))
