"""Selection of the traffic's numeric features that predict the work of a request, by out-of-fold error.

Less strict than the terms of a recording (:mod:`work_shapes`), because mistakes cost less: a feature is an input that
the user named, and of an irrelevant one the fit makes nothing. Some hundred batches show few features for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints, ranks
from latfix.profilers.evidence.expected_work import Members, work_designs
from latfix.profilers.evidence.run_baselines import Norms
from latfix.profilers.evidence.work_model import error_out_of_fold

#: Each further feature needs more batches than most runs have.
_MOST_FEATURES = 3
#: Most features that are tried one by one: those with the strongest correlation with time.
_MOST_TRIED = 8
#: A feature is selected if it reduces the out-of-fold error by this share.
_LEAST_GAIN = 0.05
#: Least rank correlation with the order of arrival, and least share of distinct values, of a running number. It
#: cannot be separated from the service's age, and is not a size.
_RUNNING, _MOSTLY_DISTINCT = 0.9, 0.5


def with_features(members: Members, columns: Sequence[Floats]) -> Members:
    """The members with more attributes, one per column."""
    extended = np.column_stack([members.attributes, *columns]) if columns else members.attributes
    return replace(members, attributes=np.maximum(extended, 0.0))


def numeric(column: npt.NDArray[Any], position: Ints | slice) -> Floats:
    """A feature of each request as a finite number; zero if missing."""
    return np.nan_to_num(column[position].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def predictive_features(
    features: Mapping[str, npt.NDArray[Any]],
    position: Ints,
    times: Sequence[Floats],
    error: Callable[[Sequence[Floats]], float],
) -> tuple[str, ...]:
    """Names of at most three numeric, nonnegative, varying features that are not running numbers.

    If there are more, they are selected greedily, each the one with the smallest ``error``.

    :param times: durations of parts of each request, each ``(n,)``, zero if unknown.
    :param error: the out-of-fold error of models of work with these columns, ``(n,)`` each.
    """
    found = possible_features(features, position)
    if len(found) <= _MOST_FEATURES:
        return tuple(found)
    return _greedy(likeliest_features(found, times), lambda names: error([found[name] for name in names]))


def possible_features(features: Mapping[str, npt.NDArray[Any]], position: Ints | slice) -> dict[str, Floats]:
    """The numeric, nonnegative, varying features that are not running numbers, of the requests at positions."""
    found = {name: numeric(column, position) for name, column in features.items() if column.dtype.kind in "iuf"}
    return {
        name: values
        for name, values in found.items()
        if len(values) and values.min() >= 0 and np.ptp(values) > 0 and not is_running_number(values)
    }


def error_of_work(
    members: Members,
    batches: Mapping[str, npt.NDArray[Any]],
    times: Mapping[str, Floats],
    clean: Mapping[str, Bools],
    columns: Sequence[Floats],
) -> float:
    """The out-of-fold error of the models of all units, with more columns in addition to the sizes.

    :param members: with sizes only; ``times`` and ``clean`` as for ``ExpectedWork``.
    """
    designs, _ = work_designs(with_features(members, columns), batches, Norms())
    return sum(error_out_of_fold(design, times[unit], clean[unit]) for unit, design in designs.items())


def _greedy(names: Sequence[str], error: Callable[[Sequence[str]], float]) -> tuple[str, ...]:
    chosen: list[str] = []
    left, rest = error(()), list(names)
    while rest and len(chosen) < _MOST_FEATURES:
        errors = {name: error((*chosen, name)) for name in rest}
        best = min(errors, key=errors.__getitem__)
        if errors[best] > (1 - _LEAST_GAIN) * left:
            break
        chosen.append(best)
        # A feature that does not help now will hardly help in addition to the selected one.
        rest = [name for name in rest if name != best and errors[name] < left]
        left = errors[best]
    return tuple(chosen)


def is_running_number(values: Floats) -> bool:
    """True if values in order of arrival are an index, a sequence number or a time.

    :param values: ``(n,)``.
    """
    if len(np.unique(values)) < _MOSTLY_DISTINCT * len(values) or len(values) < 3:
        return False
    return abs(rank_correlation(values, np.arange(len(values)))) >= _RUNNING


def likeliest_features(found: Mapping[str, Floats], times: Sequence[Floats]) -> list[str]:
    """The eight features with the strongest rank correlation with a time."""
    if len(found) <= _MOST_TRIED:
        return list(found)

    def strongest(name: str) -> float:
        return max(rank_correlation(found[name][taken > 0], taken[taken > 0]) for taken in times)

    return sorted(found, key=strongest, reverse=True)[:_MOST_TRIED]


def rank_correlation(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Spearman's correlation, with mean ranks for ties; zero if one is constant."""
    if len(first) < 3:
        return 0.0
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    power = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / power if power > 0 else 0.0
