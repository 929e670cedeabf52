"""A model as an ONNX file: which dimensions vary is found in batches of the traffic's own inputs."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.runners.backends.artifact_cache import cache_folder, keep, model_digest, used
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.calls.output_deviation import FlatModel
from latfix.runners.calls.tensor_tree import flatten

#: The file's name in its folder of the cache; large weights lie beside it.
_FILE = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A model's ONNX file.

    :param inputs: names of its inputs, in the order of the flattened batch.
    :param sizes: of each input, the size of each dimension, ``None`` where it varies.
    :param seconds: what exporting took; what looking it up took where it was ``cached``.
    """

    file: Path
    inputs: tuple[str, ...]
    sizes: tuple[tuple[int | None, ...], ...]
    cached: bool
    seconds: float


def export(model: torch.nn.Module, batches: Sequence[Any], sources: Path, *, fresh: bool = False) -> Exported:
    """Export a model, or find the file in the cache.

    :param batches: as the model is called with them, of several sizes: a dimension that differs among them varies.
    :param sources: the folder of the code that built the model.
    :param fresh: do not take it from the cache.
    :raises RunnerError: the exporter refused, with its reason.
    """
    started = time.perf_counter()
    try:
        flat = [flatten(batch)[0] for batch in batches]
    except TypeError as error:
        raise RunnerError(f"the model cannot be exported to ONNX: among its inputs, {error}") from error
    sizes = _sizes(flat)
    names = tuple(f"x{k}" for k in range(len(sizes)))
    dtypes = [str(tensor.dtype) for tensor in flat[0]]
    place = cache_folder("onnx") / model_digest(model, sources, repr(sizes), repr(dtypes))
    cached = (place / _FILE).is_file() and not fresh
    if not cached:
        shutil.rmtree(place, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
        try:
            _write(model, _example(batches, flat, sizes), sizes, names, made / _FILE)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        place = keep(made, place)
    else:
        used(place)
    seconds = time.perf_counter() - started
    return Exported(file=place / _FILE, inputs=names, sizes=sizes, cached=cached, seconds=seconds)


def _sizes(batches: Sequence[Sequence[torch.Tensor]]) -> tuple[tuple[int | None, ...], ...]:
    """Of each tensor the size of each dimension that all batches agree in, ``None`` elsewhere."""
    seen = [{tuple(batch[k].shape) for batch in batches} for k in range(len(batches[0]))]
    if any(len({len(shape) for shape in shapes}) > 1 for shapes in seen):
        raise RunnerError("the inputs have tensors of different dimensions at one place, which cannot be exported")
    return tuple(
        tuple(column[0] if len(set(column)) == 1 else None for column in zip(*shapes, strict=True)) for shapes in seen
    )


def _example(batches: Sequence[Any], flat: Sequence[Sequence[torch.Tensor]], sizes: Any) -> Any:
    """The smallest batch in which no varying dimension is 0 or 1, which a trace would take for constants."""
    fitting = [
        k
        for k, tensors in enumerate(flat)
        if all(
            size > 1
            for tensor, of in zip(tensors, sizes, strict=True)
            for size, fixed in zip(tensor.shape, of, strict=True)
            if fixed is None
        )
    ]
    candidates = fitting or list(range(len(batches)))
    return batches[min(candidates, key=lambda k: sum(tensor.numel() for tensor in flat[k]))]


def _write(model: torch.nn.Module, example: Any, sizes: Any, names: Sequence[str], file: Path) -> None:
    tensors, shape = flatten(example)
    dynamic = torch.export.Dim.DYNAMIC
    varying = tuple({d: dynamic for d, size in enumerate(of) if size is None} or None for of in sizes)
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(
                FlatModel(model, shape), tuple(tensors), dynamic_shapes={"tensors": varying}, strict=False
            )
            converted = torch.onnx.export(program, input_names=list(names), verbose=False)
            assert converted is not None, "the exporter returns a program where no file is named"
            converted.save(file)
    except USER_ERRORS as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise RunnerError(f"the model cannot be exported to ONNX: {_reason(error)}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters tell their progress and what they think of each other's versions; only a failure is of interest."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """The first line of the error at the bottom of a chain that says something; exporters wrap theirs in pages."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:240]}" if lines else describe(error)
