"""Settings of the runner and the objective: allowed values, default and meaning, declared once."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from latfix.files.json_documents import Document

Precision = Literal["default", "tf32", "bf16", "fp16", "int8_dynamic", "int8_weight_only", "fp8_dynamic"]
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


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values of a setting.

    :param expected: in words, to follow "expected" in a message.
    :param check: returns True for an allowed value.
    :param choices: the allowed texts, if the setting is an enumeration.
    :param least: the smallest number, and ``most`` the largest.
    :param is_float: whole numbers are accepted and converted.
    """

    expected: str
    check: Callable[[Any], bool]
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = math.inf
    is_float: bool = False


def whole(least: int, most: int = 2**31 - 1) -> Rule:
    """A whole number within inclusive limits."""
    return Rule(
        f"a whole number from {least} to {most}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        least=least,
        most=most,
    )


def number(least: float, most: float = math.inf, *, open_ends: bool = False) -> Rule:
    """A finite number within limits, which are exclusive if ``open_ends``."""
    if open_ends:
        expected = f"a number above {least:g}" + ("" if math.isinf(most) else f" and below {most:g}")
    else:
        expected = f"a number of at least {least:g}" + ("" if math.isinf(most) else f", at most {most:g}")

    def check(value: object) -> bool:
        # The comparison with the largest float refuses infinities, NaN, and whole numbers that no float holds.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            return False
        return least < value < most if open_ends else least <= value <= most

    return Rule(expected, check, least=least, most=most, is_float=True)


def _one_of(choices: tuple[str, ...]) -> Rule:
    expected = "one of " + ", ".join(map(repr, choices))
    return Rule(expected, lambda value: isinstance(value, str) and value in choices, choices)


def _is_environment(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _ENV_NAME.fullmatch(name) and isinstance(text, str) and "\0" not in text
        for name, text in value.items()
    )


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICE = re.compile(r"auto|cpu|cuda|cuda:(0|[1-9][0-9]?)")
_MS_OF_A_MINUTE, _MS_OF_AN_HOUR, _MS_OF_A_DAY = 60_000, 3_600_000, 86_400_000

PERCENTILE = Rule(
    "a percentile from 1 to below 100, such as 99",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 100,
    least=1,
    most=100,
    is_float=True,
)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
DEVICE = Rule(
    "'auto', 'cpu', 'cuda' or 'cuda:N'",
    lambda value: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
)
FEATURE = Rule(
    "the name of a feature, or an empty text for the inputs' elements",
    lambda value: isinstance(value, str) and (not value or value.isprintable()),
)
MODULES = Rule(
    'a list of module names, as in ["encoder.layers.0.linear1"]',
    lambda value: isinstance(value, list) and all(isinstance(name, str) and name.isprintable() for name in value),
)
ENVIRONMENT = Rule('a table of texts by variable name, as in { OMP_WAIT_POLICY = "PASSIVE" }', _is_environment)


@cache
def rules_of(kind: type) -> Mapping[str, Rule]:
    """The rule of each field of a settings dataclass: the annotated one, or that of its type."""
    rules, hints = {}, get_type_hints(kind, include_extras=True)
    for name, hint in ((one.name, hints[one.name]) for one in fields(kind)):
        if get_origin(hint) is Annotated:
            rules[name] = next(each for each in hint.__metadata__ if isinstance(each, Rule))
        else:
            rules[name] = FLAG if hint is bool else _one_of(get_args(hint))
    return rules


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings(Document):
    """How the service runs. Every field is a key of ``[runner]`` in ``workload.toml`` and in a plan.

    Times are in milliseconds because people write them. Zero means "none" for limits and timeouts.
    """

    device: Annotated[str, DEVICE] = "auto"  # the first CUDA device if there is one, otherwise the CPU
    devices: Annotated[int, whole(0, 256)] = 1  # GPUs that workers are spread over, from `device` on; 0 is all
    max_batch_size: Annotated[int, whole(1, 4096)] = 1  # most requests in one call of the model
    batch_window_ms: Annotated[float, number(0, _MS_OF_A_MINUTE)] = 0.0  # how long a batch waits to fill
    workers: Annotated[int, whole(1, 256)] = 1  # threads that run the model
    shared_model: bool = False  # all workers of a device share one instance
    prepare_threads: Annotated[int, whole(1, 256)] = 1
    intra_op_threads: Annotated[int, whole(0, 1024)] = 0  # of one operator; 0 is the framework's default
    max_queue: Annotated[int, whole(0)] = 0  # with this many requests in the service, a new one is shed
    timeout_ms: Annotated[float, number(0, _MS_OF_A_DAY)] = 0.0  # deadline of requests that carry none
    hang_limit_ms: Annotated[float, number(0, _MS_OF_A_DAY)] = 60_000.0  # a batch beyond this ends the replay
    warmup_requests: Annotated[int, whole(0, 1_000_000)] = 0  # sent one by one before the clock starts
    warmup_shapes: Annotated[int, whole(0, 1_000_000)] = 0  # input sizes run before the first request
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0  # of the framework's generator
    precision: Precision = "default"
    keep_precision: Annotated[tuple[str, ...], MODULES] = ()  # modules that keep their precision
    compile: Compile = "off"
    backend: Backend = "torch"
    memory_format: MemoryFormat = "default"
    attention: Attention = "default"
    inference_mode: bool = False  # batches run in torch.inference_mode
    flush_denormal: bool = False  # denormal numbers are treated as zero
    batching: Batching = "fixed"
    target_ms: Annotated[float, number(0, _MS_OF_A_DAY)] = 0.0  # latency that adaptive batching aims at
    window_least_ms: Annotated[float, number(0, _MS_OF_A_MINUTE)] = 10.0  # of adaptive batching
    window_most_ms: Annotated[float, number(0, _MS_OF_A_MINUTE)] = 100.0
    batch_order: BatchOrder = "arrival"
    batch_key: Annotated[str, FEATURE] = ""  # the feature that is the length for batches by length
    schedule: Schedule = "arrival"
    ageing_ms: Annotated[float, number(0, _MS_OF_A_DAY)] = 0.0  # a request gains a class after waiting this long
    admission: Admission = "all"
    routing: Routing = "pull"
    memory_limit_mb: Annotated[int, whole(0)] = 0  # predicted memory of a batch
    buffer_pool: bool = False  # batches and answers are written into reused buffers
    pinned_staging: bool = False  # on a GPU: copies go through pinned buffers
    overlap: bool = False  # on a GPU: the next batch is copied in while the current one computes
    cuda_graphs: bool = False  # captured graphs, one for each bucket of shapes
    reserve_mb: Annotated[int, whole(0)] = 0  # MiB that each worker reserves in torch's allocator at the start
    device_memory_share: Annotated[float, number(0, 1)] = 0.0  # of a CUDA device, for this process
    gc: GarbageCollection = "default"
    pin: Pinning = "off"
    nice: Annotated[int, whole(-20, 19)] = 0  # priority of the process
    prefault_mb: Annotated[int, whole(0)] = 0  # heap touched before the first request
    huge_pages: HugePages = "default"
    keep_warm_ms: Annotated[float, number(0, _MS_OF_AN_HOUR)] = 0.0  # how often an idle worker runs a small input
    lock_memory: bool = False  # nothing is paged out
    hot_rows: Annotated[int, whole(0)] = 0  # rows of embedding tables read while idle
    env: Annotated[Mapping[str, str], ENVIRONMENT] = field(default_factory=dict)  # of the service's process

    def __post_init__(self) -> None:
        # TOML and JSON provide a list.
        object.__setattr__(self, "keep_precision", tuple(self.keep_precision))

    @property
    def places(self) -> int:
        """Batches that a worker serves at the same time: with continuous batching, one for each request in a step."""
        return self.max_batch_size if self.batching == "continuous" else 1

    @property
    def captures(self) -> bool:
        """True if batches on a device run as captured graphs."""
        return self.cuda_graphs or self.compile == "reduce-overhead"

    def with_overrides(self, overrides: Mapping[str, Any]) -> RunnerSettings:
        """These settings with some fields replaced; ``env`` is merged."""
        values = dict(overrides)
        if "env" in values:
            values["env"] = {**self.env, **values["env"]}
        return replace(self, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Document):
    """The workload's goal.

    :param percentile: the latency percentile that matters.
    :param slo_ms: the limit on it in milliseconds; ``None`` if the workload states none.
    :param max_accuracy_drop: the largest loss of score that a fix may cost, in the score's own unit.
    """

    percentile: Annotated[float, PERCENTILE] = 99.0
    slo_ms: Annotated[float | None, number(0, open_ends=True)] = None
    max_accuracy_drop: Annotated[float, number(0)] = 0.01
