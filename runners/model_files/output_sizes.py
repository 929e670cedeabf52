"""Cuts padding from outputs: the size of a request's own part, from ``[outputs]``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from latfix.config.model_input_rules import is_batch
from latfix.config.model_output_rules import ALL, OutputRule
from latfix.errors import InputError
from latfix.formatting import did_you_mean
from latfix.request import FeatureValue
from latfix.runners.model_files.input_layout import Layout
from latfix.runners.model_files.opened_model import Axis, OpenedModel
from latfix.traffic.feature_expressions import Expression

#: Name of a file's only output if the file does not name it.
ONLY = "output"
#: Size of each dimension of a request's output, without the batch; ``None`` for a fixed one.
Cut = Sequence[Expression | None]


def output_names(model: OpenedModel) -> tuple[str, ...]:
    """Names of a file's outputs; :data:`ONLY` if it does not state them."""
    return model.outputs or (ONLY,)


def output_cuts(model: OpenedModel, rules: Mapping[str, OutputRule]) -> dict[str, Cut]:
    """The cuts of ``[outputs]``, by output name.

    :raises InputError: the file has no such output, or a shape lacks the batch.
    """
    cuts: dict[str, Cut] = {}
    for name, rule in rules.items():
        if model.outputs and name not in (*model.outputs, ALL):
            advice = did_you_mean(name, model.outputs, "remove it")
            expected = f"one of {model.file.name}'s: {', '.join(model.outputs)}"
            raise InputError(f"{rule.where}: found output {name!r}; expected {expected}; {advice}")
        if rule.shape is None:
            continue
        if not any(map(is_batch, rule.shape)):
            raise InputError(
                f'{rule.where}: found {name} without "batch"; expected it in the shape: outputs are split along it'
            )
        cuts[name] = [size if isinstance(size, Expression) else None for size in rule.shape if not is_batch(size)]
    return cuts


def batch_axes(model: OpenedModel, layout: Layout, rules: Mapping[str, OutputRule]) -> dict[str, int | None]:
    """Batch dimension by output name, by ``[outputs]`` or else by the file, for outputs that do not have it first.

    ``None`` for an output of a single request without a batch dimension, such as a list of boxes.
    """
    batch = [
        given.axes[own.batch_axis]
        for given, own in zip(model.inputs, layout.inputs, strict=True)
        if given.axes and own.batch_axis is not None
    ]
    found = {name: _batch_axis(axes, batch) for name, axes in model.output_axes.items()}
    for name, rule in rules.items():
        if rule.shape is not None:
            found[name] = list(map(is_batch, rule.shape)).index(True)
    return {name: axis for name, axis in found.items() if axis != 0}


def _batch_axis(axes: Sequence[Axis], batch: Sequence[Axis]) -> int | None:
    """Position of the inputs' batch in an output; 0 if unknown."""
    symbols, sizes = {axis.symbol for axis in batch if axis.size is None}, {axis.size for axis in batch} - {None}
    places = [
        k for k, axis in enumerate(axes) if (axis.symbol in symbols if axis.size is None else axis.size in sizes)
    ]
    if places:
        return places[0]
    return None if sizes == {1} and not symbols else 0


def batch_first(output: Any, names: Sequence[str], axes: Mapping[str, int | None]) -> Any:
    """The output with the batch in dimension 0, along which latfix splits it."""

    def moved(name: str, item: Any) -> Any:
        axis, dimensions = axes.get(name, 0), getattr(item, "dim", int)()
        if axis is None:
            return item.unsqueeze(0) if hasattr(item, "dim") else [item]
        return item.movedim(axis, 0) if 0 < axis < dimensions else item

    return _by_name(output, names, moved)


def _by_name(output: Any, names: Sequence[str], change: Callable[[str, Any], Any]) -> Any:
    """The output with ``change`` applied to each part and its name."""
    if isinstance(output, dict):
        return {name: change(str(name), item) for name, item in output.items()}
    if isinstance(output, tuple | list):
        named = names if len(names) == len(output) else map(str, range(len(output)))
        return tuple(change(name, item) for name, item in zip(named, output, strict=True))
    return change(names[0], output)


def check_names(cuts: Mapping[str, Cut], known: Collection[str], where: str) -> None:
    """Check that expressions use only known names.

    :param known: numeric features, and variable dimensions of the inputs.
    :raises InputError: an expression uses another name.
    """
    for name, cut in cuts.items():
        for expression in cut:
            unknown = [read for read in expression.names if read not in known] if expression is not None else []
            if expression is not None and unknown:
                raise InputError(
                    f"{where}: found {expression.source!r} for output {name} in [outputs], but neither a numeric "
                    f"feature nor a variable dimension is called {unknown[0]!r}; expected one of "
                    f"{', '.join(sorted(known)) or 'none'}"
                )


def own_part(output: Any, names: Sequence[str], cuts: Mapping[str, Cut], known: Mapping[str, FeatureValue]) -> Any:
    """A request's output without padding at the ends of its dimensions. Sizes are rounded down.

    :param known: the request's features, and the sizes of its inputs' variable dimensions.
    :raises ValueError: a size is not finite, or a feature is text.
    :raises KeyError: the request lacks a feature.
    """
    return _by_name(output, names, lambda name, item: _cut(item, cuts.get(name), known))


def _cut(output: Any, cut: Cut | None, known: Mapping[str, FeatureValue]) -> Any:
    if cut is None or not hasattr(output, "dim"):
        return output
    if output.dim() != len(cut):
        raise ValueError(f"the output has {output.dim()} dimensions; [outputs] gives {len(cut)}, without the batch's")
    return output[tuple(slice(None) if size is None else slice(max(int(size.evaluate(known)), 0)) for size in cut)]
