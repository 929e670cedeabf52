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
from latfix.profilers.evidence.work_model import WorkModel, fit_work_model
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWork:
    """Predicted nanoseconds of work, all ``int64``.

    :param prepare: ``(n,)`` for the request's own input, as ``finish``.
    :param alone: ``(n,)`` compute of the request alone in a batch.
    :param unpadded: ``(m,)`` compute of the batch without padding; ``padded`` as it ran.
    :param typical: ``(max_size + 1,)`` compute of a batch of typical inputs, by batch size.
    :param models: by unit, for the report.
    :param alone_of: ``(folds, n)`` prediction of ``alone`` by the fit without each fold; ``typical_of`` ``(folds,)``
        of a typical input alone; ``unpadded_of`` and ``padded_of`` ``(folds, m)`` of batches. Their spread is the
        jackknife's error.
    """

    prepare: Ints
    finish: Ints
    alone: Ints
    unpadded: Ints
    padded: Ints
    typical: Ints
    models: Mapping[str, WorkModel]
    alone_of: Floats
    typical_of: Floats
    unpadded_of: Floats
    padded_of: Floats

    def quality(self) -> dict[str, Any]:
        """The quality of each model, for ``diagnosis.json``."""
        return {
            unit: {
                "accepted": model.accepted,
                "r2": round(model.r2, 4),
                "residual_mad_ms": model.residual_mad / 1e6,
                "samples": model.samples,
            }
            for unit, model in self.models.items()
        }


def expect_work(
    members: Members,
    batches: Mapping[str, npt.NDArray[Any]],
    times: Mapping[str, Floats],
    clean: Mapping[str, Bools],
    max_size: int,
    norms: Norms,
) -> ExpectedWork:
    """Fit the models, or reuse those in ``norms``, and predict.

    :param times: nanoseconds of work by unit: ``prepare`` and ``finish`` per request, ``compute`` per batch.
    :param clean: mask of the times without a known disturbance.
    """
    designs, real = work_designs(members, batches, norms)
    padded = designs["compute"]
    fitted_here = "models" not in norms
    models = norms.of(
        "models",
        lambda: {unit: fit_work_model(design, times[unit], clean[unit]) for unit, design in designs.items()},
    )
    model = models["compute"]
    by_itself = _alone_design(members.attributes)
    typical = norms.of("typical_input", lambda: _typical_design(members, max_size))
    if fitted_here:  # each row by the fit that did not see it
        folds = {unit: models[unit].fold for unit in designs}
    else:
        folds = {unit: models[unit].folds_of(len(design)) for unit, design in designs.items()}
    fold = np.zeros(len(members.attributes), np.int64)
    fold[members.order] = np.repeat(folds["compute"], members.count)
    own = {unit: _ints(models[unit].predict(designs[unit], folds[unit])) for unit in ("prepare", "finish")}
    alone = model.predict(by_itself, fold)
    return ExpectedWork(
        prepare=own["prepare"],
        finish=own["finish"],
        alone=_ints(alone),
        unpadded=_ints(model.predict(real, folds["compute"])),
        padded=_ints(model.predict(padded, folds["compute"])),
        typical=_ints(model.predict_mean(typical)),
        models=models,
        alone_of=model.predict_each(by_itself),
        typical_of=model.predict_each(typical)[:, min(1, max_size)],
        unpadded_of=model.predict_each(real),
        padded_of=model.predict_each(padded),
    )


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
    padded = _padded_design(batches, size, total, padded_top)
    real = _unpadded_design(members, size, total, largest)
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
    return np.column_stack([one, attributes, attributes[:, 1] ** 2, np.sqrt(attributes[:, 0])])


def _padded_design(batches: Mapping[str, npt.NDArray[Any]], size: Floats, total: Floats, top: Floats) -> Floats:
    elements = np.maximum(padded_elements(batches), total[:, 0])
    columns = [np.ones(len(size)), size, total[:, 0], elements, size * top[:, 1], size * top[:, 1] ** 2, top[:, 1]]
    for k in range(2, top.shape[1]):
        columns += [size * top[:, k], top[:, k]]
    return np.column_stack([*columns, *_slower(total[:, 0], elements, top[:, 1], size * top[:, 1])])


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


def _slower(real: Floats, padded: Floats, longest: Floats, lengths: Floats) -> list[Floats]:
    """Columns that grow more slowly than the amount of work.

    :param lengths: the sum of the computed lengths.
    """
    return [np.sqrt(real), np.sqrt(padded), np.sqrt(longest * lengths)]


def _unpadded_design(members: Members, size: Floats, total: Floats, largest: Floats) -> Floats:
    squares = members.total(members.attributes[:, 1] ** 2)
    columns = [np.ones(len(size)), size, total[:, 0], total[:, 0], total[:, 1], squares, largest[:, 1]]
    for k in range(2, total.shape[1]):
        columns += [total[:, k], largest[:, k]]
    return np.column_stack([*columns, *_slower(total[:, 0], total[:, 0], largest[:, 1], total[:, 1])])


def _alone_design(attributes: Floats) -> Floats:
    one = np.ones(len(attributes))
    elements, length = attributes[:, 0], attributes[:, 1]
    columns = [one, one, elements, elements, length, length**2, length]
    for k in range(2, attributes.shape[1]):
        columns += [attributes[:, k], attributes[:, k]]
    return np.column_stack([*columns, *_slower(elements, elements, length, length)])


def _typical_design(members: Members, max_size: int) -> Floats:
    some = members.attributes[members.usable]
    typical = np.median(some, axis=0) if len(some) else np.zeros(members.attributes.shape[1])
    size = np.maximum(np.arange(max_size + 1, dtype=np.float64), 1.0)
    elements, length = typical[0], typical[1]
    columns = [np.ones(len(size)), size, size * elements, size * elements, size * length, size * length**2]
    columns.append(np.full(len(size), length))
    for value in typical[2:]:
        columns += [size * value, np.full(len(size), value)]
    return np.column_stack([*columns, *_slower(size * elements, size * elements, columns[6], size * length)])


def _ints(values: Floats) -> Ints:
    return np.rint(values).astype(np.int64)
