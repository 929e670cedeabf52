"""A figure known only from below: a percentile that falls among the lost requests of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: Documents store such a figure as ``null``, and its bound under the same name with this suffix.
SUFFIX = "_at_least"


class AtLeast(float):
    """Infinite in calculations and comparisons, so that losing requests never makes a figure look better.

    :ivar bound: the figure exceeds this, in its own unit; 0 if nothing is known.
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
    """A figure, known or :class:`AtLeast`, in multiples of a unit."""
    return AtLeast(figure.bound / unit) if isinstance(figure, AtLeast) else figure / unit


def in_order(ascending: Iterable[float]) -> list[float]:
    """Figures of which none is below an earlier one, each bound raised to the largest figure or bound before it.

    How long lost requests had waited says less than a lower percentile that is known.
    """
    found, most = [], 0.0
    for figure in ascending:
        if isinstance(figure, AtLeast):
            most = max(most, figure.bound)
            figure = AtLeast(most)
        elif not math.isnan(figure):
            most = max(most, figure)
        found.append(figure)
    return found


def restored(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Figures of a document, each ``null`` with a bound merged into an :class:`AtLeast`; NaN for other nulls."""
    found = {name: math.nan if value is None else float(value) for name, value in figures.items()}
    for name in [name for name in found if name.endswith(SUFFIX)]:
        base = name.removesuffix(SUFFIX)
        if math.isnan(found.get(base, 0.0)):
            found[base] = AtLeast(found.pop(name))
    return found
