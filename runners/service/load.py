"""Loading model instances and applying the settings to them."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from latfix.adapter_api import Workload
from latfix.errors import InputError, LatfixError, RunnerError
from latfix.runners.backends.requirements import backend_missing
from latfix.runners.calls.buffer_pool import BufferPool
from latfix.runners.calls.call_counters import Calls, Outside, Tally
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.gpu.accelerator import accelerator_of
from latfix.runners.gpu.device_selection import on_device, place_workers, placement_note
from latfix.runners.gpu.pinned_staging import Staging
from latfix.runners.model_files.file_workload import FileWorkload
from latfix.runners.model_transforms.attention_and_layout import choose_attention, in_channels_last
from latfix.runners.model_transforms.precision import activation_dtype, in_precision, quantizable
from latfix.runners.model_transforms.precision_support import device_capability, unsupported, uses_torchao
from latfix.runners.model_transforms.torch_compile import Graphs, compiled, configure_compiler
from latfix.runners.service.adapter_file import load_adapter, raised_at
from latfix.settings import Precision, RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.backends.tensorrt.shape_profile import Shapes
    from latfix.runners.gpu.cuda_graphs import GraphedModel

#: Errors of the framework and torchao for a model that cannot be changed. torchao asserts, and an older version may
#: lack what is needed.
_CHANGE_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    NotImplementedError,
    AssertionError,
    AttributeError,
    ImportError,
)
#: Precisions that a backend computes in.
_BACKEND_PRECISIONS = {
    "torch": get_args(Precision),
    "onnxruntime": ("default",),
    "openvino": ("default", "bf16"),
    "tensorrt": ("default", "bf16", "fp16"),
}
#: The kind of device that a backend runs on; torch runs on all.
BACKEND_DEVICES = {"onnxruntime": "cpu", "openvino": "cpu", "tensorrt": "cuda"}


@dataclass(slots=True)
class LoadedModels:
    """Model instances of a service, ready to serve.

    :param instances: one per worker; those of a device share their model if ``shared_model`` is set.
    :param device: of the first instance.
    :param pools: buffer pools in use, for their counters.
    :param load_s: seconds that loading took.
    :param tally: counts what replaces the models' own operators.
    :param graphs: the graphs that the compiler received.
    :param relaid: weights that ``memory_format`` laid out anew.
    :param notes: sentences on settings without effect here, and on the model's mode.
    :param conversions: the result of each instance's conversion; empty before the first inputs.
    :param outside: batches that an engine was not built for.
    :param copy_prices: measured costs of copies to and from the device; empty before they are measured.
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
    outside: Outside = field(default_factory=Outside)
    notes: list[str] = field(default_factory=list)
    copy_prices: dict[str, float] = field(default_factory=dict)

    def distinct(self) -> list[ModelInstance]:
        """Instances with distinct models: one for all that share a model."""
        seen: dict[int, ModelInstance] = {}
        for instance in self.instances:
            seen.setdefault(id(instance.model), instance)
        return list(seen.values())

    def graphed(self) -> list[GraphedModel]:
        """Models that run as captured graphs, one per worker; empty if none was captured."""
        if all(instance.accelerator is None for instance in self.instances):
            return []  # without importing GPU code
        from latfix.runners.gpu.cuda_graphs import GraphedModel

        return [instance.model for instance in self.instances if isinstance(instance.model, GraphedModel)]

    def pool_counts(self) -> tuple[int, int]:
        """Tensors that found room in a buffer pool so far, and tensors that needed a new buffer."""
        return sum(pool.hits for pool in self.pools), sum(pool.misses for pool in self.pools)

    def settle(self) -> None:
        """Wait until everything enqueued on the devices has run, so that other threads find it done."""
        for accelerator in {
            each.accelerator.device: each.accelerator for each in self.instances if each.accelerator
        }.values():
            accelerator.synchronize()


def load_models(folder: Path, entry: str, settings: RunnerSettings) -> LoadedModels:
    """Load the workload's model for each worker and apply precision, layout, compilation and pooling.

    Workers are spread over the devices of the settings. With a shared model, there is one per device.

    A conversion to another backend needs inputs and follows in :func:`convert_models`.

    :raises RunnerError: the adapter or its model failed.
    :raises InputError: the settings contradict each other.
    """
    import torch

    started = time.perf_counter()
    torch.manual_seed(settings.seed)
    devices = place_workers(settings)
    device = devices[0]
    _check_backend(settings, device)
    _check_precision(settings, device)
    if settings.intra_op_threads:
        torch.set_num_threads(settings.intra_op_threads)
    choose_attention(settings.attention)
    loaded: LoadedModels | None = None
    models: dict[str, tuple[Workload, Any]] = {}
    for device in devices:
        if device not in models or not settings.shared_model:
            adapter = load_adapter(folder, entry)
            if isinstance(adapter, FileWorkload):
                adapter.check_batch(settings.max_batch_size)
            if loaded is None:
                loaded = LoadedModels(adapter, [], device)
                loaded.notes += filter(None, [placement_note(settings, devices)])
            with on_device(device):
                models[device] = adapter, _load_one(adapter, device, settings, loaded)
        assert loaded is not None, "the first worker makes it"
        adapter, model = models[device]
        dtype = activation_dtype(settings.precision) if settings.backend == "torch" else None
        instance = ModelInstance(adapter, model, device, dtype, adapter.collate, set())
        instance.place_on(accelerator_of(device))
        _give_buffers(instance, settings, loaded)
        instance.inference = settings.inference_mode
        if settings.compile != "off":
            instance.set_up = partial(configure_compiler, freezing=not uses_torchao(settings.precision, device))
        if settings.compile != "off" or settings.backend != "torch":
            instance.calls = Calls(tally=loaded.tally)
        loaded.instances.append(instance)
    assert loaded is not None, "settings.workers is at least 1"
    loaded.settle()
    loaded.load_s = time.perf_counter() - started
    return loaded


def convert_models(
    models: LoadedModels, batches: Sequence[Any], settings: RunnerSettings, seen: Sequence[Shapes] = ()
) -> None:
    """Convert the models to the backend of the settings. An ONNX file is served unmodified.

    :param batches: batches of the traffic's inputs, in several sizes; TensorRT chooses kernels for the last.
    :param seen: shapes of the traffic's batches; required by TensorRT.
    :raises InputError: the backend is not installed.
    :raises RunnerError: a model cannot be converted, or its outputs differ after the conversion.
    """
    from latfix.runners.backends.converted_model import convert
    from latfix.runners.model_files.served_file import serve_file, serves_file

    sources = models.adapter.folder
    for instance in models.distinct():
        model: Any
        conversion: Any
        if settings.backend == "tensorrt":
            from latfix.runners.backends.tensorrt.convert import convert as compiled_for

            with on_device(instance.device):  # engines are built and loaded on the current device
                model, conversion = compiled_for(
                    instance.model, batches, seen, settings, sources, instance.device, models.tally, models.outside
                )
        elif serves_file(instance.model):
            model, conversion = serve_file(instance.model, batches, settings, models.tally)
        else:
            model, conversion = convert(instance.model, batches, settings, sources, models.tally)
        original = instance.model
        for each in models.instances:
            if each.model is original:
                each.model = model
        models.conversions.append(conversion.to_json())
    models.settle()
    models.outside.reset()


def _give_buffers(instance: ModelInstance, settings: RunnerSettings, loaded: LoadedModels) -> None:
    """Set the buffers that the settings require: pinned ones if a device copies from them, else a pool's."""
    if settings.pinned_staging and instance.accelerator is not None:
        pool: BufferPool = (staging := Staging(instance.accelerator))
        instance.staging = staging
    elif settings.buffer_pool and pool_applies(instance.adapter):
        pool = instance.pool = BufferPool()
    else:
        return
    loaded.pools.append(pool)
    if pool_applies(instance.adapter):
        instance.collate = pool.collate


def unused_on_host(settings: RunnerSettings, device: str) -> list[str]:
    """Notes for the record on settings that need a GPU while the model is on the CPU."""
    if device != "cpu":
        return []
    names = [name for name in ("pinned_staging", "overlap", "cuda_graphs") if getattr(settings, name)]
    return [f"{name} needs a GPU: not in effect on the CPU" for name in names]


def pool_applies(adapter: Workload) -> bool:
    """True if the adapter uses the default collate, which a buffer pool can replace."""
    return type(adapter).collate is Workload.collate


def _check_backend(settings: RunnerSettings, device: str) -> None:
    backend = settings.backend
    prefix = f"[runner] backend = {backend!r}"
    if settings.precision not in _BACKEND_PRECISIONS[backend]:
        known = " or ".join(repr(precision) for precision in _BACKEND_PRECISIONS[backend])
        raise InputError(f"{prefix}: found precision = {settings.precision!r}; expected {known}")
    if backend == "torch":
        return
    if device.partition(":")[0] != BACKEND_DEVICES[backend]:
        expected = "the CPU" if BACKEND_DEVICES[backend] == "cpu" else "a CUDA device"
        raise InputError(f"{prefix}: found device {device}; expected {expected}; use backend = 'torch'")
    if backend == "tensorrt" and backend_missing(backend):
        raise InputError(f"{prefix}: {backend_missing(backend)}")
    if settings.keep_precision and settings.precision != "default":
        raise InputError(f"{prefix}: found keep_precision, which only backend = 'torch' supports; remove it")
    for name, neutral in (("compile", "off"), ("memory_format", "default"), ("attention", "default")):
        value = getattr(settings, name)
        if value != neutral:
            raise InputError(
                f"{prefix}: found {name} = {value!r}, which only backend = 'torch' supports; expected {neutral!r}"
            )


def _check_precision(settings: RunnerSettings, device: str) -> None:
    if settings.backend != "torch" or settings.precision == "default":
        return
    if reason := unsupported(settings.precision, device, device_capability(device)):
        raise InputError(f"[runner] precision = {settings.precision!r}: found device {device}; {reason}")


def load_module(adapter: Workload, device: str, notes: list[str] | None = None) -> Any:
    """The adapter's model in eval mode, or a module that calls its callable; a RunnerError if there is neither.

    :param notes: extended by a sentence if eval mode changes what the model computes.
    """
    import torch

    try:
        model = adapter.load(device)
    except (LatfixError, KeyboardInterrupt):  # the message of a model file's error is complete
        raise
    except USER_ERRORS as error:
        where = raised_at(Path(inspect.getfile(type(adapter))), error)
        todo = ""
        if isinstance(error, FileNotFoundError) and (adapter.folder / str(error.filename)).exists():
            todo = f"; it lies next to the adapter: use self.folder / {error.filename!r}"
        raised = f"{type(adapter).__name__}.load({device!r}) raised {describe(error)}{todo}"
        raise RunnerError(f"{where}: {raised}") from error
    if isinstance(model, torch.nn.Module):
        if notes is not None and (note := _on_training_mode(model)) and note not in notes:
            notes.append(note)
        with contextlib.suppress(NotImplementedError):  # a program of torch.export, whose mode is fixed
            model.eval()  # not returned: an overridden train() may return nothing
        return model
    if not callable(model):
        kind = type(model).__name__
        raise RunnerError(
            f"{type(adapter).__name__}.load returned {kind}; expected a torch.nn.Module or another callable "
            "(for a library's estimator, return its predict method)"
        )
    calling = torch.nn.Module()
    calling.forward = model
    return calling.eval()


def _on_training_mode(model: Any) -> str:
    """A sentence if layers that compute something else in training are in that mode; else empty."""
    from torch import nn

    batch_norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    for layer in model.modules():
        if layer.training and (isinstance(layer, batch_norms) or (isinstance(layer, dropouts) and layer.p > 0)):
            return (
                f"load returned the model in training mode, in which {type(layer).__name__} computes something else; "
                "it runs in eval mode here: check that your service calls model.eval()"
            )
    return ""


def _load_one(adapter: Workload, device: str, settings: RunnerSettings, loaded: LoadedModels) -> Any:
    model = load_module(adapter, device, loaded.notes)
    if settings.backend != "torch":
        return model
    if settings.precision == "int8_dynamic" and not quantizable(model, settings.precision):
        note = "precision = 'int8_dynamic' is not in effect: the model has no linear layers that it can change"
        loaded.notes += [note] if note not in loaded.notes else []
    try:
        model = in_precision(model, settings.precision, settings.keep_precision)
        if settings.memory_format == "channels_last":
            loaded.relaid += in_channels_last(model)
        if settings.compile == "off":
            return model
        if isinstance(adapter, FileWorkload) and (runtime := adapter.model.backend) != "torch.export":
            note = f"compile = {settings.compile!r} is not in effect: {runtime} runs the file"
            loaded.notes += [note] if note not in loaded.notes else []
            return model
        freezing = not uses_torchao(settings.precision, device)
        return compiled(model, loaded.tally, loaded.graphs, settings.compile, freezing=freezing)
    except _CHANGE_ERRORS as error:
        what = f"precision = {settings.precision!r}, compile = {settings.compile!r}"
        raise RunnerError(f"changing the model ({what}) raised {describe(error)}; try other values") from error
