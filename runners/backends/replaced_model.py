"""A module that replaces the adapter's model, and helpers to run exporters and compilers."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from latfix.errors import LatfixError, RunnerError
from latfix.formatting import clipped
from latfix.runners.calls.model_call import USER_ERRORS, as_called, call_model, call_on_copy, describe, own_line
from latfix.runners.calls.tensor_tree import constants_of, flatten, unflatten

Tensors = Sequence[torch.Tensor]


class ReplacedModel(torch.nn.Module):
    """Takes the original's inputs and returns outputs of the same structure.

    The original runs batches that the replacement does not support (other sizes, names, or order of names).

    :param example: a batch that the replacement was made with.
    :param outputs: structure of the answers (:func:`latfix.runners.calls.tensor_tree.flatten`).
    :param fits: True if the replacement takes these tensors.
    :param run: the replacement.
    :param missed: called with the reason when the original runs a batch.
    """

    def __init__(
        self,
        original: torch.nn.Module,
        example: Any,
        outputs: Any,
        *,
        fits: Callable[[Tensors], bool],
        run: Callable[[Tensors], Tensors],
        missed: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule: its parameters do not run.
        self._original = (original,)
        # As text, which includes the order of names: a comparison of dicts ignores it.
        self._inputs = repr(flatten(as_called(example))[1])
        self._outputs = outputs
        self._fits = fits
        self._run = run
        self._missed = missed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = self._tensors(kwargs if kwargs else args)
        if tensors is None:
            return self._original[0](*args, **kwargs)
        return unflatten(self._outputs, self._run([tensor.detach().contiguous() for tensor in tensors]))

    def _tensors(self, inputs: Any) -> list[torch.Tensor] | None:
        try:
            tensors, names = flatten(inputs)
        except TypeError as error:  # an input is no tensor
            self._missed(str(error))
            return None
        if repr(names) == self._inputs and self._fits(tensors):
            return tensors
        self._missed(", ".join(str(tuple(tensor.shape)) for tensor in tensors))
        return None


def answers_to(model: Any, batches: Sequence[Any]) -> tuple[list[list[torch.Tensor]], Any]:
    """The tensors of a model's answer to each batch, and the structure of its answers.

    :raises RunnerError: the model does not run, or a converted model could not answer like it.
    """
    with raised_as("the model itself does not run on the traffic's inputs"), torch.no_grad():
        answers = [call_on_copy(model, batch) for batch in batches]
    with raised_as("the model cannot be converted: among its outputs"):
        found = [flatten(answer) for answer in answers]
    check_constants([structure for _, structure in found], "output")
    if not all(tensors for tensors, _ in found):
        raise RunnerError("the model cannot be converted: there is no tensor among its outputs")
    return [tensors for tensors, _ in found], found[0][1]


def check_constants(structures: Sequence[Any], kind: str) -> None:
    """Numbers, texts and ``None`` are constants of a converted model.

    :param structures: of several batches (:func:`latfix.runners.calls.tensor_tree.flatten`).
    :param kind: ``input`` or ``output``, for the message.
    :raises RunnerError: one of them differs between batches.
    """
    first, *others = [{key: repr(value) for key, value in constants_of(each).items()} for each in structures]
    for other in others:
        for key in first | other:
            one, another = (found.get(key, "absent or a tensor") for found in (first, other))
            if one != another:
                name = f"{kind} {key!r}" if key else kind
                raise RunnerError(
                    f"the model cannot be converted: its {name} is {clipped(one, 40)} for one batch and "
                    f"{clipped(another, 40)} for another; only tensors may vary"
                )


class FlatModel(torch.nn.Module):
    """A model that takes and returns flat sequences of tensors, as an exported graph does."""

    def __init__(self, model: torch.nn.Module, shape: Any) -> None:
        super().__init__()
        self.model = model
        self._shape = shape

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(flatten(call_model(self.model, unflatten(self._shape, tensors)))[0])


@contextlib.contextmanager
def raised_as(message: str, reason: Callable[[BaseException], str] = describe) -> Iterator[None]:
    """Turns any exception except latfix's own into a :class:`RunnerError` ``message: reason``."""
    try:
        yield
    except (KeyboardInterrupt, LatfixError):
        raise
    except USER_ERRORS as error:
        raise RunnerError(f"{message}: {reason(error)}") from error


def root_reason(error: BaseException) -> str:
    """The first listed reason, or the first line, of the root cause: exporters wrap their errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line[2:] for line in lines if line.startswith("- ")), lines[0] if lines else "")
    return f"{type(error).__name__}: {reason[:240]}" if reason else describe(error)


def export_reason(error: BaseException) -> str:
    """The root cause, with the line of the user's own files that depends on what an exporter cannot know."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return root_reason(error) + next(filter(None, map(own_line, reversed(chain))), "")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the output, warnings and logs of exporters and compilers."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    nothing = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def export_program(model: torch.nn.Module, example: Any, dynamic: Sequence[dict[int, Any] | None]) -> Any:
    """``torch.export`` of a model with flat inputs and outputs.

    :param dynamic: the varying dimensions of each tensor.
    """
    tensors, shape = flatten(example)
    with quiet(), torch.no_grad():
        return torch.export.export(
            FlatModel(model, shape), tuple(tensors), dynamic_shapes={"tensors": tuple(dynamic)}, strict=False
        )
