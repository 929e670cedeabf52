"""What a model file asks for and how it is run, whatever its backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of an input.

    :param size: where the file fixes it.
    :param symbol: where it does not: dimensions of one symbol are equally long. It may be an expression over
        the symbols of other dimensions.
    :param least: the smallest size that the file takes.
    :param most: the largest; ``None`` where it states none.
    """

    size: int | None = None
    symbol: str = ""
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInput:
    """One input of a model file.

    :param dtype: as torch names it; ``None`` where the file does not say.
    :param axes: its dimensions; ``None`` where the file does not say.
    :param rows: of the table that its values look up, where that is seen in the file.
    """

    name: str
    dtype: str | None
    axes: tuple[Axis, ...] | None
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model file that its backend has read.

    :param backend: as the tables call it.
    :param inputs: in the order in which they are given.
    :param outputs: names of the outputs in order; none where the file does not say. ``output_axes`` their dimensions
        by name, of those of which the file does.
    :param load: makes a module on a torch device, which takes one tensor for each input, in order, and returns a
        tensor, or a tuple, list or dict of them.
    """

    file: Path
    backend: str
    inputs: tuple[TensorInput, ...]
    load: Callable[[str], torch.nn.Module]
    outputs: tuple[str, ...] = ()
    output_axes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
