"""Which of the traffic's numeric features say how much work a request is: those that explain time out of fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.expected_work import Members, work_designs
from latfix.profilers.evidence.run_baselines import Norms
from latfix.profilers.evidence.work_model import error_out_of_fold
from latfix.statistics.block_bootstrap import ranks

_MOST_FEATURES = 3
#: Features that are tried one by one; of more, those that go best with what sizes leave.
_MOST_TRIED = 8
#: A feature is taken where it makes the error out of fold smaller by this share.
_LEAST_GAIN = 0.05
#: A number that follows the order of arrival this closely, and is another for this share of requests, is a running
#: number: it cannot be told from the service's age, and is no size.
_RUNNING, _MOSTLY_DISTINCT = 0.9, 0.5


def with_features(members: Members, columns: Sequence[Floats]) -> Members:
    """The members with more attributes, one a column."""
    extended = np.column_stack([members.attributes, *columns]) if columns else members.attributes
    return replace(members, attributes=np.maximum(extended, 0.0))


def numeric(column: npt.NDArray[Any], position: Ints) -> Floats:
    """A feature of each request as a finite number; zero where it has none."""
    return np.nan_to_num(column[position].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def telling_features(
    features: Mapping[str, npt.NDArray[Any]],
    position: Ints,
    times: Sequence[Floats],
    error: Callable[[Sequence[Floats]], float],
) -> tuple[str, ...]:
    """Names of at most three numeric, nonnegative, varying features of the requests that are no running numbers.

    Where there are more, they are added one after the other, each the one that makes ``error`` smallest.

    :param times: what parts of each request took, each ``(n,)``, zero where that is not known.
    :param error: how far models of work with these columns, ``(n,)`` each, are from times that they have not seen.
    """
    found: dict[str, Floats] = {}
    for name, column in features.items():
        if column.dtype.kind in "iuf" and len(column):
            values = numeric(column, position)
            if len(values) and values.min() >= 0 and np.ptp(values) > 0 and not is_running_number(values):
                found[name] = values
    if len(found) <= _MOST_FEATURES:
        return tuple(found)
    return _added_one_by_one(_likeliest(found, times), lambda names: error([found[name] for name in names]))


def error_of_work(
    members: Members,
    batches: Mapping[str, npt.NDArray[Any]],
    times: Mapping[str, Floats],
    clean: Mapping[str, Bools],
    columns: Sequence[Floats],
) -> float:
    """How far the models of all units are from times that they have not seen, with more columns beside the sizes.

    :param members: with sizes alone; ``times`` and ``clean`` as for ``expect_work``.
    """
    designs, _ = work_designs(with_features(members, columns), batches, Norms())
    return sum(error_out_of_fold(design, times[unit], clean[unit]) for unit, design in designs.items())


def _added_one_by_one(names: Sequence[str], error: Callable[[Sequence[str]], float]) -> tuple[str, ...]:
    chosen: list[str] = []
    left, rest = error(()), list(names)
    while rest and len(chosen) < _MOST_FEATURES:
        errors = {name: error((*chosen, name)) for name in rest}
        best = min(errors, key=errors.__getitem__)
        if errors[best] > (1 - _LEAST_GAIN) * left:
            break
        chosen.append(best)
        # What alone brings nothing now will hardly do so beside the one that was taken.
        rest = [name for name in rest if name != best and errors[name] < left]
        left = errors[best]
    return tuple(chosen)


def is_running_number(values: Floats) -> bool:
    """Whether values in order of arrival are an index, a sequence number or a time.

    :param values: ``(n,)``.
    """
    if len(np.unique(values)) < _MOSTLY_DISTINCT * len(values) or len(values) < 3:
        return False
    return abs(_rank_correlation(values, np.arange(len(values)))) >= _RUNNING


def _likeliest(found: Mapping[str, Floats], times: Sequence[Floats]) -> list[str]:
    """The features that go best with a time that something took."""
    if len(found) <= _MOST_TRIED:
        return list(found)

    def strongest(name: str) -> float:
        return max(_rank_correlation(found[name][taken > 0], taken[taken > 0]) for taken in times)

    return sorted(found, key=strongest, reverse=True)[:_MOST_TRIED]


def _rank_correlation(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Spearman's; ties take the mean rank. Zero where one of them is constant."""
    if len(first) < 3:
        return 0.0
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    power = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / power if power > 0 else 0.0
