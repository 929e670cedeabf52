"""The shapes that an engine is built for: of each dimension the least, the one that is tuned for, and the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latfix.errors import RunnerError

Shape = tuple[int, ...]
#: The shapes of all tensors that one call of the model is given, in the order of the flattened batch.
Shapes = tuple[Shape, ...]
#: Where a dimension varies, the exporter takes 0 and 1 for sizes of a kind of their own; 2 alone is no variation.
_FEWEST_MOST = 3


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of one dimension: from ``least`` to ``most``, kernels chosen for ``tuned``."""

    least: int
    tuned: int
    most: int

    @property
    def varies(self) -> bool:
        """Whether it may differ from batch to batch."""
        return self.least < self.most

    def __str__(self) -> str:
        return f"{self.least}..{self.tuned}..{self.most}" if self.varies else str(self.most)


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """For each tensor the extents of its dimensions."""

    inputs: tuple[tuple[Extent, ...], ...]

    def holds(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether a call with tensors of these shapes is one that the engine was built for."""
        return len(shapes) == len(self.inputs) and all(
            len(shape) == len(extents)
            and all(extent.least <= size <= extent.most for size, extent in zip(shape, extents, strict=True))
            for shape, extents in zip(shapes, self.inputs, strict=True)
        )

    def words(self) -> list[str]:
        """For each tensor its shape, ``(1..8..8, 4..71..512)`` where dimensions vary."""
        return [f"({', '.join(map(str, extents))})" for extents in self.inputs]

    def least(self) -> Shapes:
        """The smallest shapes."""
        return tuple(tuple(extent.least for extent in extents) for extents in self.inputs)

    def tuned(self) -> Shapes:
        """The shapes that kernels are chosen for."""
        return tuple(tuple(extent.tuned for extent in extents) for extents in self.inputs)

    def most(self) -> Shapes:
        """The largest shapes."""
        return tuple(tuple(extent.most for extent in extents) for extents in self.inputs)


def profile_of(seen: Sequence[Shapes], tuned: Shapes) -> ShapeProfile:
    """The profile that holds all of ``seen``.

    :param seen: shapes of batches, the smallest and the largest that traffic makes among them.
    :param tuned: of the batch that kernels are to be chosen for.
    :raises RunnerError: the batches are not of the same number of tensors and dimensions.
    """
    every = [*seen, tuned]
    if len({tuple(len(shape) for shape in shapes) for shapes in every}) > 1:
        raise RunnerError(
            "the inputs have tensors of different dimensions at one place, which no engine can be built for"
        )
    return ShapeProfile(
        tuple(
            tuple(_extent([shapes[k][d] for shapes in every], tuned[k][d]) for d in range(len(tuned[k])))
            for k in range(len(tuned))
        )
    )


def _extent(sizes: Sequence[int], tuned: int) -> Extent:
    # TensorRT knows no empty tensors: a batch with one is run by the original.
    least, most = max(min(sizes), 1), max(*sizes, 1)
    if least < most:
        most = max(most, _FEWEST_MOST)
    return Extent(least, min(max(tuned, least), most), most)


def example_index(batches: Sequence[Shapes], seen: Sequence[Shapes], wanted: Shapes) -> int:
    """Which batch to trace the model with: kernels are chosen for just its sizes.

    The one nearest to ``wanted`` without a varying dimension of 0 or 1, which a trace would take for a constant.

    :raises RunnerError: there is none such.
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
        raise RunnerError("every batch of the traffic has a dimension of 0 or 1 that varies: none can be traced")
    return min(fitting, key=lambda k: _distance(batches[k], wanted))


def _distance(shapes: Shapes, wanted: Shapes) -> float:
    pairs = [pair for a, b in zip(shapes, wanted, strict=True) for pair in zip(a, b, strict=True)]
    return sum(abs(size - goal) / max(goal, 1) for size, goal in pairs)
