"""The module around a model file: converts latfix's batches to the calls that the file takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from latfix.runners.model_files.input_layout import Layout
from latfix.runners.model_files.output_sizes import batch_first


class FileModule(torch.nn.Module):
    """Takes one tensor per input, with the batch in dimension 0, and returns outputs with the batch in dimension 0.

    If the file fixes the batch size or states a minimum, a smaller batch is filled with copies of its last request,
    and their outputs are dropped.

    :param names: the file's outputs.
    :param output_axes: batch dimension of outputs that have it elsewhere, ``None`` for those without one.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layout: Layout,
        names: Sequence[str] = (),
        output_axes: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        self._axes = [given.batch_axis for given in layout.inputs]
        self._fixed = layout.fixed_batch or layout.least_batch
        self.output_names, self.output_axes = tuple(names), dict(output_axes)
        self._plain = not self._fixed and all(axis == 0 for axis in self._axes) and not output_axes
        self._none_batched = all(axis is None for axis in self._axes)

    def forward(self, *tensors: torch.Tensor) -> Any:
        size = tensors[0].shape[0]
        if self._plain:
            return _mapped(self.model(*tensors), lambda x: _of_each(x, size))
        output = self.model(*(self._arranged(x, axis) for x, axis in zip(tensors, self._axes, strict=True)))
        if self._none_batched:
            return _mapped(output, lambda x: x.unsqueeze(0) if torch.is_tensor(x) else [x])
        if self.output_axes:
            output = batch_first(output, self.output_names, self.output_axes)
        if self._fixed > size:
            return _mapped(output, lambda x: _of_each(x, size)[:size])
        alone = self._fixed == 1 == self.layout.largest_batch
        return _mapped(output, _of_one_request if alone else lambda x: _of_each(x, size))

    def _arranged(self, tensor: torch.Tensor, axis: int | None) -> torch.Tensor:
        if axis is None:
            return tensor[0]  # a batch of one: Layout.largest_batch
        missing = self._fixed - tensor.shape[0]
        if missing > 0:
            tensor = torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])
        return tensor.movedim(0, axis) if axis else tensor


def _of_each(output: Any, size: int) -> Any:
    """The output; a number of the whole batch, such as a learned scale, is each request's, and so is ``None``."""
    if output is None:
        return [None] * size
    return output.expand(size) if getattr(output, "ndim", 1) == 0 else output


def _of_one_request(output: Any) -> Any:
    """The output of a call with one request, which is all that request's, even if the file states another shape."""
    if torch.is_tensor(output):
        return output if output.dim() and output.shape[0] == 1 else output.unsqueeze(0)
    return output if isinstance(output, list) and len(output) == 1 else [output]


class SealedModule(torch.nn.Module):
    """A model whose weights torch cannot access: it cannot be copied, cast or moved.

    :param file: its name, for messages.
    :param todo: how to get another precision or device.
    """

    def __init__(self, file: str, device: str, todo: str) -> None:
        super().__init__()
        self._file, self._device, self._todo = file, device, todo

    def _apply(self, fn: Any, recurse: bool = True) -> SealedModule:
        """Refuse a change of precision or device."""
        del recurse
        probe = torch.zeros(1, device=self._device)
        changed = fn(probe)
        if (changed.dtype, changed.device) != (probe.dtype, probe.device):
            raise ValueError(f"{self._file} fixes its precision and device; {self._todo} instead")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SealedModule:
        del memo
        return self


def alone_or_tuple(outputs: Sequence[Any]) -> Any:
    """The only output, or a tuple of all."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _mapped(output: Any, change: Any) -> Any:
    """Apply ``change`` to each output. A list of tensors is several outputs; other lists have an item per request."""
    several = isinstance(output, tuple) or (isinstance(output, list) and output and torch.is_tensor(output[0]))
    if output is None or (isinstance(output, torch.Tensor | list) and not several):
        return change(output)
    if isinstance(output, dict):
        return {key: _mapped(item, change) for key, item in output.items()}
    if several:
        return tuple(_mapped(item, change) for item in output)
    return output
