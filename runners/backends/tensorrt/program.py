"""A model compiled by torch-tensorrt: options of the compiler, the file in the cache, and turns on an engine."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.formatting import counted
from latfix.runners.backends.replaced_model import export_program, export_reason, quiet, raised_as, root_reason
from latfix.runners.backends.tensorrt.partition import Partition, engine_sizes, partition_of
from latfix.runners.backends.tensorrt.shape_profile import ShapeProfile
from latfix.runners.calls.model_call import USER_ERRORS
from latfix.runners.calls.tensor_tree import flatten
from latfix.settings import Precision

#: The types of lower precisions.
_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PROGRAM, _FACTS, _ENGINES = "program.pt2", "facts.json", "engines"

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled model.

    :param run: maps the flattened inputs to the flattened outputs.
    :param kept: what could not be written to the cache, and why; empty if all was.
    """

    run: Run
    partition: Partition
    kept: str = ""


def build(
    package: ModuleType,
    model: torch.nn.Module,
    example: Any,
    profile: ShapeProfile,
    *,
    device: str,
    precision: Precision,
    place: Path,
) -> Program:
    """Compile a model for a profile and write it to the cache.

    :param example: a batch of the tuned sizes, on the device.
    :param place: its folder in the cache; engines of an earlier build there are used.
    :raises RunnerError: the model cannot be exported or compiled, or TensorRT takes none of its operators.
    """
    exported = _exported(model, example, profile)
    place.mkdir(parents=True, exist_ok=True)
    (place / _PROGRAM).unlink(missing_ok=True)
    engines, notes = place / _ENGINES, list[str]()
    try:
        graph, sizes = _compiled(package, exported, profile, device, precision, engines)
    except (KeyboardInterrupt, RunnerError):
        raise
    except USER_ERRORS as error:
        # The cached engines may be damaged, and not every engine can be refitted.
        notes.append(f"its engines are not cached ({root_reason(error)})")
        shutil.rmtree(engines, ignore_errors=True)
        exported = _exported(model, example, profile)  # the compiler may have changed the first one
        with raised_as("the model cannot be compiled for TensorRT", root_reason):
            graph, sizes = _compiled(package, exported, profile, device, precision, None)
    partition = partition_of(graph, sizes)
    if not partition.engines:
        names = ", ".join(sorted(partition.outside)[:6])
        raise RunnerError(
            f"TensorRT takes none of the model's {sum(partition.outside.values())} operators ({names}); use "
            "backend = 'torch'"
        )
    notes += filter(None, [_saved(package, graph, partition, place)])
    return Program(run=_runner(graph), partition=partition, kept="; ".join(notes))


def _exported(model: torch.nn.Module, example: Any, profile: ShapeProfile) -> Any:
    varying = torch.export.Dim.DYNAMIC
    dynamic = [
        {d: varying(min=extent.least, max=extent.most) for d, extent in enumerate(extents) if extent.varies} or None
        for extents in profile.inputs
    ]
    with raised_as("the model cannot be exported for TensorRT", export_reason):
        return export_program(model, example, dynamic)


def _compiled(
    package: ModuleType, exported: Any, profile: ShapeProfile, device: str, precision: Precision, engines: Path | None
) -> tuple[Any, list[int]]:
    inputs = []
    for extents, example in zip(profile.inputs, exported.example_inputs[0], strict=True):
        ends = {"min_shape": "least", "opt_shape": "tuned", "max_shape": "most"}
        shapes = {key: tuple(getattr(extent, end) for extent in extents) for key, end in ends.items()}
        fixed = shapes["min_shape"] == shapes["max_shape"]
        inputs.append(package.Input(**{"shape": shapes["max_shape"]} if fixed else shapes, dtype=example.dtype))
    compiler = package.dynamo.compile
    options = compile_options(compiler, precision, engines, str(package.__version__))
    with quiet(), engine_sizes() as sizes, torch.no_grad():
        graph = compiler(exported, inputs=inputs, device=torch.device(device), **options)
    return graph, sizes


def _saved(package: ModuleType, graph: Any, partition: Partition, place: Path) -> str:
    """Write a program to the cache; returns the reason if that fails, otherwise an empty string."""
    made = place / f"{_PROGRAM}.{os.getpid()}.new"
    try:
        with quiet():
            # The graph has its own shapes: it need not be traced, and so run, again.
            package.save(graph, str(made), output_format="exported_program", retrace=False)
        (place / _FACTS).write_text(json.dumps(partition.to_json()), encoding="utf-8")
        made.replace(place / _PROGRAM)  # whole or not at all
    except KeyboardInterrupt:
        raise
    except USER_ERRORS as error:
        made.unlink(missing_ok=True)
        return f"it cannot be saved ({root_reason(error)}) and is compiled again at each start"
    return ""


def load(package: ModuleType, place: Path) -> Program | None:
    """The program of an earlier process; ``None`` if there is none.

    :raises RunnerError: the file is damaged, or written by an incompatible version.
    """
    if not (place / _PROGRAM).is_file():
        return None
    try:
        partition = Partition.from_json(json.loads((place / _FACTS).read_text(encoding="utf-8")))
        with quiet():
            graph = package.load(str(place / _PROGRAM)).module()
        found = partition_of(graph).engines
    except KeyboardInterrupt:
        raise
    except USER_ERRORS as error:
        raise RunnerError(f"the cached program does not load ({root_reason(error)})") from error
    if found != partition.engines:
        raise RunnerError(f"the cached program has {counted(found, 'engine')}; expected {partition.engines}")
    return Program(run=_runner(graph), partition=partition)


def discard(place: Path) -> None:
    """Remove a program; its engines stay."""
    (place / _PROGRAM).unlink(missing_ok=True)


def _runner(graph: Any) -> Run:
    return lambda tensors: flatten(graph(*tensors))[0]


def compile_options(
    compiler: Callable[..., Any], precision: Precision, engines: Path | None, version: str
) -> dict[str, Any]:
    """Options of ``torch_tensorrt.dynamo.compile``, without those that this version lacks.

    The compiler ignores unknown options, so an option of another version would silently do nothing.

    :param precision: ``default``, ``bf16`` or ``fp16``.
    :param engines: folder for built engines; ``None`` for no cache.
    :param version: torch-tensorrt's version, for the message.
    :raises RunnerError: this version has no option for that precision.
    """
    known = set(inspect.signature(compiler).parameters)
    wanted: dict[str, Any] = {
        # The compiler's default is TF32, which torch uses for matrices only on request.
        "disable_tf32": not tf32_allowed(),
    }
    if engines is not None:
        wanted |= {
            # Only refittable engines are cached. Refitting identical weights keeps all optimizations.
            "immutable_weights": False,
            "refit_identical_engine_weights": True,
            "cache_built_engines": True,
            "reuse_cached_engines": True,
            "engine_cache_dir": str(engines),
        }
    return {
        **{name: value for name, value in wanted.items() if name in known},
        **_precision_options(known, precision, version),
    }


def tf32_allowed() -> bool:
    """True if torch may round the inputs of matrix products to TF32."""
    return torch.get_float32_matmul_precision() != "highest"


def _precision_options(known: set[str], precision: Precision, version: str) -> dict[str, Any]:
    if precision == "default":
        return {}
    low = _LOW[precision]
    if {"enable_autocast", "autocast_low_precision_type"} <= known:
        # The model is unmodified; the compiler keeps operators that lose too much in float32.
        return {"enable_autocast": True, "autocast_low_precision_type": low}
    if "enabled_precisions" in known:
        typing = {"use_explicit_typing": False} if "use_explicit_typing" in known else {}
        return {"enabled_precisions": {torch.float32, low}, **typing}
    raise RunnerError(
        f"precision = {precision!r}: torch_tensorrt {version} has no option for it (neither enable_autocast nor "
        "enabled_precisions); use precision = 'default'"
    )


class StreamTurn:
    """A lock that also orders work on the device: each holder's stream waits for the work of the previous holder.

    An engine's execution context has one scratch memory. Two workers that share a model, or a worker and the thread
    that warmed it up, use separate streams, which the device may run at the same time.

    :param device: a torch device string; on the CPU it is a plain lock.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._last: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._last is not None:
            stream, event = self._last
            now = torch.cuda.current_stream(self._device)
            if now != stream:
                now.wait_event(event)

    def __exit__(self, *_: object) -> None:
        try:
            if self._device.startswith("cuda"):
                stream = torch.cuda.current_stream(self._device)
                self._last = (stream, stream.record_event())
        finally:
            self._lock.release()
