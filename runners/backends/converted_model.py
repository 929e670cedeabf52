"""``backend``: the adapter's model run by ONNX Runtime or OpenVINO, checked against the original's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from latfix.errors import InputError, RunnerError
from latfix.runners.answers.output_distance import deviation_of
from latfix.runners.backends.onnx_export import Exported, export
from latfix.runners.backends.onnx_runtimes import OnnxGraph, OnnxRuntimeGraph, OpenVinoGraph, onnxruntime_session
from latfix.runners.backends.replaced_model import ReplacedModel
from latfix.runners.backends.requirements import backend_missing
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.calls.tensor_tree import flatten
from latfix.settings import RunnerSettings

Arrays = list[Any]

#: Another runtime fuses and orders operators otherwise: behind many layers a single number is off by parts of a
#: percent. Whether answers are as good all the same is for the accuracy to tell; something else is refused.
_FAR = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """How a conversion went.

    :param backend: name and version.
    :param seconds: exporting, or finding it in the cache, and loading it.
    :param batches: different batches on which the answers were compared.
    :param deviation: the largest among them, as a share of the original's largest number.
    :param precisions: what the backend's operators compute in, where it says so.
    :param file: the model file that the backend runs as it is; empty where the model was exported for it.
    """

    backend: str
    seconds: float
    cached: bool
    batches: int
    deviation: float
    threads: int
    precisions: dict[str, int]
    file: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the evidence."""
        return asdict(self)


def convert(
    model: torch.nn.Module, batches: Sequence[Any], settings: RunnerSettings, sources: Path, tally: Tally
) -> tuple[ReplacedModel, Conversion]:
    """Convert a model as the settings say, and compare its answers with the original's on every batch.

    :param batches: several sizes of what the service will run.
    :param sources: the folder of the code that built the model, for the cache's key.
    :param tally: counts the runs.
    :raises InputError: the backend is not installed.
    :raises RunnerError: it cannot be exported or loaded, or answers something else.
    """
    missing = backend_missing(settings.backend)
    if missing:
        raise InputError(f"backend = {settings.backend!r}: {missing}")
    try:
        return _convert(model, batches, settings, sources, tally, fresh=False)
    except _FromCache:
        # What lies in the cache is of a model with the same weights and other code: export this one.
        return _convert(model, batches, settings, sources, tally, fresh=True)


class _FromCache(Exception):
    """A file from the cache does not do what the model does."""


def _convert(
    model: torch.nn.Module,
    batches: Sequence[Any],
    settings: RunnerSettings,
    sources: Path,
    tally: Tally,
    *,
    fresh: bool,
) -> tuple[ReplacedModel, Conversion]:
    started = time.perf_counter()
    exported = export(model, batches, sources, fresh=fresh)
    threads = settings.intra_op_threads or torch.get_num_threads()
    try:
        with torch.no_grad():
            expected = [flatten(call_model(model, batch)) for batch in batches]
        graph = load_graph(exported, threads, settings)
        converted = _stand_in(model, exported, tally.counting(graph.run), batches[0], expected[0][1])
        deviation = largest_deviation([tensors for tensors, _ in expected], converted, batches)
    except KeyboardInterrupt:
        raise
    except USER_ERRORS as error:
        if exported.cached:
            raise _FromCache from error
        raise RunnerError(f"the model as converted for {settings.backend} does not run: {describe(error)}") from error
    if too_far(deviation, settings):
        if exported.cached:
            raise _FromCache
        raise other_answers(f"the model as converted for {settings.backend}", deviation, len(batches))
    return converted, Conversion(
        backend=f"{settings.backend} {graph.version}",
        seconds=round(time.perf_counter() - started, 3),
        cached=exported.cached,
        batches=len(batches),
        deviation=float(deviation),
        threads=threads,
        precisions=graph.precisions(),
    )


def largest_deviation(expected: Sequence[Sequence[torch.Tensor]], model: Any, batches: Sequence[Any]) -> float:
    """Over all batches, how far a model's answers are from those expected, as a share of the largest number."""
    return max(
        deviation_of(tensors, flatten(call_model(model, batch))[0])
        for tensors, batch in zip(expected, batches, strict=True)
    )


def too_far(deviation: float, settings: RunnerSettings) -> bool:
    """True if answers so far from the original's are those of something else.

    Whoever asked for bfloat16 gets its error, and has it judged by the accuracy.
    """
    return deviation > _FAR and settings.precision == "default"


def other_answers(what: str, deviation: float, batches: int, limit: float = _FAR) -> RunnerError:
    """The refusal of ``what`` for its answers."""
    return RunnerError(
        f"{what} answers something else: the largest deviation over {batches} batches is {deviation:.2g} of the"
        f" largest number, limit {limit:g}"
    )


def _stand_in(
    model: torch.nn.Module, exported: Exported, run: Callable[[Arrays], Arrays], example: Any, outputs: Any
) -> ReplacedModel:
    """Stands in for the model where sizes differ in no dimension that never varied in the traffic."""

    def fits(tensors: Sequence[torch.Tensor]) -> bool:
        return all(
            len(tensor.shape) == len(of)
            and all(fixed is None or size == fixed for size, fixed in zip(tensor.shape, of, strict=True))
            for tensor, of in zip(tensors, exported.sizes, strict=True)
        )

    def torch_run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in run([tensor.numpy() for tensor in tensors])]

    return ReplacedModel(model, example, outputs, fits=fits, run=torch_run)


def load_graph(exported: Exported, threads: int, settings: RunnerSettings) -> OnnxGraph:
    """An exported model in the runtime that the settings ask for."""
    if settings.backend == "onnxruntime":
        return OnnxRuntimeGraph(onnxruntime_session(exported.file, threads), exported.inputs)
    # What it compiles lies beside the file, and goes with it.
    cache = exported.file.parent / "openvino"
    return OpenVinoGraph(
        exported.file, exported.inputs, threads=threads, half=settings.precision == "bf16", cache=cache
    )
