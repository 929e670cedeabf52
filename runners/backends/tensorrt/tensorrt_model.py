"""The module that stands in for the adapter's model: in an engine where the shapes fit, the original elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from latfix.runners.backends.tensorrt.program import Run
from latfix.runners.backends.tensorrt.shape_profile import ShapeProfile
from latfix.runners.backends.tensorrt.stream_lock import StreamTurn
from latfix.runners.calls.call_counters import Outside
from latfix.runners.calls.model_call import as_called, in_order
from latfix.runners.calls.tensor_tree import flatten, unflatten


class TensorRtModel(torch.nn.Module):
    """The same inputs and the same structure and dtypes of outputs as the original's.

    A batch of other shapes than the profile's, other dtypes or other names is run by the original, and counted in
    ``outside``; torch-tensorrt itself would run some of them with a wrong shape.

    :param run: the compiled model.
    :param example: a batch that it was compiled with.
    :param outputs: structure of the answers; ``dtypes`` are those of their tensors.
    :param device: where the engine is.
    """

    def __init__(
        self,
        original: torch.nn.Module,
        run: Run,
        profile: ShapeProfile,
        example: Any,
        outputs: Any,
        dtypes: Sequence[torch.dtype],
        *,
        outside: Outside,
        device: str,
    ) -> None:
        super().__init__()
        # Not as a submodule: its parameters are not what runs.
        self._original = (original,)
        self._run = run
        self._profile = profile
        tensors, names = flatten(as_called(example))
        self._names = in_order(names)
        self._takes = [tensor.dtype for tensor in tensors]
        self._outputs = outputs
        self._dtypes = list(dtypes)
        self._outside = outside
        self._turn = StreamTurn(device)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original would return."""
        tensors = self._tensors(kwargs if kwargs else args)
        if tensors is None:
            return self._original[0](*args, **kwargs)
        with self._turn:
            found = self._run([tensor.detach().contiguous() for tensor in tensors])
        answers = [tensor.to(dtype) for tensor, dtype in zip(found, self._dtypes, strict=True)]
        return unflatten(self._outputs, answers)

    def _tensors(self, inputs: Any) -> list[torch.Tensor] | None:
        """The inputs in the engine's order; ``None``, and counted, where it was not built for them."""
        try:
            tensors, names = flatten(inputs)
        except TypeError as error:  # something that is no tensor
            self._outside.add(str(error))
            return None
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if (
            in_order(names) == self._names
            and [tensor.dtype for tensor in tensors] == self._takes
            and self._profile.holds(shapes)
        ):
            return tensors
        self._outside.add(", ".join(map(str, shapes)))
        return None
