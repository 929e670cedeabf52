"""The trend of a figure over runs of one series: its level, and the runs at which the level changed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from latfix.arrays import ranks
from latfix.formatting import finite
from latfix.gates.evaluate import GateResult
from latfix.gates.reference_level import Level
from latfix.history.rows import HistoryRow, Series
from latfix.results.history import HistoryTrend, LevelChange, PastRun
from latfix.statistics.change_points import MOST_VALUES, rate_changes

#: Fewer runs cannot show a change beyond chance.
FEWEST = 8
#: The smallest reported change, as a share, of a figure that varies by a factor.
SMALLEST = 0.01


def trends(
    rows: Sequence[HistoryRow], metric: str, *, last: int | None = None, seed: int = 0
) -> tuple[HistoryTrend, ...]:
    """A trend for each series, in the order in which they began.

    Change points are searched in all comparable runs, or the latest of very many; ``last`` only limits what is shown.

    :param rows: oldest first.
    :param last: the number of latest runs to show of each series; ``None`` for all.
    """
    series: dict[Series, list[HistoryRow]] = {}
    for row in rows:
        series.setdefault(row.series, []).append(row)
    return tuple(_trend(key, known, metric, last, seed) for key, known in series.items())


def _trend(series: Series, rows: Sequence[HistoryRow], metric: str, last: int | None, seed: int) -> HistoryTrend:
    runs = tuple(_past_run(row, metric) for row in rows)
    sound = [run for run in runs if run.value is not None and not run.not_compared_because]
    values = [run.value for run in sound if run.value is not None]
    shown = runs if last is None else runs[-last:]
    names = {run.run for run in shown}
    level = Level.of(values, metric) if len(values) > 1 else None
    least = SMALLEST if level is not None and level.by_factor else 0.0
    return HistoryTrend(
        workload=series.workload,
        machine=series.machine,
        machine_facts=rows[-1].machine,
        device=series.device,
        command=series.command,
        plan=series.plan,
        traffic=series.traffic,
        level=level,
        runs=shown,
        changes=tuple(change for change in _changes(sound[-MOST_VALUES:], least, seed) if change.run in names),
    )


def _past_run(row: HistoryRow, metric: str) -> PastRun:
    return PastRun(
        run=row.run,
        started=row.started,
        value=finite(row.subject.figure(metric)),
        verdict=row.verdict,
        folder=row.folder,
        settings=row.settings,
        versions=row.versions,
        requests=row.subject.requests,
        gates=tuple(GateResult.from_json(gate) for gate in row.gates),
        not_compared_because=row.unusable,
    )


def _changes(runs: Sequence[PastRun], least: float, seed: int) -> list[LevelChange]:
    """Changes of the level: change points of the ranks, so that a single outlier makes none.

    :param least: the smallest reported change, as a share of the previous level.
    """
    values = np.array([run.value for run in runs], dtype=np.float64)
    if len(values) < FEWEST:
        return []
    edges = [0, *_edges(values, seed), len(values)]
    while len(edges) > 2:
        levels = [median(values[begin:end].tolist()) for begin, end in itertools.pairwise(edges)]
        steps = [abs(after - before) - least * abs(before) for before, after in itertools.pairwise(levels)]
        smallest = min(range(len(steps)), key=steps.__getitem__)
        if steps[smallest] > 0:
            return [
                LevelChange(
                    run=runs[edge].run,
                    started=runs[edge].started,
                    folder=runs[edge].folder,
                    before=before,
                    after=after,
                    ratio=after / before if before else None,
                    differs=tuple(_differs(runs[edge - 1], runs[edge])),
                )
                for edge, (before, after) in zip(edges[1:-1], itertools.pairwise(levels), strict=True)
            ]
        del edges[smallest + 1]
    return []


def _edges(values: np.ndarray[Any, np.dtype[np.float64]], seed: int) -> list[int]:
    """Where levels begin, except the first. Each part is searched again on its own, for changes that are small
    compared with another one."""
    if len(values) < FEWEST:
        return []
    cuts = rate_changes(ranks(values), seed=seed).tolist()
    if len(cuts) == 2:
        return []
    found: list[int] = []
    for begin, end in itertools.pairwise(cuts):
        found += [begin, *(begin + inside for inside in _edges(values[begin:end], seed))]
    return found[1:]


def _differs(first: PastRun, second: PastRun) -> list[str]:
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
