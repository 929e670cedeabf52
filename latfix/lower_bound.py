"""A figure that is known from below only: the percentile of a run that lost more requests than it allows."""

from __future__ import annotations

import math
from collections.abc import Mapping

#: In a document such a figure is ``null``, with its bound beside it under the same name and this.
SUFFIX = "_at_least"


class AtLeast(float):
    """Infinite to calculate and compare with, so that nothing looks better for being lost.

    :ivar bound: what it surely exceeds, in the figure's unit; 0 where nothing is known.
    """

    bound: float

    def __new__(cls, bound: float) -> AtLeast:
        """A figure above ``bound``."""
        figure = super().__new__(cls, math.inf)
        figure.bound = float(bound)
        return figure

    def __getnewargs__(self) -> tuple[float]:
        return (self.bound,)

    def __repr__(self) -> str:
        return f"AtLeast({self.bound!r})"


def in_unit(figure: float, unit: float) -> float:
    """A figure, known or from below, in multiples of a unit."""
    return AtLeast(figure.bound / unit) if isinstance(figure, AtLeast) else figure / unit


def restored(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Figures as a document has them, those that are known from below in one piece; NaN for what is not there."""
    found = {name: math.nan if value is None else float(value) for name, value in figures.items()}
    for name in [name for name in found if name.endswith(SUFFIX)]:
        base = name.removesuffix(SUFFIX)
        if math.isnan(found.get(base, 0.0)):
            found[base] = AtLeast(found.pop(name))
    return found
