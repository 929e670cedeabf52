"""The trend of a figure over runs of one series: its level, and the runs that began a new one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from latfix.formatting import finite
from latfix.gates.reference_level import Level
from latfix.history.rows import HistoryRow, Series
from latfix.statistics.block_bootstrap import ranks
from latfix.statistics.change_points import MOST_VALUES, rate_changes

#: Fewer runs cannot show a change beyond chance.
FEWEST = 8
#: The smallest change, as a share, that is reported of a figure that varies by a factor.
SMALLEST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run. ``value`` is ``None`` where the run did not measure the figure."""

    row: HistoryRow
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A new level.

    :param point: the run that began it.
    :param before: median of the runs of the level before; ``after`` of this one.
    :param differs: what else differs between this run and the one before it: settings, versions.
    """

    point: Point
    before: float
    after: float
    differs: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """After over before; ``None`` where before is zero."""
        return self.after / self.before if self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A figure over the runs of one series, oldest first.

    :param level: the usual figure of the runs that others are held against; ``None`` where fewer than two have it.
    """

    series: Series
    metric: str
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    level: Level | None

    @property
    def values(self) -> list[float]:
        """What was measured, in order."""
        return [point.value for point in self.points if point.value is not None]


def trends(rows: Sequence[HistoryRow], metric: str, *, last: int | None = None, seed: int = 0) -> list[Trend]:
    """A trend for each series, in the order in which they began.

    Change points are looked for in all runs that can be held against each other, the latest ones of very many;
    ``last`` cuts what is shown of them.

    :param rows: oldest first.
    :param last: only so many runs of each.
    """
    series: dict[Series, list[HistoryRow]] = {}
    for row in rows:
        series.setdefault(row.series, []).append(row)
    return [_trend(key, known, metric, last, seed) for key, known in series.items()]


def _trend(series: Series, rows: Sequence[HistoryRow], metric: str, last: int | None, seed: int) -> Trend:
    points = tuple(Point(row=row, value=finite(row.subject.figure(metric))) for row in rows)
    sound = [point for point in points if point.value is not None and not point.row.unusable]
    values = [point.value for point in sound if point.value is not None]
    shown = points if last is None else points[-last:]
    level = Level.of(values, metric) if len(values) > 1 else None
    least = SMALLEST if level is not None and level.by_factor else 0.0
    changes = [change for change in _changes(sound[-MOST_VALUES:], least, seed) if change.point in shown]
    return Trend(
        series=series,
        metric=metric,
        points=shown,
        changes=tuple(changes),
        level=level,
    )


def _changes(points: Sequence[Point], least: float, seed: int) -> list[Change]:
    """Where the level changed: change points of the ranks, so that one run that is far off makes none.

    :param least: the smallest change that is reported, as a share of what was before.
    """
    values = np.array([point.value for point in points], dtype=np.float64)
    if len(values) < FEWEST:
        return []
    edges = [0, *_edges(values, seed), len(values)]
    while len(edges) > 2:
        levels = [median(values[begin:end].tolist()) for begin, end in itertools.pairwise(edges)]
        steps = [abs(after - before) - least * abs(before) for before, after in itertools.pairwise(levels)]
        smallest = min(range(len(steps)), key=steps.__getitem__)
        if steps[smallest] > 0:
            return [
                Change(
                    point=points[edge],
                    before=before,
                    after=after,
                    differs=tuple(_differs(points[edge - 1].row, points[edge].row)),
                )
                for edge, (before, after) in zip(edges[1:-1], itertools.pairwise(levels), strict=True)
            ]
        del edges[smallest + 1]
    return []


def _edges(values: np.ndarray[Any, np.dtype[np.float64]], seed: int) -> list[int]:
    """Where levels begin, the first one's beginning left out; each part is looked at again on its own, for a change
    that is small beside another one."""
    if len(values) < FEWEST:
        return []
    cuts = rate_changes(ranks(values), seed=seed).tolist()
    if len(cuts) == 2:
        return []
    found: list[int] = []
    for begin, end in itertools.pairwise(cuts):
        found += [begin, *(begin + inside for inside in _edges(values[begin:end], seed))]
    return found[1:]


def _differs(first: HistoryRow, second: HistoryRow) -> list[str]:
    found = ["settings"] if first.settings != second.settings else []
    keys = dict.fromkeys((*first.versions, *second.versions))
    found += [
        f"{key} {_version(first.versions, key)} -> {_version(second.versions, key)}"
        for key in keys
        if first.versions.get(key) != second.versions.get(key)
    ]
    return found


def _version(versions: Mapping[str, Any], key: str) -> str:
    return str(versions.get(key, "none"))
