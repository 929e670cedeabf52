"""A module that stands in for the adapter's model, and how exporters and compilers are run to make one."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from latfix.errors import LatfixError, RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, as_called, call_model, describe, in_order
from latfix.runners.calls.tensor_tree import flatten, unflatten

Tensors = Sequence[torch.Tensor]


class ReplacedModel(torch.nn.Module):
    """The same inputs and the same structure of outputs as the original's.

    A batch that it was not made for (other sizes, other names, or the same in another order) is run by the original.

    :param example: a batch that the replacement was made with.
    :param outputs: structure of the answers (:func:`latfix.runners.calls.tensor_tree.flatten`).
    :param fits: whether the replacement takes these tensors.
    :param run: the replacement.
    :param missed: called with why the original ran a batch.
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
        # Not as a submodule: its parameters are not what runs.
        self._original = (original,)
        self._inputs = in_order(flatten(as_called(example))[1])
        self._outputs = outputs
        self._fits = fits
        self._run = run
        self._missed = missed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original would return."""
        tensors = self._tensors(kwargs if kwargs else args)
        if tensors is None:
            return self._original[0](*args, **kwargs)
        return unflatten(self._outputs, self._run([tensor.detach().contiguous() for tensor in tensors]))

    def _tensors(self, inputs: Any) -> list[torch.Tensor] | None:
        try:
            tensors, names = flatten(inputs)
        except TypeError as error:  # something that is no tensor
            self._missed(str(error))
            return None
        if in_order(names) == self._inputs and self._fits(tensors):
            return tensors
        self._missed(", ".join(str(tuple(tensor.shape)) for tensor in tensors))
        return None


class FlatModel(torch.nn.Module):
    """A model that takes and returns tensors in a row, which is all that an exported graph knows."""

    def __init__(self, model: torch.nn.Module, shape: Any) -> None:
        super().__init__()
        self.model = model
        self._shape = shape

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The model's outputs, flattened."""
        return tuple(flatten(call_model(self.model, unflatten(self._shape, tensors)))[0])


@contextlib.contextmanager
def raised_as(message: str, reason: Callable[[BaseException], str] = describe) -> Iterator[None]:
    """Turns whatever is raised in it into a :class:`RunnerError` ``message: reason``, latfix's own errors apart."""
    try:
        yield
    except (KeyboardInterrupt, LatfixError):
        raise
    except USER_ERRORS as error:
        raise RunnerError(f"{message}: {reason(error)}") from error


def root_reason(error: BaseException) -> str:
    """The first reason listed, or the first line, of the error at the bottom of a chain: exporters wrap theirs."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line[2:] for line in lines if line.startswith("- ")), lines[0] if lines else "")
    return f"{type(error).__name__}: {said[:240]}" if said else describe(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences what exporters and compilers print, warn of and log; only a failure is of interest."""
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
    """``torch.export`` of a model that takes and returns its tensors in a row.

    :param dynamic: by tensor, the dimensions that vary.
    """
    tensors, shape = flatten(example)
    with quiet(), torch.no_grad():
        return torch.export.export(
            FlatModel(model, shape), tuple(tensors), dynamic_shapes={"tensors": tuple(dynamic)}, strict=False
        )
