"""The adapter between latfix and a model: what a user writes in ``workload.py``.

Nothing here imports torch until a method needs it, so that a workload can be described without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.request import Request

if TYPE_CHECKING:
    import torch

#: Makes one batch tensor from the tensors at one position of the inputs.
Stack = Callable[[Sequence[Any], tuple[Any, ...]], Any]
Predict = Callable[[list[Request]], list[Any]]


class Workload:
    """Base class of adapters. ``load`` and ``prepare`` are required; the rest has defaults.

    latfix creates one instance for each model instance, calls :meth:`load` once, and then
    :meth:`prepare`, :meth:`collate`, the model and :meth:`finish` for each request or batch. The model is
    called as ``model(x)`` for a tensor, ``model(*x)`` for a tuple and ``model(**x)`` for a dict. ``prepare``
    may run in several threads at once where ``prepare_threads`` is above one.
    """

    #: The workload's folder; set by latfix before :meth:`load`.
    folder: Path = Path()

    def load(self, device: str) -> Any:
        """Return the ``torch.nn.Module`` on ``device``, in eval mode, or another callable.

        A callable that is not a module (an estimator's ``predict``) is served, batched and compared like one, but
        fixes that modify or compile a module do not apply to it.
        """
        raise NotImplementedError(f"{type(self).__name__}.load(device) must return a torch.nn.Module")

    def prepare(self, request: Request) -> Any:
        """Return the tensors of one request on the host, without a batch dimension: a tensor, tuple or dict."""
        raise NotImplementedError(f"{type(self).__name__}.prepare(request) must return tensors for one request")

    def collate(self, inputs: Sequence[Any]) -> Any:
        """Return one batch from the ``prepare`` results of its requests.

        The default stacks them and zero-pads dimension 0 to the longest.
        """
        return default_collate(inputs)

    def finish(self, output: Any, request: Request) -> Any:
        """Return the service's answer, given one request's output on the host."""
        del request
        return output

    def evaluate(self, predict: Predict) -> float:
        """Return a score, higher is better.

        ``predict(requests)`` sends them through the runner, batches included, and returns the :meth:`finish`
        result of each, in order.
        """
        raise NotImplementedError

    @classmethod
    def has_evaluate(cls) -> bool:
        """True if the adapter measures accuracy itself."""
        return cls.evaluate is not Workload.evaluate


def default_collate(inputs: Sequence[Any]) -> Any:
    """Stack tensors or arrays, or tuples or dicts of them; zero-pad dimension 0 to the longest.

    :raises TypeError: ``prepare`` returned something else.
    :raises ValueError: the inputs differ in dtype, in structure, or beyond dimension 0.
    """
    return map_structure(inputs, lambda parts, _: _stacked(parts))


def _stacked(parts: Sequence[Any]) -> Any:
    import numpy as np
    import torch

    if all(isinstance(part, np.ndarray) for part in parts):
        return stack_padded([torch.from_numpy(part) for part in parts]).numpy()
    return stack_padded(parts)


def map_structure(inputs: Sequence[Any], stack: Stack, path: tuple[Any, ...] = ()) -> Any:
    """Apply ``stack`` to the tensors at each position of inputs that have the same structure.

    :param stack: called with the tensors of one position, and the keys that lead to it.
    """
    first = inputs[0]
    if isinstance(first, dict):
        _check_alike([set(item) if isinstance(item, dict) else type(item) for item in inputs])
        return {key: map_structure([item[key] for item in inputs], stack, (*path, key)) for key in first}
    if isinstance(first, tuple | list):
        _check_alike([len(item) if isinstance(item, tuple | list) else type(item) for item in inputs])
        return tuple(map_structure([item[k] for item in inputs], stack, (*path, k)) for k in range(len(first)))
    return stack(inputs, path)


def _check_alike(structures: list[Any]) -> None:
    if any(structure != structures[0] for structure in structures):
        raise ValueError(
            "cannot batch inputs of different structure (other keys or another number of items); override collate"
        )


def check_stackable(tensors: Sequence[Any]) -> None:
    """Validate that tensors can be stacked and padded.

    :raises TypeError: one of them is not a tensor.
    :raises ValueError: shapes differ beyond dimension 0, or dtypes differ.
    """
    import torch

    first = tensors[0]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            found = type(tensor).__name__
            raise TypeError(f"prepare must return tensors, tuples or dicts of tensors; found {found}")
        if tensor.shape[1:] != first.shape[1:] or tensor.dim() != first.dim():
            shapes = ", ".join(str(tuple(t.shape)) for t in (first, tensor))
            raise ValueError(f"cannot batch tensors that differ beyond dimension 0 ({shapes}); override collate")
        if tensor.dtype != first.dtype:
            raise ValueError(f"cannot batch {first.dtype} with {tensor.dtype}; override collate")


def stack_padded(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of shapes ``(n_i, *rest)`` into ``(batch, max n_i, *rest)``, zero-padded."""
    import torch

    check_stackable(tensors)
    first = tensors[0]
    if all(t.shape == first.shape for t in tensors):
        return torch.stack(list(tensors))
    out = first.new_zeros((len(tensors), max(t.shape[0] for t in tensors), *first.shape[1:]))
    for row, tensor in enumerate(tensors):
        out[row, : tensor.shape[0]] = tensor
    return out
