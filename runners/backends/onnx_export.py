"""Exports a model to an ONNX file. Batches of the traffic show which dimensions vary."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.runners.backends.artifact_cache import cache_folder, keep, model_digest, used
from latfix.runners.backends.replaced_model import check_constants, export_program, export_reason, quiet, raised_as
from latfix.runners.calls.tensor_tree import flatten

#: For each tensor, the size of each dimension, ``None`` if it varies.
Sizes = tuple[tuple[int | None, ...], ...]

#: Name of the file in its folder of the cache; large weights are in separate files next to it.
_FILE = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A model's ONNX file.

    :param inputs: names of its inputs, in the order of the flattened batch.
    :param seconds: duration of the export, or of the look-up if ``cached``.
    """

    file: Path
    inputs: tuple[str, ...]
    sizes: Sizes
    cached: bool
    seconds: float


def export(model: torch.nn.Module, batches: Sequence[Any], sources: Path, *, fresh: bool = False) -> Exported:
    """Export a model, or find its file in the cache.

    :param batches: the model's arguments, in several sizes: a dimension that differs among them varies.
    :param sources: the folder of the code that built the model.
    :param fresh: ignore the cache.
    :raises RunnerError: the exporter failed; with its reason.
    """
    started = time.perf_counter()
    try:
        found = [flatten(batch) for batch in batches]
    except TypeError as error:
        raise RunnerError(f"the model cannot be exported to ONNX: among its inputs, {error}") from error
    check_constants([structure for _, structure in found], "input")
    flat = [tensors for tensors, _ in found]
    sizes = sizes_of(flat)
    names = tuple(f"x{k}" for k in range(len(sizes)))
    dtypes = [str(tensor.dtype) for tensor in flat[0]]
    place = cache_folder("onnx") / model_digest(model, sources, repr(sizes), repr(dtypes), repr(found[0][1]))
    cached = (place / _FILE).is_file() and not fresh
    if not cached:
        shutil.rmtree(place, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
        try:
            _write(model, example_of(batches), sizes, names, made / _FILE)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        place = keep(made, place)
    else:
        used(place)
    seconds = time.perf_counter() - started
    return Exported(file=place / _FILE, inputs=names, sizes=sizes, cached=cached, seconds=seconds)


def sizes_of(batches: Sequence[Sequence[torch.Tensor]]) -> Sizes:
    """For each tensor, the size of each dimension that is the same in all batches, ``None`` for the others.

    :raises RunnerError: a tensor has different numbers of dimensions in different batches.
    """
    seen = [{tuple(batch[k].shape) for batch in batches} for k in range(len(batches[0]))]
    if any(len({len(shape) for shape in shapes}) > 1 for shapes in seen):
        raise RunnerError(
            "the model cannot be exported: found an input with different numbers of dimensions in different batches"
        )
    return tuple(
        tuple(column[0] if len(set(column)) == 1 else None for column in zip(*shapes, strict=True)) for shapes in seen
    )


def example_of(batches: Sequence[Any]) -> Any:
    """The smallest batch without a varying dimension of 0 or 1, which a trace would treat as a constant."""
    flat = [flatten(batch)[0] for batch in batches]
    sizes = sizes_of(flat)

    def cost(k: int) -> tuple[bool, int]:
        """True if a trace would take one of its sizes for a constant, and the elements."""
        dimensions = (zip(each.shape, known, strict=True) for each, known in zip(flat[k], sizes, strict=True))
        constants = any(fixed is None and size <= 1 for pairs in dimensions for size, fixed in pairs)
        return constants, sum(tensor.numel() for tensor in flat[k])

    return batches[min(range(len(batches)), key=cost)]


def _write(model: torch.nn.Module, example: Any, sizes: Any, names: Sequence[str], file: Path) -> None:
    with raised_as("the model cannot be exported to ONNX", export_reason):
        program = export_program(model, example, dynamic_of(sizes))
        with quiet(), torch.no_grad():
            converted = torch.onnx.export(program, input_names=list(names), verbose=False)
            assert converted is not None, "without a file name the exporter returns a program"
            converted.save(file)


def dynamic_of(sizes: Sizes) -> list[dict[int, Any] | None]:
    """The varying dimensions of each tensor, in the form of ``torch.export``."""
    varies = torch.export.Dim.DYNAMIC
    return [{d: varies for d, size in enumerate(known) if size is None} or None for known in sizes]
