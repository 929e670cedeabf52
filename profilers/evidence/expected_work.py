"""Expected work of each request and batch for its inputs: design matrices, fits and counterfactuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.run_baselines import Norms
from latfix.profilers.evidence.work_model import fit_work_model, folds_of
from latfix.queueing.length_buckets import padded_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Input attributes of requests, and the members of batches.

    :param attributes: ``(n, g)`` per request: elements, length, then numeric features; nonnegative.
    :param order: requests that were in a batch, grouped by batch.
    :param first: ``(m,)`` start of each batch's group in ``order``; ``count`` its length.
    :param usable: ``(n,)`` requests that define the typical input: measured, ended ``ok``.
    """

    attributes: Floats
    order: Ints
    first: Ints
    count: Ints
    usable: Bools

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Per batch, the sum over its members."""
        running = np.concatenate(
            [np.zeros((1, *values.shape[1:]), values.dtype), np.cumsum(values[self.order], axis=0)]
        )
        return np.asarray(running[self.first + self.count] - running[self.first])

    def largest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Per batch, the maximum over its members; zero without recorded members."""
        result = np.zeros((len(self.first), *values.shape[1:]), values.dtype)
        some = self.count > 0
        if some.any():
            result[some] = np.maximum.reduceat(values[self.order], self.first[some], axis=0)
        return result


class ExpectedWork:
    """Predicted nanoseconds of work, all ``int64``, by models that are fitted, or reused from ``norms``.

    :param times: nanoseconds of work by unit: ``prepare`` and ``finish`` per request, ``compute`` per batch.
    :param clean: mask of the times without a known disturbance.
    :ivar prepare: ``(n,)`` for the request's own input, as ``finish``.
    :ivar alone: ``(n,)`` compute of the request alone in a batch.
    :ivar unpadded: ``(m,)`` compute of the batch without padding; ``padded`` as it ran.
    :ivar typical: ``(max_size + 1,)`` compute of a batch of typical inputs, by batch size.
    :ivar models: by unit, for the report.
    :ivar alone_of: ``(folds, n)`` prediction of ``alone`` by the fit without each fold; ``typical_of`` ``(folds,)``
        of a typical input alone; ``unpadded_of`` and ``padded_of`` ``(folds, m)`` of batches. Their spread is the
        jackknife's error.
    """

    def __init__(
        self,
        members: Members,
        batches: Mapping[str, npt.NDArray[Any]],
        times: Mapping[str, Floats],
        clean: Mapping[str, Bools],
        max_size: int,
        norms: Norms,
    ) -> None:
        designs, real = work_designs(members, batches, norms)
        padded = designs["compute"]
        self.models = norms.of(
            "models",
            lambda: {unit: fit_work_model(design, times[unit], clean[unit]) for unit, design in designs.items()},
        )
        model, attributes = self.models["compute"], members.attributes
        one, elements, lengths = np.ones(len(attributes)), attributes[:, 0], attributes[:, 1]
        by_itself = _batch_design(one, elements, elements, lengths**2, attributes, attributes)
        typical = norms.of("typical_input", lambda: _typical_design(members, max_size))
        folds = folds_of(len(padded))
        fold = np.zeros(len(attributes), np.int64)
        fold[members.order] = np.repeat(folds, members.count)
        self.prepare, self.finish = (
            _ints(self.models[unit].predict(designs[unit], folds_of(len(one)))) for unit in ("prepare", "finish")
        )
        self.alone, self.alone_of = _ints(model.predict(by_itself, fold)), model.predict_each(by_itself)
        self.unpadded, self.unpadded_of = _ints(model.predict(real, folds)), model.predict_each(real)
        self.padded, self.padded_of = _ints(model.predict(padded, folds)), model.predict_each(padded)
        self.typical = _ints(model.predict_mean(typical))
        self.typical_of = model.predict_each(typical)[:, min(1, max_size)]


def work_designs(
    members: Members, batches: Mapping[str, npt.NDArray[Any]], norms: Norms
) -> tuple[dict[str, Floats], Floats]:
    """Design matrices of the units of work as they ran, and of batches without padding."""
    size = np.maximum(batches["size"].astype(np.float64), 1.0)
    total, largest = members.total(members.attributes), members.largest(members.attributes)
    padded_top = largest.copy()
    longest, collated = largest[:, 1], batches["padded_length"].astype(np.float64)
    if norms.of("padded_length_tells", lambda: _is_padded_length(longest, collated)):
        padded_top[:, 1] = np.maximum(longest, collated)
    request = _request_design(members.attributes)
    elements, lengths = np.maximum(padded_elements(batches), total[:, 0]), padded_top[:, 1]
    padded = _batch_design(size, total[:, 0], elements, size * lengths**2, size[:, None] * padded_top, padded_top)
    squares = members.total(members.attributes[:, 1] ** 2)
    real = _batch_design(size, total[:, 0], total[:, 0], squares, total, largest)
    return {"prepare": request, "finish": request, "compute": padded}, real


def jackknife_error(of_folds: Floats) -> Floats:
    """Standard error of a figure from its values without each fold, ``(folds, n)``; Tukey (1958)."""
    folds = len(of_folds)
    gap = of_folds - of_folds.mean(axis=0)
    return np.asarray(np.sqrt((folds - 1) / folds * (gap**2).sum(axis=0)), dtype=np.float64)


def _is_padded_length(longest: Floats, collated: Floats) -> bool:
    """True if dimension 1 of collated batches behaves like the length to which they were padded."""
    return bool(len(collated) and len(np.unique(collated)) > 1 and np.mean(collated >= longest) >= 0.95)


# Columns of the compute design, for g attributes (elements, length, features): 1, B, real elements, padded elements,
# sum of padded lengths, sum of their squares, longest length, and for each feature its padded sum and its maximum.
# Without padding, a sum is over the members; with it, B times the maximum. Then columns that grow more slowly than
# the amount of work, because larger work uses the machine's units better: the roots of real and padded elements, and
# the longest length times the root of the batch size.


def _request_design(attributes: Floats) -> Floats:
    one = np.ones(len(attributes))
    return np.column_stack([one, attributes, attributes[:, 1:] ** 2, np.sqrt(attributes[:, 0])])


def _batch_design(size: Floats, real: Floats, elements: Floats, squares: Floats, sums: Floats, top: Floats) -> Floats:
    """The design of batches.

    :param real: elements of the members; ``elements`` those computed.
    :param squares: sums of the squared lengths; ``sums`` ``(m, g)`` sums of the attributes, as far as computed.
    :param top: ``(m, g)`` maximum of each attribute.
    """
    lengths, longest = sums[:, 1], top[:, 1]
    features = np.stack([sums[:, 2:], top[:, 2:]], axis=2).reshape(len(size), 2 * (top.shape[1] - 2))
    slower = [np.sqrt(real), np.sqrt(elements), np.sqrt(longest * lengths)]
    return np.column_stack([np.ones(len(size)), size, real, elements, lengths, squares, longest, features, *slower])


def padded_row(size: int, real: float, elements: float, top: Sequence[float]) -> list[float]:
    """The columns of one batch as computed, for callers that form batches one by one.

    :param real: elements of its members; ``elements`` includes padding.
    :param top: the maximum of each attribute over its members.
    """
    longest = top[1]
    columns = [1.0, float(size), real, elements, size * longest, size * longest * longest, longest]
    for value in top[2:]:
        columns += [size * value, value]
    return [*columns, math.sqrt(real), math.sqrt(elements), longest * math.sqrt(size)]


def _typical_design(members: Members, max_size: int) -> Floats:
    some = members.attributes[members.usable]
    typical = np.median(some, axis=0) if len(some) else np.zeros(members.attributes.shape[1])
    size = np.maximum(np.arange(max_size + 1, dtype=np.float64), 1.0)
    sums = size[:, None] * typical
    return _batch_design(size, sums[:, 0], sums[:, 0], size * typical[1] ** 2, sums, np.tile(typical, (len(size), 1)))


def _ints(values: Floats) -> Ints:
    return np.rint(values).astype(np.int64)
