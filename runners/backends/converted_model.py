"""``backend``: the adapter's model run by ONNX Runtime or OpenVINO, checked against the original's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from latfix.errors import InputError, RunnerError
from latfix.runners.backends.onnx_export import Exported, export
from latfix.runners.backends.openvino_graph import OpenVinoGraph
from latfix.runners.backends.requirements import backend_missing
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import USER_ERRORS, as_called, call_model, describe, in_order
from latfix.runners.calls.output_deviation import MOST_DEVIATION, deviation_of
from latfix.runners.calls.tensor_tree import flatten, unflatten
from latfix.settings import RunnerSettings

Arrays = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """How a conversion went.

    :param backend: name and version.
    :param seconds: exporting, or finding it in the cache, and loading it; ``export_s`` is the first part.
    :param batches: different batches on which the answers were compared.
    :param deviation: the largest among them, as a share of the original's largest number.
    :param varying: dimensions that may differ from batch to batch, of all inputs.
    :param precisions: what the backend's operators compute in, where it says so.
    """

    backend: str
    seconds: float
    export_s: float
    cached: bool
    batches: int
    deviation: float
    varying: int
    threads: int
    precisions: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the evidence."""
        return asdict(self)


class ConvertedModel(torch.nn.Module):
    """Stands in for the adapter's model: the same inputs, the same structure of outputs.

    A batch that the converted model was not made for (a dimension that never varied in the traffic, other names, or
    the same in another order) is run by the original, and not counted.

    :param run: runs arrays in the order of the flattened inputs.
    :param example: a batch that the model was converted with.
    """

    def __init__(
        self,
        original: torch.nn.Module,
        exported: Exported,
        run: Callable[[Arrays], Arrays],
        example: Any,
        outputs: Any,
    ) -> None:
        super().__init__()
        # Not as a submodule: its parameters are not what runs.
        self._original = (original,)
        self._sizes = exported.sizes
        self._run = run
        self._inputs = in_order(flatten(as_called(example))[1])
        self._outputs = outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original would return."""
        tensors = self._tensors(kwargs if kwargs else args)
        if tensors is None:
            return self._original[0](*args, **kwargs)
        found = self._run([tensor.detach().contiguous().numpy() for tensor in tensors])
        return unflatten(self._outputs, [torch.from_numpy(array) for array in found])

    def _tensors(self, inputs: Any) -> list[torch.Tensor] | None:
        """The inputs in the order of the file's; ``None`` where it was not made for them."""
        try:
            tensors, names = flatten(inputs)
        except TypeError:  # something that is no tensor
            return None
        if in_order(names) != self._inputs:
            return None
        fitting = all(_fits(tensor.shape, of) for tensor, of in zip(tensors, self._sizes, strict=True))
        return tensors if fitting else None


def _fits(shape: Sequence[int], sizes: Sequence[int | None]) -> bool:
    if len(shape) != len(sizes):
        return False
    return all(fixed is None or size == fixed for size, fixed in zip(shape, sizes, strict=True))


def convert(
    model: torch.nn.Module, batches: Sequence[Any], settings: RunnerSettings, sources: Path, tally: Tally
) -> tuple[ConvertedModel, Conversion]:
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
) -> tuple[ConvertedModel, Conversion]:
    started = time.perf_counter()
    exported = export(model, batches, sources, fresh=fresh)
    threads = settings.intra_op_threads or torch.get_num_threads()
    try:
        with torch.no_grad():
            expected = [flatten(call_model(model, batch)) for batch in batches]
        load = _LOADERS[settings.backend]
        run, version, precisions = load(exported, threads, settings)
        converted = ConvertedModel(model, exported, tally.counting(run), batches[0], expected[0][1])
        deviation = max(
            deviation_of(tensors, flatten(call_model(converted, batch))[0])
            for (tensors, _), batch in zip(expected, batches, strict=True)
        )
    except USER_ERRORS as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if exported.cached:
            raise _FromCache from error
        raise RunnerError(f"the model as converted for {settings.backend} does not run: {describe(error)}") from error
    # Whoever asked for bfloat16 gets its error, and has it judged by the accuracy.
    if deviation > MOST_DEVIATION and settings.precision == "default":
        if exported.cached:
            raise _FromCache
        raise RunnerError(
            f"the model as converted for {settings.backend} answers something else: the largest deviation over"
            f" {len(batches)} batches is {deviation:.2g} of the largest number, limit {MOST_DEVIATION:g}"
        )
    return converted, Conversion(
        backend=f"{settings.backend} {version}",
        seconds=round(time.perf_counter() - started, 3),
        export_s=round(exported.seconds, 3),
        cached=exported.cached,
        batches=len(batches),
        deviation=float(deviation),
        varying=sum(size is None for of in exported.sizes for size in of),
        threads=threads,
        precisions=precisions,
    )


Loaded = tuple[Callable[[Arrays], Arrays], str, dict[str, int]]


def _load_onnxruntime(exported: Exported, threads: int, settings: RunnerSettings) -> Loaded:
    del settings
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Threads that spin while they wait take the core from prepare threads and from the other workers.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(exported.file), options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}
    outputs = [each.name for each in session.get_outputs()]

    def run(arrays: Arrays) -> Arrays:
        feed = {name: array for name, array in zip(exported.inputs, arrays, strict=True) if name in wanted}
        return list(session.run(outputs, feed))

    return run, str(onnxruntime.__version__), {}


def _load_openvino(exported: Exported, threads: int, settings: RunnerSettings) -> Loaded:
    # What it compiles lies beside the file, and goes with it.
    cache = exported.file.parent / "openvino"
    half = settings.precision == "bf16"
    graph = OpenVinoGraph(exported.file, exported.inputs, threads=threads, half=half, cache=cache)
    return graph.run, graph.version, graph.precisions()


_LOADERS: dict[str, Callable[[Exported, int, RunnerSettings], Loaded]] = {
    "onnxruntime": _load_onnxruntime,
    "openvino": _load_openvino,
}
