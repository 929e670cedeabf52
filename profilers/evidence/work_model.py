"""Duration of work by its inputs: a monotone model fitted out of fold on the run itself.

Time is a nonnegative combination of columns that grow with the input (batch size, elements, lengths and their
squares), so it can only grow with them. Faults are outliers: the fit reweights relative residuals with Tukey's
biweight, and each block of time is predicted by a fit that did not see it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from latfix.arrays import Bools, Floats, Ints

#: One for each block of time below.
MIN_SAMPLES = 12
#: Below this share of explained spread the model is a constant.
MIN_R2 = 0.1
#: With fewer samples than this the fit must explain more, because it may look good by chance.
_MANY, _FEW_R2 = 40, 0.5
#: Each fold is three blocks of time apart, so that a slow stretch is not all of a fold.
_FOLDS, _BLOCKS = 4, 12
#: Reweighting rounds: half with absolute deviations, half with the biweight. More change nothing visible.
_ROUNDS = 8
#: Samples of a fit, and those by which designs are compared. They bound the time.
_MAX_FIT, _MAX_COMPARED = 20_000, 2_000
#: Steps of a level that rises with age, fitted together with the inputs; least rise, as a share of typical time.
_AGE_STEPS = 5
_AGED = 0.1
#: Standard deviations in a median absolute deviation, if the scatter is normal.
STANDARD = 1.4826
#: A unit is clearly slow beyond so many standard deviations, which chance hardly reaches, and this share of a typical
#: one: less is of no interest, however steady the work is.
_DEVIATIONS, _LEAST_SHARE = 4.0, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkModel:
    """A fitted model of work.

    :param coefficients: ``(folds, columns)`` nonnegative, nanoseconds per unit of a column.
    :param accepted: false if the fit explains too little; then the model predicts ``typical`` everywhere.
    :param r2: share of the spread explained out of fold, with outliers down-weighted.
    :param residual_mad: median absolute out-of-fold residual of undisturbed samples, in nanoseconds.
    :param typical: median of the fitted samples, in nanoseconds.
    :param samples: number of fitted samples.
    """

    coefficients: Floats
    accepted: bool
    r2: float
    residual_mad: float
    typical: float
    samples: int

    def predict(self, design: Floats, fold: Ints) -> Floats:
        """Nanoseconds for rows of a design matrix, each by the fit without its fold (:func:`folds_of`)."""
        if not self.accepted:
            return np.full(len(design), self.typical)
        return np.asarray(np.einsum("ij,ij->i", design, self.coefficients[fold]), dtype=np.float64)

    def clearly_slow_ns(self, usual: float) -> float:
        """Nanoseconds beyond the model from which a unit is clearly slow.

        :param usual: the median of comparable units beyond the model.
        """
        return max(usual + _DEVIATIONS * STANDARD * self.residual_mad, _LEAST_SHARE * self.typical)

    def quality(self) -> dict[str, Any]:
        """How good it is, for ``diagnosis.json``."""
        return {
            "accepted": self.accepted,
            "r2": round(self.r2, 4),
            "residual_mad_ms": self.residual_mad / 1e6,
            "samples": self.samples,
        }

    def predict_mean(self, design: Floats) -> Floats:
        """Nanoseconds for rows of a design matrix that belong to no time of the run, by the mean fit."""
        if not self.accepted:
            return np.full(len(design), self.typical)
        return np.asarray(design @ self.coefficients.mean(axis=0), dtype=np.float64)

    def predict_each(self, design: Floats) -> Floats:
        """``(folds, n)``: nanoseconds for rows of a design matrix, by the fit without each fold."""
        if not self.accepted:
            return np.full((len(self.coefficients), len(design)), self.typical)
        return np.asarray(self.coefficients @ design.T, dtype=np.float64)


def fit_work_model(design: Floats, time_ns: Floats, usable: Bools) -> WorkModel:
    """Fit time on nonnegative columns.

    :param design: ``(n, columns)``, rows in order of time, all entries nonnegative and growing with the input.
    :param time_ns: ``(n,)`` duration of the work.
    :param usable: ``(n,)`` samples without a known disturbance.
    """
    n = len(time_ns)
    fold = folds_of(n)
    rows = np.flatnonzero(usable)
    constant = _constant(design, time_ns, rows)
    typical = constant.typical
    fitted = rows[:: max(1, len(rows) // _MAX_FIT)]
    # All in one fold: the service answered only for a small part of the run.
    if len(rows) < MIN_SAMPLES or typical <= 0 or not np.ptp(fold[fitted]):
        return constant
    aged = _aging(design, time_ns, fitted, fold, typical)
    young = None if aged is None else time_ns - aged
    if young is not None and (left := float(np.median(young[rows]))) > 0:
        time_ns, typical = young, left  # slowdown with age is not a property of the inputs
        constant = _constant(design, time_ns, rows)
    coefficients = np.stack([_fit(design, time_ns, fitted[fold[fitted] != k], typical) for k in range(_FOLDS)])
    predicted = np.einsum("ij,ij->i", design[rows], coefficients[fold[rows]])
    residual = time_ns[rows] - predicted
    weight = _biweight(residual, predicted, typical)
    center = float(np.average(time_ns[rows], weights=weight)) if weight.sum() > 0 else typical
    spread = float((weight * (time_ns[rows] - center) ** 2).sum())
    r2 = 1.0 - float((weight * residual**2).sum()) / spread if spread > 0 else 0.0
    if r2 < (MIN_R2 if len(rows) >= _MANY else _FEW_R2):
        return constant
    return replace(constant, coefficients=coefficients, accepted=True, r2=r2, residual_mad=_mad(residual))


def error_out_of_fold(design: Floats, time_ns: Floats, usable: Bools) -> float:
    """Median absolute out-of-fold residual of at most two thousand usable samples, in nanoseconds."""
    predicted, rows = predicted_out_of_fold(design, np.where(usable, time_ns, 0.0))
    return float(np.median(np.abs(time_ns[rows] - predicted))) if len(rows) else 0.0


def predicted_out_of_fold(design: Floats, time_ns: Floats) -> tuple[Floats, Ints]:
    """What fits without their own fold predict for at most two thousand samples of a time above 0, and their rows.

    Both are empty if there are too few.
    """
    rows = np.flatnonzero(time_ns > 0)
    if len(rows) < MIN_SAMPLES:
        return np.zeros(0), rows[:0]
    typical = float(np.median(time_ns[rows]))
    rows = rows[:: max(1, len(rows) // _MAX_COMPARED)]
    fold = folds_of(len(time_ns))[rows]
    predicted = time_ns[rows].copy()
    for k in range(_FOLDS):
        if (fold != k).any():
            coefficients = _fit(design, time_ns, rows[fold != k], typical)
            predicted[fold == k] = design[rows[fold == k]] @ coefficients
    return predicted, rows


def _constant(design: Floats, time_ns: Floats, rows: Ints) -> WorkModel:
    """The model that ignores inputs."""
    typical = float(np.median(time_ns[rows])) if len(rows) else 0.0
    return WorkModel(
        coefficients=np.zeros((_FOLDS, design.shape[1])),
        accepted=False,
        r2=0.0,
        residual_mad=_mad(time_ns[rows] - typical),
        typical=typical,
        samples=len(rows),
    )


def _aging(design: Floats, time_ns: Floats, fitted: Ints, fold: Ints, typical: float) -> Floats | None:
    """``(n,)`` slowdown since the run's start, in steps; ``None`` if it is small."""
    n = len(time_ns)
    age = np.arange(n) / max(n, 1)
    steps = (age[:, None] >= np.arange(1, _AGE_STEPS + 1) / (_AGE_STEPS + 1)) * typical
    both = np.concatenate([design, steps], axis=1)
    parts = [_fit(both, time_ns, fitted[fold[fitted] != k], typical)[design.shape[1] :] for k in range(_FOLDS)]
    rise = np.median(parts, axis=0)
    return np.asarray(steps @ rise, dtype=np.float64) if float(rise.sum()) > _AGED else None


def folds_of(n: int) -> Ints:
    """The folds of ``n`` samples in order of time: blocks of time, assigned in turn."""
    return (np.arange(n) * _BLOCKS // max(n, 1) % _FOLDS).astype(np.int64)


def _fit(design: Floats, time_ns: Floats, rows: Ints, typical: float) -> Floats:
    x, y = design[rows], time_ns[rows]
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
    x = x / scale
    weight = 1.0 / np.maximum(y, 0.1 * typical) ** 2
    coefficients = nonnegative_least_squares(x, y, weight)
    for k in range(_ROUNDS):
        predicted = x @ coefficients
        residual = y - predicted
        level = np.maximum(predicted, 0.1 * typical)
        if k < _ROUNDS // 2:  # least absolute deviations first: a start that outliers cannot pull away
            weight = 1.0 / (level * np.maximum(np.abs(residual), 0.005 * level))
        else:
            weight = _biweight(residual, predicted, typical) / level**2
        if not weight.any():
            break
        coefficients = nonnegative_least_squares(x, y, weight)
    return np.asarray(coefficients / scale, dtype=np.float64)


def _biweight(residual: Floats, predicted: Floats, typical: float) -> Floats:
    """Tukey's biweight on residuals relative to the predicted time, which is floored."""
    relative = residual / np.maximum(predicted, 0.1 * typical)
    z = relative / (4.685 * max(STANDARD * _mad(relative), 0.005))
    return np.where(np.abs(z) < 1, (1 - z**2) ** 2, 0.0)


def _mad(values: Floats) -> float:
    return _median(np.abs(values - _median(values))) if len(values) else 0.0


def _median(values: Floats) -> float:
    """As :func:`numpy.median` of numbers, which spends most of its time on other cases."""
    middle = [(len(values) - 1) // 2, len(values) // 2]
    low, high = np.partition(values, middle)[middle]
    return float(low + high) / 2


def nonnegative_least_squares(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Coefficients ``b >= 0`` that minimize ``sum(weight * (y - x b)^2)``.

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, ch. 23) on the normal
    equations, with a ridge of 1e-9 for columns that repeat each other.
    """
    weighted = x * weight[:, None]
    gram = weighted.T @ x
    target = weighted.T @ y
    columns = len(target)
    gram.flat[:: columns + 1] += 1e-9 * max(float(np.trace(gram)) / columns, 1e-300)
    b = np.zeros(columns)
    passive = np.zeros(columns, dtype=bool)
    tolerance = 1e-10 * max(float(np.abs(target).max()), 1e-300)
    for _ in range(3 * columns):
        gradient = target - gram @ b
        gradient[passive] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        passive[best] = True
        while True:
            trial, among = np.zeros(columns), np.flatnonzero(passive)
            trial[among] = np.linalg.solve(gram[among[:, None], among], target[among])
            if trial[among].min() > 0:
                b = trial
                break
            falling = passive & (trial <= 0)
            step = float(np.min(b[falling] / np.maximum(b[falling] - trial[falling], 1e-300)))
            b = b + step * (trial - b)
            passive &= b > 1e-300
            b[~passive] = 0.0
            if not passive.any():
                break
    return b
