"""``backend``: the adapter's model run by ONNX Runtime or OpenVINO, its answers checked against the original's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.runners.answers.distance_bounds import deviation_of
from latfix.runners.backends.onnx_export import Exported, export
from latfix.runners.backends.onnx_runtimes import OnnxGraph, OnnxRuntimeGraph, OpenVinoGraph, onnxruntime_session
from latfix.runners.backends.replaced_model import ReplacedModel, answers_to
from latfix.runners.backends.requirements import require_backend
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import USER_ERRORS, call_on_copy, describe
from latfix.runners.calls.tensor_tree import flatten
from latfix.settings import RunnerSettings

Arrays = list[Any]

#: Largest accepted deviation. Another runtime fuses and orders operators differently, so after many layers a number
#: may be off by a fraction of a percent. Accuracy is judged elsewhere; a larger deviation means a wrong model.
_FAR = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Evidence of a conversion.

    :param backend: name and version.
    :param seconds: export or cache look-up, and loading.
    :param batches: batches on which answers were compared.
    :param deviation: the largest deviation, as a share of the original's largest number.
    :param precisions: number of operators by compute type, if the backend reports it.
    :param file: the model file that the backend runs unmodified; empty if the model was exported.
    :param in_half: the model's own weights are in 16 bits.
    """

    backend: str
    seconds: float
    cached: bool
    batches: int
    deviation: float
    threads: int
    precisions: dict[str, int]
    file: str = ""
    in_half: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the evidence."""
        return asdict(self)


def convert(
    model: torch.nn.Module, batches: Sequence[Any], settings: RunnerSettings, sources: Path, tally: Tally
) -> tuple[ReplacedModel, Conversion]:
    """Convert a model for ``settings.backend`` and compare its answers with the original's on every batch.

    :param batches: batches of several sizes that the service will run.
    :param sources: the folder of the code that built the model, for the cache's key.
    :param tally: counts the runs.
    :raises InputError: the backend is not installed.
    :raises RunnerError: the model cannot be exported or loaded, or its answers differ.
    """
    require_backend(settings.backend)
    try:
        return _convert(model, batches, settings, sources, tally, fresh=False)
    except _StaleCache:
        # The cached file is of a model with the same weights but other code.
        return _convert(model, batches, settings, sources, tally, fresh=True)


class _StaleCache(Exception):
    """A cached file does not run, or its answers differ from the model's."""


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
    expected, outputs = answers_to(model, batches)
    in_half = any(weight.dtype in (torch.bfloat16, torch.float16) for weight in model.parameters())
    exported = export(model, batches, sources, fresh=fresh)
    threads = settings.intra_op_threads or torch.get_num_threads()
    try:
        graph = load_graph(exported, threads, settings)
        dtypes = [tensor.dtype for tensor in expected[0]]
        converted = _replacement(model, exported, tally.counting(graph.run), batches[0], outputs, dtypes)
        deviation = largest_deviation(expected, converted, batches)
    except KeyboardInterrupt:
        raise
    except USER_ERRORS as error:
        if exported.cached:
            raise _StaleCache from error
        raise RunnerError(f"the model converted for {settings.backend} does not run: {describe(error)}") from error
    if too_far(deviation, half=settings.precision == "bf16" or in_half):
        if exported.cached:
            raise _StaleCache
        raise other_answers(f"the model converted for {settings.backend}", deviation, len(batches))
    return converted, Conversion(
        backend=f"{settings.backend} {graph.version}",
        seconds=round(time.perf_counter() - started, 3),
        cached=exported.cached,
        batches=len(batches),
        deviation=float(deviation),
        threads=threads,
        precisions=graph.precisions(),
        in_half=in_half,
    )


def largest_deviation(expected: Sequence[Sequence[torch.Tensor]], model: Any, batches: Sequence[Any]) -> float:
    """The largest deviation of a model's answers over all batches, as a share of the largest number."""
    return max(
        deviation_of(tensors, flatten(call_on_copy(model, batch))[0])
        for tensors, batch in zip(expected, batches, strict=True)
    )


def too_far(deviation: float, *, half: bool) -> bool:
    """True if the deviation is too large.

    :param half: one of the models computes in 16 bits: its rounding is judged by accuracy.
    """
    return deviation > _FAR and not half


def other_answers(what: str, deviation: float, batches: int, limit: float = _FAR) -> RunnerError:
    """The error for a model whose answers differ."""
    return RunnerError(
        f"{what} gives other answers than the original: the largest deviation over {batches} batches is "
        f"{deviation:.2g} of the largest number; expected at most {limit:g}"
    )


def _replacement(
    model: torch.nn.Module,
    exported: Exported,
    run: Callable[[Arrays], Arrays],
    example: Any,
    outputs: Any,
    dtypes: Sequence[torch.dtype],
) -> ReplacedModel:
    """Replaces the model for batches whose fixed dimensions have the sizes seen in the traffic."""

    def fits(tensors: Sequence[torch.Tensor]) -> bool:
        return all(
            len(tensor.shape) == len(sizes)
            and all(fixed is None or size == fixed for size, fixed in zip(tensor.shape, sizes, strict=True))
            for tensor, sizes in zip(tensors, exported.sizes, strict=True)
        )

    def torch_run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        arrays = run([tensor.numpy() for tensor in tensors])
        return [torch.from_numpy(array).to(dtype) for array, dtype in zip(arrays, dtypes, strict=True)]

    return ReplacedModel(model, example, outputs, fits=fits, run=torch_run)


def load_graph(exported: Exported, threads: int, settings: RunnerSettings) -> OnnxGraph:
    """An exported model, loaded in the runtime of the settings."""
    if settings.backend == "onnxruntime":
        return OnnxRuntimeGraph(onnxruntime_session(exported.file, threads), exported.inputs)
    # OpenVINO's own cache is in the same folder and is evicted with the file.
    cache = exported.file.parent / "openvino"
    return OpenVinoGraph(
        exported.file, exported.inputs, threads=threads, half=settings.precision == "bf16", cache=cache
    )
