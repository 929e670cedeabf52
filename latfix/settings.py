"""Settings of the runner and the objective: typed, validated values, made before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Precision = Literal["default", "bf16", "fp16", "int8_dynamic", "int8_weight_only", "fp8_dynamic"]
Compile = Literal["off", "dynamic", "reduce-overhead", "max-autotune"]
Backend = Literal["torch", "onnxruntime", "openvino", "tensorrt"]
MemoryFormat = Literal["default", "channels_last"]
Attention = Literal["default", "math", "flash"]
BatchOrder = Literal["arrival", "length"]
Batching = Literal["fixed", "adaptive", "continuous"]
Schedule = Literal["arrival", "shortest", "work_per_byte"]
Admission = Literal["all", "limit", "deadline"]
GarbageCollection = Literal["default", "freeze"]
Pinning = Literal["off", "workers", "locality"]
Routing = Literal["pull", "weighted"]
HugePages = Literal["default", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How the service runs. Every field is a key of ``[runner]`` in ``workload.toml`` and in a plan.

    Times are in milliseconds because people write them. Zero means "none" for limits and timeouts, and
    "the framework's own default" for ``intra_op_threads``.
    """

    device: str = "auto"
    devices: int = 1
    max_batch_size: int = 1
    batch_window_ms: float = 0.0
    workers: int = 1
    shared_model: bool = False
    prepare_threads: int = 1
    intra_op_threads: int = 0
    max_queue: int = 0
    timeout_ms: float = 0.0
    warmup_requests: int = 0
    warmup_shapes: int = 0
    seed: int = 0
    precision: Precision = "default"
    keep_precision: tuple[str, ...] = ()
    compile: Compile = "off"
    backend: Backend = "torch"
    memory_format: MemoryFormat = "default"
    attention: Attention = "default"
    inference_mode: bool = False
    batching: Batching = "fixed"
    target_ms: float = 0.0
    window_least_ms: float = 10.0
    window_most_ms: float = 100.0
    batch_order: BatchOrder = "arrival"
    batch_key: str = ""
    schedule: Schedule = "arrival"
    ageing_ms: float = 0.0
    admission: Admission = "all"
    routing: Routing = "pull"
    memory_limit_mb: int = 0
    buffer_pool: bool = False
    pinned_staging: bool = False
    overlap: bool = False
    cuda_graphs: bool = False
    reserve_mb: int = 0
    device_memory_share: float = 0.0
    gc: GarbageCollection = "default"
    pin: Pinning = "off"
    nice: int = 0
    prefault_mb: int = 0
    huge_pages: HugePages = "default"
    keep_warm_ms: float = 0.0
    lock_memory: bool = False
    hot_rows: int = 0
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # From TOML and JSON it comes as a list.
        object.__setattr__(self, "keep_precision", tuple(self.keep_precision))

    @property
    def captures(self) -> bool:
        """Whether batches on a device are to run as captured graphs."""
        return self.cuda_graphs or self.compile == "reduce-overhead"

    def with_overrides(self, overrides: Mapping[str, Any]) -> RunnerSettings:
        """These settings with some fields replaced; ``env`` is merged, not replaced."""
        values = dict(overrides)
        if "env" in values:
            values["env"] = {**self.env, **values["env"]}
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``run.json`` and for the runner's process."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["keep_precision"] = list(self.keep_precision)
        values["env"] = dict(self.env)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What the workload is meant to reach.

    :param percentile: the latency percentile that matters, above 0 and below 100.
    :param slo_ms: the limit on it in milliseconds; ``None`` where the workload states none.
    :param max_accuracy_drop: the largest loss of the score that a fix may cost, in the score's own unit.
    """

    percentile: float = 99.0
    slo_ms: float | None = None
    max_accuracy_drop: float = 0.01
