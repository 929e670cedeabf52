"""The shapes for which an engine is built: smallest, tuned and largest size of each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latfix.errors import RunnerError

Shape = tuple[int, ...]
#: The shapes of all tensors in one call of the model, in the order of the flattened batch.
Shapes = tuple[Shape, ...]
#: Least upper bound of a varying dimension: the exporter treats 0 and 1 specially, and 2 alone is no variation.
_FEWEST_MOST = 3


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of one dimension: from ``least`` to ``most``, with kernels chosen for ``tuned``."""

    least: int
    tuned: int
    most: int

    @property
    def varies(self) -> bool:
        """True if it may differ between batches."""
        return self.least < self.most

    def __str__(self) -> str:
        return f"{self.least}..{self.tuned}..{self.most}" if self.varies else str(self.most)


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """The extents of each tensor's dimensions."""

    inputs: tuple[tuple[Extent, ...], ...]

    def holds(self, shapes: Sequence[Sequence[int]]) -> bool:
        """True if the engine takes tensors of these shapes."""
        return len(shapes) == len(self.inputs) and all(
            len(shape) == len(extents)
            and all(extent.least <= size <= extent.most for size, extent in zip(shape, extents, strict=True))
            for shape, extents in zip(shapes, self.inputs, strict=True)
        )

    def words(self) -> list[str]:
        """Each tensor's shape as text, ``(1..8..8, 4..71..512)`` if dimensions vary."""
        return [f"({', '.join(map(str, extents))})" for extents in self.inputs]


def profile_of(seen: Sequence[Shapes], tuned: Shapes) -> ShapeProfile:
    """The profile that covers all of ``seen``.

    :param seen: shapes of batches, including the smallest and the largest of the traffic.
    :param tuned: shapes for which kernels are chosen.
    :raises RunnerError: batches differ in the number of tensors or dimensions.
    """
    every = [*seen, tuned]
    if len({tuple(len(shape) for shape in shapes) for shapes in every}) > 1:
        raise RunnerError(
            "no engine can be built: found an input with different numbers of dimensions in different batches"
        )
    return ShapeProfile(
        tuple(
            tuple(_extent([shapes[k][d] for shapes in every], tuned[k][d]) for d in range(len(tuned[k])))
            for k in range(len(tuned))
        )
    )


def _extent(sizes: Sequence[int], tuned: int) -> Extent:
    # TensorRT has no empty tensors: the original runs batches with one.
    least, most = max(min(sizes), 1), max(*sizes, 1)
    if least < most:
        most = max(most, _FEWEST_MOST)
    return Extent(least, min(max(tuned, least), most), most)


def example_index(batches: Sequence[Shapes], seen: Sequence[Shapes], wanted: Shapes) -> int:
    """Index of the batch for tracing the model, whose sizes kernels are chosen for.

    The nearest to ``wanted`` without a varying dimension of 0 or 1, which a trace would treat as a constant.

    :raises RunnerError: there is no such batch.
    """
    profile = profile_of(seen, wanted)
    fitting = [
        k
        for k, shapes in enumerate(batches)
        if all(
            size > 1 or not extent.varies
            for shape, extents in zip(shapes, profile.inputs, strict=True)
            for size, extent in zip(shape, extents, strict=True)
        )
    ]
    if not fitting:
        raise RunnerError("every batch of the traffic has a varying dimension of size 0 or 1: none can be traced")
    return min(fitting, key=lambda k: _distance(batches[k], wanted))


def _distance(shapes: Shapes, wanted: Shapes) -> float:
    pairs = [pair for a, b in zip(shapes, wanted, strict=True) for pair in zip(a, b, strict=True)]
    return sum(abs(size - goal) / max(goal, 1) for size, goal in pairs)
