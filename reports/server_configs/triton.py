"""Triton's ``config.pbtxt``.

Fields: https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto; parameters and
accelerators: the READMEs of ``onnxruntime_backend`` and ``pytorch_backend``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.formats import Symbol
from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, by_value, gpus, is_gpu, put

_QUEUE = ("dynamic_batching", "default_queue_policy")
_ACCELERATORS = ("optimization", "execution_accelerators")
_ONNX = ("onnxruntime", "openvino", "tensorrt")
_CONVERTED = "Triton's ONNX Runtime backend takes the model as ONNX: export it yourself"
_EAGER = "only Triton's TensorRT backend (.plan files) prepares the next batch during compute"


def _size(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put(("max_batch_size",), value)
    if value > 1 and "batch_window_ms" not in settings:
        yield Put(("dynamic_batching", "max_queue_delay_microseconds"), 0)
        yield "Triton does not wait for a batch to fill: set max_queue_delay_microseconds to the workload's window"


def _window(value: float, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    yield Put(("dynamic_batching", "max_queue_delay_microseconds"), round(value * 1000))
    if "max_batch_size" not in settings:
        yield "Triton batches only with max_batch_size: add the workload's value"


def _parameter(key: str, value: str) -> Put:
    return Put(("parameters",), [{"key": key, "value": {"string_value": value}}])


def _threads(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value:
        onnx = settings.get("backend") in _ONNX
        yield _parameter("intra_op_thread_count" if onnx else "INTRA_OP_THREAD_COUNT", str(value))
        if not onnx:
            yield "for the PyTorch backend, all its models in the process; call set_num_threads in a Python backend"


def _device(value: str, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    kind = {"auto": "KIND_AUTO", "cpu": "KIND_CPU"}.get(value, "KIND_GPU")
    yield Put(("instance_group", "kind"), Symbol(kind))
    if numbers := gpus(settings):
        yield Put(("instance_group", "gpus"), numbers)


def _workers(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    devices = max(len(gpus(settings)), 1)
    yield Put(("instance_group", "count"), max(value // devices, 1))
    if devices > 1:
        yield "count is the number of instances on each GPU"


def _timeout(value: float, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value:
        yield Put((*_QUEUE, "timeout_action"), Symbol("REJECT"))
        yield Put((*_QUEUE, "default_timeout_microseconds"), round(value * 1000))
        yield Put((*_QUEUE, "allow_timeout_override"), True)
        yield "Triton's timeout ends the wait in the queue, not a running request"


def _backend(value: str, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value == "torch":
        yield Put(("backend",), "pytorch")
        return
    yield Put(("backend",), "onnxruntime")
    yield _CONVERTED
    if value == "openvino":
        yield Put((*_ACCELERATORS, "cpu_execution_accelerator"), [{"name": "openvino"}])
    if value == "tensorrt":
        options = {"precision_mode": "FP16" if settings.get("precision") == "fp16" else "FP32"}
        if settings.get("cuda_graphs"):
            options["trt_cuda_graph_enable"] = "true"
        pairs = [{"key": key, "value": text} for key, text in options.items()]
        yield Put((*_ACCELERATORS, "gpu_execution_accelerator"), [{"name": "tensorrt", "parameters": pairs}])


def _with_tensorrt(name: str, values: tuple[Any, ...]) -> Any:
    """A setting for which the TensorRT accelerator has an option, written by ``_backend``."""

    def emit(value: Any, settings: Mapping[str, Any]) -> Iterator[str]:
        covered = settings.get("backend") == "tensorrt" and value in values
        if value not in (False, "default") and not covered:
            yield f"has no counterpart in Triton here: {NO_COUNTERPART[name]}"

    return emit


def _pinned(value: bool, _settings: Mapping[str, Any]) -> Iterator[Put]:
    yield Put(("optimization", "input_pinned_memory", "enable"), value)
    yield Put(("optimization", "output_pinned_memory", "enable"), value)


TABLE: Table = {
    **NO_COUNTERPART,
    "device": _device,
    "devices": lambda value, settings: [] if is_gpu(settings) or value == 1 else ["it has no effect without device"],
    "max_batch_size": _size,
    "batch_window_ms": _window,
    "workers": _workers,
    "intra_op_threads": _threads,
    "max_queue": put(*_QUEUE, "max_queue_size"),
    "timeout_ms": _timeout,
    "warmup_requests": "add model_warmup with the inputs of your model",
    "warmup_shapes": "add model_warmup with the inputs of your model",
    "precision": _with_tensorrt("precision", ("fp16",)),
    "backend": _backend,
    "inference_mode": lambda value, _settings: [_parameter("INFERENCE_MODE", "true" if value else "false")],
    "batching": by_value(
        {
            "adaptive": ["Triton's delay is fixed: choose max_queue_delay_microseconds within the window's range"],
            "continuous": ["needs sequence_batching { iterative_sequence: true } and a backend made for it"],
        }
    ),
    "ageing_ms": "dynamic_batching has priority_levels, but waiting requests do not rise in priority",
    "pinned_staging": _pinned,
    "overlap": by_value({True: [Put(("optimization", "eager_batching"), True), _EAGER]}),
    "cuda_graphs": _with_tensorrt("cuda_graphs", (True,)),
}
