"""Loading model instances and changing them as the settings ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.errors import InputError, RunnerError
from latfix.runners.adapter import USER_ERRORS, check_batch_size, describe, load_adapter
from latfix.runners.buffers import BufferPool
from latfix.runners.calls import Calls, Tally
from latfix.runners.compiled import Graphs, compiled, configure_compiler
from latfix.runners.devices import on_device, place_workers, placement_note, resolve_device
from latfix.runners.operators import choose_attention, in_channels_last
from latfix.runners.precision import answers_bf16, in_precision
from latfix.runners.worker import ModelInstance
from latfix.settings import RunnerSettings
from latfix.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["LoadedModels", "convert_models", "load_models", "pool_applies", "resolve_device"]

#: Precisions that a backend computes in; torch does all.
_BACKEND_PRECISIONS = {"onnxruntime": ("default",), "openvino": ("default", "bf16")}


@dataclass(slots=True)
class LoadedModels:
    """Model instances of a service, ready to serve.

    :param instances: one a worker; those of a device share their model where ``shared_model`` is set.
    :param device: of the first.
    :param pools: buffer pools in use, for their counters.
    :param load_s: seconds that loading took.
    :param tally: counts what replaces the models' own operators.
    :param graphs: what the compiler was given.
    :param relaid: weights that ``memory_format`` laid out anew.
    :param note: what of the settings is without effect here, in a sentence.
    :param conversions: how each instance's conversion went; empty until there are inputs to convert with.
    """

    adapter: Workload
    instances: list[ModelInstance]
    device: str
    pools: list[BufferPool] = field(default_factory=list)
    load_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    graphs: Graphs = field(default_factory=Graphs)
    relaid: int = 0
    conversions: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    def distinct(self) -> list[ModelInstance]:
        """Instances with a model of their own: one for all where they share it."""
        seen: dict[int, ModelInstance] = {}
        for instance in self.instances:
            seen.setdefault(id(instance.model), instance)
        return list(seen.values())

    def replace_model(self, old: Any, new: Any) -> None:
        """Have every instance that runs ``old`` run ``new``."""
        for instance in self.instances:
            if instance.model is old:
                instance.model = new


def load_models(folder: Path, entry: str, settings: RunnerSettings) -> LoadedModels:
    """Load the workload's model once a worker and apply precision, layout, compilation and pooling.

    Workers are spread over the devices of the settings; where they share a model, there is one a device.

    A conversion to another backend needs inputs and comes later: :func:`convert_models`.

    :raises RunnerError: the adapter or its model failed.
    :raises InputError: the settings contradict each other.
    """
    import torch

    started = time.perf_counter()
    torch.manual_seed(settings.seed)
    devices = place_workers(settings)
    device = devices[0]
    _check_backend(settings, device)
    if settings.intra_op_threads:
        torch.set_num_threads(settings.intra_op_threads)
    choose_attention(settings.attention)
    loaded: LoadedModels | None = None
    models: dict[str, tuple[Workload, Any]] = {}
    for device in devices:
        if device not in models or not settings.shared_model:
            adapter = load_adapter(folder, entry)
            check_batch_size(adapter, settings.max_batch_size)
            if loaded is None:
                loaded = LoadedModels(adapter, [], device, note=placement_note(settings, devices))
            with on_device(device):
                models[device] = adapter, _load_one(adapter, device, settings, loaded)
        assert loaded is not None, "the first worker makes it"
        adapter, model = models[device]
        collate, pool = adapter.collate, None
        if settings.buffer_pool and pool_applies(adapter):
            pool = BufferPool()
            loaded.pools.append(pool)
            collate = pool.collate
        dtype = _input_dtype(settings)
        instance = ModelInstance(adapter, model, device, dtype, collate, set(), pool)
        instance.inference = settings.inference_mode
        if settings.compile != "off":
            instance.set_up = configure_compiler
        if settings.compile != "off" or settings.backend != "torch":
            instance.calls = Calls(tally=loaded.tally)
        loaded.instances.append(instance)
    assert loaded is not None, "settings.workers is at least 1"
    loaded.load_s = time.perf_counter() - started
    return loaded


def convert_models(models: LoadedModels, batches: Sequence[Any], settings: RunnerSettings) -> None:
    """Have another backend run the models, where the settings ask for it; they are converted once.

    :param batches: of the traffic's own inputs, of several sizes.
    :raises InputError: the backend is not installed.
    :raises RunnerError: a model cannot be converted, or answers something else then.
    """
    if settings.backend == "torch" or models.conversions:
        return
    from latfix.runners.converted import convert

    for instance in models.distinct():
        model, conversion = convert(instance.model, batches, settings, models.adapter.folder, models.tally)
        models.replace_model(instance.model, model)
        models.conversions.append(conversion.to_json())


def pool_applies(adapter: Workload) -> bool:
    """Whether the adapter batches by the default collate, which a buffer pool can stand in for."""
    return type(adapter).collate is Workload.collate


def _check_backend(settings: RunnerSettings, device: str) -> None:
    backend = settings.backend
    if backend == "torch":
        return
    said = f"backend = {backend!r}"
    if device != "cpu":
        raise InputError(f"{said}: found device {device}; expected the CPU; use backend = 'torch'")
    if settings.precision not in _BACKEND_PRECISIONS[backend]:
        known = " or ".join(repr(precision) for precision in _BACKEND_PRECISIONS[backend])
        raise InputError(f"{said}: found precision = {settings.precision!r}; expected {known}")
    if settings.keep_precision and settings.precision != "default":
        raise InputError(f"{said}: found keep_precision, which only torch knows; expected none")
    for name, neutral in (("compile", "off"), ("memory_format", "default"), ("attention", "default")):
        value = getattr(settings, name)
        if value != neutral:
            raise InputError(f"{said}: found {name} = {value!r}, which only torch knows; expected {neutral!r}")


def _input_dtype(settings: RunnerSettings) -> torch.dtype | None:
    import torch

    return torch.bfloat16 if answers_bf16(settings.precision) and settings.backend == "torch" else None


def _load_one(adapter: Workload, device: str, settings: RunnerSettings, loaded: LoadedModels) -> Any:
    import torch

    try:
        model = adapter.load(device)
    except USER_ERRORS as error:
        raise RunnerError(f"{type(adapter).__name__}.load({device!r}) raised {describe(error)}") from error
    if not isinstance(model, torch.nn.Module):
        found = type(model).__name__
        raise RunnerError(f"{type(adapter).__name__}.load returned {found}; expected a torch.nn.Module")
    model.eval()
    if settings.backend != "torch":
        return model
    try:
        model = in_precision(model, settings.precision, settings.keep_precision)
        if settings.memory_format == "channels_last":
            loaded.relaid += in_channels_last(model)
        return model if settings.compile == "off" else compiled(model, loaded.tally, loaded.graphs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        what = f"precision = {settings.precision!r}, compile = {settings.compile!r}"
        raise RunnerError(f"changing the model ({what}) raised {describe(error)}") from error
