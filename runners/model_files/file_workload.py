"""The adapter that makes a model file a workload like any other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from latfix.adapter_api import Workload, map_structure
from latfix.config.workload_toml import declared_outputs, model_inputs
from latfix.errors import InputError
from latfix.formatting import counted
from latfix.request import Request
from latfix.runners.model_files import open_model
from latfix.runners.model_files.input_layout import InputLayout, Layout, lay_out
from latfix.runners.model_files.input_values import describe, draw, from_payload, list_shape, seed_of
from latfix.runners.model_files.opened_model import OpenedModel
from latfix.runners.model_files.output_sizes import Cut, batch_axes, check_names, output_cuts, output_names, own_part
from latfix.runners.model_files.size_binding import bind, check_traffic, measure, numbers, numeric_features, wanted
from latfix.traffic.schedule import Traffic

if TYPE_CHECKING:
    import torch

    from latfix.traffic.feature_expressions import Expression


def load_file_workload(folder: Path, entry: str) -> FileWorkload:
    """The adapter for the model file ``entry`` in ``folder``, with ``[inputs]`` and ``[outputs]`` of its
    ``workload.toml``.

    :raises InputError: the file or a table is wrong, or they contradict each other.
    :raises RunnerError: the file's backend is not installed, or does not run here.
    """
    rules, outputs = model_inputs(folder, entry), declared_outputs(folder, entry)
    model = open_model(folder / entry)
    layout = lay_out(model, rules)
    # The default collate pads dimension 0 with zeros, and a buffer pool can replace it: it is overridden only if the
    # model needs more. A finish is timed for each request: it exists only if outputs are cut.
    plain, cuts = _default_collate_pads(layout), output_cuts(model, outputs)
    kinds = (FileWorkload, PaddedFileWorkload, CutFileWorkload, CutPaddedFileWorkload)
    adapter: FileWorkload = kinds[2 * bool(cuts) + (not plain)](model, layout)
    adapter.folder, adapter.cuts = folder, cuts
    adapter.output_axes = batch_axes(model, layout, outputs)
    return adapter


class FileWorkload(Workload):
    """A model file as a workload."""

    #: Sizes of a request's own outputs, by output name.
    cuts: Mapping[str, Cut] = MappingProxyType({})
    #: Batch dimension of outputs that do not have it first, by name; ``None`` for those without one.
    output_axes: Mapping[str, int | None] = MappingProxyType({})

    def __init__(self, model: OpenedModel, layout: Layout) -> None:
        self.layout = layout
        self.output_names = output_names(model)
        self.model = model
        self._symbols = layout.symbols()
        #: Symbols by the plain name that [inputs] gives them. A payload carries no feature of that name.
        self._named = {
            given.source: symbol for symbol, given in layout.expressions.items() if given.names == (given.source,)
        }
        self._bound: dict[tuple[tuple[str, ...], tuple[str, ...]], Mapping[str, Expression]] = {}

    def check_batch(self, max_batch_size: int) -> None:
        """Check that the model takes batches as large as the settings allow.

        :raises InputError: it does not.
        """
        most = self.layout.largest_batch
        if most is None or max_batch_size <= most:
            return
        if self.layout.fixed_batch == most:
            why = f"the file's batch dimension is fixed at {most}"
        elif self.layout.most_batch == most:
            why = f"the file takes batches of at most {most}"
        else:
            alone = next(given.name for given in self.layout.inputs if given.batch_axis is None)
            why = f"its input {alone!r} has no batch dimension"
        raise InputError(
            f"{self.layout.file}: found max_batch_size = {max_batch_size}, but {why}; expected at most {most}; "
            "lower it, or save the model with a dynamic batch dimension"
        )

    def check_traffic(self, traffic: Traffic) -> list[str]:
        """Check that the traffic provides every size that the model needs, before anything is replayed.

        :returns: a note if there are payloads without any of the model's inputs.
        :raises InputError: a size is missing or out of range; the message has the lines to write.
        """
        check_traffic(self.layout, traffic)
        known = {*numeric_features(traffic), *self._symbols, *self._named}
        check_names(self.cuts, known, str(self.layout.file))
        names = [given.name for given in self.layout.inputs]
        others = [each for each in traffic.payloads if each is not None]
        others = [each for each in others if not isinstance(each, dict) or each.keys().isdisjoint(names)]
        if not others:
            return []
        expected = f"an object with {', '.join(map(repr, names))}"
        what = f"the payload of {counted(len(others), 'request')} is not used, because it is not {expected}"
        return [f"{what}: input values are generated"]

    def describe_inputs(self, traffic: Traffic) -> list[str]:
        """One line per input: its type, its shape in a batch, and how values are drawn without a payload."""
        bound: Mapping[str, Expression] = self.layout.expressions
        with contextlib.suppress(InputError):  # the payloads give the sizes
            bound = bind(self.layout, numeric_features(traffic), tuple(self._symbols))
        return [describe(given, bound, self.layout.fixed_batch) for given in self.layout.inputs]

    def load(self, device: str) -> torch.nn.Module:
        from latfix.runners.model_files.file_module import FileModule

        return FileModule(self.model.load(device), self.layout, self.output_names, self.output_axes)

    def prepare(self, request: Request) -> Any:
        """The request's tensors in the order of the file's inputs; a single one without a tuple."""
        tensors = self._tensors(request)
        return tensors[0] if len(tensors) == 1 else tensors

    def _tensors(self, request: Request) -> tuple[torch.Tensor, ...]:
        payload = request.payload if isinstance(request.payload, dict) else {}
        carried = {
            given.name: from_payload(given, payload[given.name])
            for given in self.layout.inputs
            if given.name in payload
        }
        if len(carried) == len(self.layout.inputs):
            return tuple(carried.values())
        shapes = {name: tensor.shape for name, tensor in carried.items()}
        return self._drawn(request, carried, self._sizes(request, shapes))

    def _sizes(self, request: Request, carried: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The value of every symbol, from the shapes of tensors in the payload or else from features."""
        sizes: dict[str, int] = {}
        for given in self.layout.inputs:
            if given.name in carried:
                shape = carried[given.name]
                sizes.update({axis.symbol: shape[k] for k, axis in enumerate(given.axes or ()) if axis.symbol})
        needed, known = wanted(self.layout, self._symbols, request.payload), numbers(request.features)
        bound = self._bound.get((needed, known))
        if bound is None:
            bound = self._bound[needed, known] = bind(self.layout, known, needed)
        for symbol, expression in bound.items():
            sizes[symbol] = measure(symbol, expression, request.features, self._symbols[symbol])
        return sizes

    def _drawn(
        self, request: Request, carried: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
    ) -> tuple[torch.Tensor, ...]:
        import torch

        generator = torch.Generator().manual_seed(seed_of(request))
        length = next(iter(sizes.values())) if len(sizes) == 1 else None
        tensors = []
        for given in self.layout.inputs:
            tensor = carried.get(given.name)
            tensors.append(draw(given, _shape(given, sizes), generator, length) if tensor is None else tensor)
        return tuple(tensors)


class CutFileWorkload(FileWorkload):
    """A model file whose outputs are as long as the longest request in the batch: each request gets its own part."""

    def finish(self, output: Any, request: Request) -> Any:
        payload = request.payload if isinstance(request.payload, dict) else {}
        carried = {
            given.name: list_shape(payload[given.name]) for given in self.layout.inputs if given.name in payload
        }
        sizes = self._sizes(request, carried)
        named = {name: sizes[symbol] for name, symbol in self._named.items() if symbol in sizes}
        return own_part(output, self.output_names, self.cuts, {**request.features, **sizes, **named})


class PaddedFileWorkload(FileWorkload):
    """A model file whose inputs vary in more than one dimension, or are padded with other values than zero."""

    def collate(self, inputs: Sequence[Any]) -> Any:
        alone = len(self.layout.inputs) == 1

        def stack(tensors: Sequence[torch.Tensor], path: tuple[Any, ...]) -> torch.Tensor:
            return _stacked(tensors, self.layout.inputs[0 if alone else path[0]].pad)

        return map_structure(inputs, stack)


class CutPaddedFileWorkload(CutFileWorkload, PaddedFileWorkload):
    """A model file that needs both."""


def _shape(given: InputLayout, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if given.axes is None or given.dtype is None:
        raise ValueError(
            f"input {given.name!r}: the file states neither shape nor dtype; expected the tensor in the payload, or "
            "shape and dtype in [inputs]"
        )
    shape = []
    for axis in given.axes:
        if axis.size is not None:
            shape.append(axis.size)
        elif axis.derived is not None:
            shape.append(int(axis.derived.evaluate(sizes)))
        else:
            shape.append(sizes[axis.symbol])
    return tuple(shape)


def _default_collate_pads(layout: Layout) -> bool:
    return all(
        given.pad == 0 and given.axes is not None and all(axis.size is not None for axis in given.axes[1:])
        for given in layout.inputs
    )


def _stacked(tensors: Sequence[torch.Tensor], pad: float) -> torch.Tensor:
    """Stack tensors, padding each dimension at its end to the largest size."""
    import torch

    first = tensors[0]
    if any(tensor.dim() != first.dim() or tensor.dtype != first.dtype for tensor in tensors):
        raise ValueError("cannot batch tensors of different dtypes or numbers of dimensions")
    if all(tensor.shape == first.shape for tensor in tensors):
        return torch.stack(list(tensors))
    largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = first.new_full((len(tensors), *largest), pad)
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return batch
