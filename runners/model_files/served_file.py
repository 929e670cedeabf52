"""``backend`` for an ONNX file: the requested runtime runs the file itself; nothing is exported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from latfix.runners.backends.converted_model import Conversion, largest_deviation, other_answers, too_far
from latfix.runners.backends.replaced_model import raised_as
from latfix.runners.backends.requirements import require_backend
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import call_on_copy
from latfix.runners.calls.tensor_tree import flatten
from latfix.runners.model_files.file_module import FileModule
from latfix.runners.model_files.formats.onnx import GraphModule, load_graph
from latfix.settings import RunnerSettings


def serves_file(model: object) -> TypeGuard[FileModule]:
    """True if a model is an ONNX file as a workload serves it."""
    return isinstance(model, FileModule) and isinstance(model.model, GraphModule)


def serve_file(
    model: FileModule, batches: Sequence[Any], settings: RunnerSettings, tally: Tally
) -> tuple[FileModule, Conversion]:
    """The same file run by ``settings.backend``, its answers compared with the model's on every batch.

    ONNX Runtime keeps the session with which the file was opened.

    :param batches: batches of several sizes that the service will run.
    :param tally: counts the runs.
    :raises InputError: the backend is not installed.
    :raises RunnerError: it rejects the file, or its answers differ.
    """
    backend, own = settings.backend, model.model
    assert isinstance(own, GraphModule), "see serves_file"
    require_backend(backend, exports=False)
    started = time.perf_counter()
    threads = settings.intra_op_threads or torch.get_num_threads()
    served, other, deviation = model, own, 0.0
    if backend == "openvino":
        half = settings.precision == "bf16"
        with raised_as(f"{own.file}: {backend} does not run the file"), torch.no_grad():
            other = load_graph(own.file, own.inputs, openvino=True, threads=threads, half=half)
            served = FileModule(other, model.layout, model.output_names, model.output_axes)
            expected = [flatten(call_on_copy(model, batch))[0] for batch in batches]
            deviation = largest_deviation(expected, served, batches)
    if too_far(deviation, half=settings.precision == "bf16"):
        raise other_answers(f"{own.file}: {backend}", deviation, len(batches))
    other.count_in(tally)
    return served, Conversion(
        backend=f"{backend} {other.runtime.version}",
        seconds=round(time.perf_counter() - started, 3),
        cached=False,
        batches=len(batches),
        deviation=float(deviation),
        threads=threads,
        precisions=other.runtime.precisions(),
        file=own.file.name,
    )
