"""How long a batch takes by its members' inputs: the run's model of work, and what was learned since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats
from latfix.profilers.evidence.expected_work import padded_row
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.evidence.work_model import WorkModel
from latfix.profilers.forecast.batch_cost import BatchCost, columns
from latfix.queueing.length_buckets import padded_elements, padded_sides


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """The duration of a batch by its members' inputs.

    :param fixed: nanoseconds of every batch in addition to compute: collate, copies.
    :param bias: nanoseconds of undisturbed compute beyond the model of work.
    :param coefficients: of the run's model of compute; empty if inputs do not explain it, then ``typical`` is used.
    :param typical: ``(max_size + 1,)`` by batch size.
    :param padded: padding in the run, as a share of padding to the largest side of any member.
    :param shape: correction learned from batches computed on purpose (:meth:`Forecast.learn`).
    :param new_shape_ns: as in :class:`BatchCost`, with the settings that ran. Zero: part of all batches' time.
    """

    fixed: float
    bias: float
    coefficients: tuple[float, ...]
    typical: tuple[float, ...]
    padded: float
    shape: BatchCost | None = None
    new_shape_ns: float = 0.0

    @classmethod
    def of(cls, evidence: Evidence) -> BatchTime:
        batches, members, expected = evidence.batches, evidence.members, evidence.expected
        size = np.maximum(batches["size"].astype(np.float64), 1.0)
        real = members.total(members.attributes)[:, 0]
        most = size * members.largest(padded_sides(evidence.rows)).prod(axis=1)
        added = np.maximum(padded_elements(batches) - real, 0.0)
        could = np.maximum(most - real, 0.0)
        held = (batches["d2h_end_ns"] - batches["close_ns"]).astype(np.float64)
        computed = (batches["compute_end_ns"] - batches["h2d_end_ns"]).astype(np.float64)
        quiet = evidence.quiet_batch
        other, beyond = (held - computed)[quiet], (computed - expected.padded)[quiet]
        model: WorkModel = expected.models["compute"]
        return cls(
            fixed=max(float(np.median(other)), 0.0) if len(other) else 0.0,
            bias=max(float(np.median(beyond)), 0.0) if len(beyond) else 0.0,
            coefficients=tuple(model.coefficients.mean(axis=0).tolist()) if model.accepted else (),
            typical=tuple(expected.typical.astype(float).tolist()),
            padded=float(np.clip(added.sum() / could.sum(), 0.0, 1.0)) if could.sum() > 0 else 0.0,
        )

    def timer(self, inputs: Floats, cost: BatchCost | None) -> Callable[[Sequence[int]], float]:
        """A function from rows of ``inputs`` to the undisturbed compute time of a batch of them, nanoseconds.

        :param inputs: of some requests, as :class:`latfix.profilers.forecast.recorded_work.RecordedWork` has them.
        """
        rows, known, shape = inputs.tolist(), self.coefficients, self.shape

        def time_of(members: Sequence[int]) -> float:
            total, elements, top = self.held(rows, members)
            size, longest = len(members), top[1]
            if known:
                took = self.bias + sum(map(float.__mul__, known, padded_row(size, total, elements, top)))
            else:
                took = self.bias + self.typical[min(size, len(self.typical) - 1)]
            for each in (shape, cost):
                if each is not None:
                    took *= each.ratio(columns(size, elements, longest, top[2:]))
            return took

        return time_of

    def shaped(self, evidence: Evidence) -> Floats:
        """``(m,)`` by recorded batch, the ratio of ``shape``."""
        if self.shape is None:
            return np.ones(len(evidence.batches["size"]))
        sizes, elements = evidence.batches["size"].tolist(), padded_elements(evidence.batches).tolist()
        tops = evidence.members.largest(evidence.members.attributes).tolist()
        what = zip(sizes, elements, tops, strict=True)
        return np.array([self.shape.ratio(columns(size, padded, top[1], top[2:])) for size, padded, top in what])

    def undisturbed(self, evidence: Evidence) -> Floats:
        """``(m,)`` by recorded batch, what its inputs needed, nanoseconds."""
        new = self.new_shape_ns * (evidence.batches["first_shape"] > 0)
        return np.maximum(self.fixed + (self.bias + evidence.expected.padded) * self.shaped(evidence) + new, 1.0)

    def columns_of(self, inputs: Floats, members: Sequence[int]) -> list[float]:
        """:func:`latfix.profilers.forecast.batch_cost.columns` of a batch of some of these inputs."""
        _, elements, top = self.held(inputs.tolist(), members)
        return columns(len(members), elements, top[1], top[2:])

    def held(self, rows: list[list[float]], members: Sequence[int]) -> tuple[float, float, list[float]]:
        """Real and padded elements of a batch, and the maximum of each attribute."""
        if len(members) == 1:
            only = rows[members[0]]
            return only[0], only[0], only[:-2]
        some = [rows[member] for member in members]
        total, (*top, width, height) = sum(row[0] for row in some), map(max, zip(*some, strict=True))
        return total, total + self.padded * (len(some) * width * height - total), top
