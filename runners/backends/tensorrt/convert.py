"""Converts a model with TensorRT: profile, cache, build, and comparison with the original's answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.runners.answers.distance_bounds import deviation_of
from latfix.runners.backends.artifact_cache import cache_folder, make_room, model_digest, used
from latfix.runners.backends.converted_model import Conversion, other_answers
from latfix.runners.backends.replaced_model import ReplacedModel, answers_to, check_constants, raised_as
from latfix.runners.backends.requirements import require_backend, tensorrt, torch_tensorrt
from latfix.runners.backends.tensorrt import program as programs
from latfix.runners.backends.tensorrt.shape_profile import ShapeProfile, Shapes, example_index, profile_of
from latfix.runners.calls.call_counters import Outside, Tally
from latfix.runners.calls.model_call import as_called, call_on_copy
from latfix.runners.calls.tensor_tree import flatten, move, shapes_of
from latfix.settings import RunnerSettings

#: Largest deviation explained by another order of summation in float32, and by inputs rounded to TF32 (10 bits of
#: mantissa), torch's default for convolutions. A model of 16-bit floats rounds as coarsely as those: ten roundings.
_MOST, _MOST_TF32, _ROUNDINGS = 1e-3, 1e-2, 10
#: Number of programs in the cache: each holds the model's weights once or twice.
_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtConversion(Conversion):
    """Evidence of a conversion; ``seconds`` covers build or cache look-up, loading and comparison.

    :param device: the GPU's name.
    :param profile: for each input its smallest, tuned and largest sizes.
    :param precisions: the requested precision, and the number of operators in engines.
    :param partition: :meth:`latfix.runners.backends.tensorrt.partition.Partition.to_json`.
    :param kept: why the program is not in the cache; empty if it is.
    :param discarded: why the cached program was not used; empty if it was used or there was none.
    """

    device: str
    profile: list[str]
    partition: dict[str, Any]
    kept: str
    discarded: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A model and everything that its program depends on."""

    package: ModuleType
    model: torch.nn.Module
    batches: Sequence[Any]
    example: Any
    profile: ShapeProfile
    expected: Sequence[list[torch.Tensor]]
    outputs: Any
    settings: RunnerSettings
    device: str
    place: Path
    tally: Tally
    outside: Outside


def convert(
    model: torch.nn.Module,
    batches: Sequence[Any],
    seen: Sequence[Shapes],
    settings: RunnerSettings,
    sources: Path,
    device: str,
    tally: Tally,
    outside: Outside,
) -> tuple[ReplacedModel, TensorRtConversion]:
    """Compile a model for the shapes of its traffic, and compare its answers with the original's on every batch.

    :param batches: batches of the traffic's inputs, in several sizes, on the host. Kernels are chosen for the last.
    :param seen: shapes of the traffic's batches, including the smallest and the largest.
    :param sources: the folder of the code that built the model.
    :param device: the model's CUDA device.
    :param tally: counts the runs.
    :param outside: counts the batches that the original runs.
    :raises InputError: a package is not installed.
    :raises RunnerError: the model cannot be exported or compiled, or its answers differ.
    """
    require_backend(settings.backend)
    started, package = time.perf_counter(), torch_tensorrt()
    batches = [move(batch, device) for batch in batches]
    try:
        given = [flatten(batch) for batch in batches]
    except TypeError as error:
        raise RunnerError(f"the model cannot be exported for TensorRT: among its inputs, {error}") from error
    check_constants([structure for _, structure in given], "input")
    shapes = [shapes_of(tensors) for tensors, _ in given]
    example = example_index(shapes, [*seen, *shapes], shapes[-1])
    profile = profile_of([*seen, *shapes], shapes[example])
    expected, outputs = answers_to(model, batches)
    tensors, names = given[example]
    digest = model_digest(
        model,
        sources,
        str(package.__version__),
        str(tensorrt().__version__),
        device,
        device_name(device),
        repr(profile.inputs),
        repr([str(tensor.dtype) for tensor in tensors]),
        repr(names),
        settings.precision,
        str(programs.tf32_allowed()),
    )
    case = _Case(
        package=package,
        model=model,
        batches=batches,
        example=batches[example],
        profile=profile,
        expected=expected,
        outputs=outputs,
        settings=settings,
        device=device,
        place=cache_folder("tensorrt") / digest,
        tally=tally,
        outside=outside,
    )
    found, discarded = _from_cache(case)
    cached = found is not None
    if found is None:
        found = _built(case)
    program, converted, deviation = found
    make_room(case.place.parent, _KEPT)
    return converted, TensorRtConversion(
        backend=f"{settings.backend} {package.__version__}",
        device=device_name(device),
        seconds=round(time.perf_counter() - started, 3),
        cached=cached,
        batches=len(batches),
        deviation=float(deviation),
        threads=torch.get_num_threads(),
        profile=profile.words(),
        precisions={settings.precision: program.partition.inside or 0},
        partition=program.partition.to_json(),
        kept=program.kept,
        discarded=discarded,
    )


_Checked = tuple[programs.Program, ReplacedModel, float]


def _from_cache(case: _Case) -> tuple[_Checked | None, str]:
    """The cached program, if there is one and its answers are right; otherwise ``None`` and the reason."""
    try:
        program = programs.load(case.package, case.place)
        found = None if program is None else _checked(case, program)
    except RunnerError as error:
        programs.discard(case.place)
        return None, error.message
    if found is not None:
        used(case.place)
    return found, ""


def _built(case: _Case) -> _Checked:
    made = (case.package, case.model, case.example, case.profile)
    program = programs.build(*made, device=case.device, precision=case.settings.precision, place=case.place)
    try:
        return _checked(case, program)
    except RunnerError:
        programs.discard(case.place)  # the next process must not find a wrong program
        raise


def _checked(case: _Case, program: programs.Program) -> _Checked:
    """A program, the module around it, and its deviation from the original on all batches.

    :raises RunnerError: the program does not run, or its answers differ.
    """
    converted = _replacement(case, program)
    ran, deviation = 0, 0.0
    with raised_as("the model compiled for TensorRT does not run"), torch.no_grad():
        for tensors, batch in zip(case.expected, case.batches, strict=True):
            before = case.tally.runs
            deviation = max(deviation, deviation_of(tensors, flatten(call_on_copy(converted, batch))[0]))
            ran += case.tally.runs > before
    if not ran:
        raise RunnerError("none of the traffic's batches fits the shapes for which the model was compiled")
    limit = _most_deviation(case)
    # The error of a lower precision is judged by accuracy.
    if deviation > limit and case.settings.precision == "default":
        raise other_answers("the model compiled for TensorRT", deviation, ran, limit)
    return program, converted, deviation


def _replacement(case: _Case, program: programs.Program) -> ReplacedModel:
    """Runs only batches within the profile: torch-tensorrt would run other shapes, some with a wrong result."""
    takes = [tensor.dtype for tensor in flatten(as_called(case.example))[0]]
    dtypes = [tensor.dtype for tensor in case.expected[0]]
    counted, turn = case.tally.counting(program.run), programs.StreamTurn(case.device)

    def fits(tensors: Sequence[torch.Tensor]) -> bool:
        dtypes_fit = [tensor.dtype for tensor in tensors] == takes
        return dtypes_fit and case.profile.holds(shapes_of(tensors))

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with turn:
            found = counted(tensors)
        return [tensor.to(dtype) for tensor, dtype in zip(found, dtypes, strict=True)]

    return ReplacedModel(case.model, case.example, case.outputs, fits=fits, run=run, missed=case.outside.add)


def _most_deviation(case: _Case) -> float:
    """The deviation that rounding explains: on a GPU, the original's own convolutions round to TF32."""
    held = (*case.model.parameters(), *case.model.buffers(), *(each for kept in case.expected for each in kept))
    coarsest = max((torch.finfo(each.dtype).eps for each in held if each.is_floating_point()), default=0.0)
    convolutions = any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in case.model.modules())
    rounded = case.device.startswith("cuda") and (convolutions or programs.tf32_allowed())
    least = _MOST_TF32 if rounded else _MOST
    return max(least, _ROUNDINGS * coarsest) if coarsest > torch.finfo(torch.float32).eps else least


def device_name(device: str) -> str:
    """A GPU's name and compute capability, on which engines depend."""
    if not device.startswith("cuda"):
        return device
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"
