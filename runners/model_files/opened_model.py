"""The inputs, outputs and loader of a model file, the same for all backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from latfix.traffic.feature_expressions import Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of an input.

    :param size: the fixed size; ``None`` if it varies.
    :param symbol: name of a size that varies. Dimensions with the same symbol are equally long. It may be an
        expression over the symbols of other dimensions.
    :param least: the smallest size that the file takes.
    :param most: the largest; ``None`` for no limit.
    :param derived: the symbol as an expression, once the layout is known.
    """

    size: int | None = None
    symbol: str = ""
    least: int = 1
    most: int | None = None
    derived: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInput:
    """One input of a model file.

    :param dtype: torch's name; ``None`` if the file does not state it.
    :param axes: its dimensions; ``None`` if the file does not state them.
    :param rows: number of rows of the table that its values index, if known.
    """

    name: str
    dtype: str | None
    axes: tuple[Axis, ...] | None
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model file that its backend has read.

    :param backend: its name in tables.
    :param inputs: in call order.
    :param outputs: names in order; empty if the file does not state them.
    :param output_axes: dimensions by output name, as far as the file states them.
    :param load: makes a module on a torch device. It takes one tensor per input, in order, and returns a tensor, or a
        tuple, list or dict of them.
    """

    file: Path
    backend: str
    inputs: tuple[TensorInput, ...]
    load: Callable[[str], torch.nn.Module]
    outputs: tuple[str, ...] = ()
    output_axes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
