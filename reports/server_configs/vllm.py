"""The file of ``vllm serve --config``: long names of its arguments (https://docs.vllm.ai, Engine Arguments)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, by_value, gpus, put

_BY_DEFAULT = "vLLM does so by default"
_STEP_BY_STEP = "vLLM batches at each step, without a window"


def _precision(value: str, _settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if value in ("bf16", "fp16"):
        yield Put(("dtype",), "bfloat16" if value == "bf16" else "float16")
    elif value == "fp8_dynamic":
        yield Put(("quantization",), "fp8")
    elif value == "tf32":
        yield "vLLM serves in 16 bits by default, which is faster"
    elif value != "default":
        yield f"vLLM needs a quantized checkpoint: {NO_COUNTERPART['precision']}"


def _workers(value: int, settings: Mapping[str, Any]) -> Iterator[Put | str]:
    if len(gpus(settings)) > 1:
        yield Put(("data-parallel-size",), len(gpus(settings)))
    elif value > 1:
        yield "one engine serves all requests in one batch: start several servers if you need more"


def _device(value: str, settings: Mapping[str, Any]) -> Iterator[str]:
    if value == "cpu":
        yield "install the CPU build of vLLM; there is no argument for it"
    if gpus(settings):
        yield f"start the server with CUDA_VISIBLE_DEVICES={','.join(map(str, gpus(settings)))}"


TABLE: Table = {
    **NO_COUNTERPART,
    "device": _device,
    "devices": lambda _value, settings: _workers(1, settings),
    "max_batch_size": put("max-num-seqs"),
    "batch_window_ms": _STEP_BY_STEP,
    "workers": _workers,
    "seed": put("seed"),
    "precision": _precision,
    "compile": by_value({each: [_BY_DEFAULT] for each in ("dynamic", "reduce-overhead", "max-autotune")}),
    "backend": by_value({each: ["vLLM runs models in torch"] for each in ("onnxruntime", "openvino", "tensorrt")}),
    "attention": "see --attention-backend of your version",
    "inference_mode": by_value({True: [_BY_DEFAULT]}),
    "batching": by_value({"continuous": [_BY_DEFAULT], "adaptive": [_STEP_BY_STEP]}),
    "ageing_ms": "scheduling-policy: priority serves classes, but waiting requests do not rise in priority",
    "cuda_graphs": by_value({True: [_BY_DEFAULT]}),
    "memory_limit_mb": "max-num-batched-tokens limits a step by tokens",
    "reserve_mb": "vLLM reserves its cache at start-up",
    "device_memory_share": lambda value, _settings: [Put(("gpu-memory-utilization",), value)] if value else [],
}
