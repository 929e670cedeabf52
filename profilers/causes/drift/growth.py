"""Drift: units of work that take longer with age for the same inputs.

A level that never falls is fitted to window medians of the time beyond the inputs' need. It must last to the end of
the run and be significant against permuted windows. Episodes that end are not drift, nor is a slow start. Behind an
address, time that grows with the number of requests in flight is no drift: a queue may grow there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.causes.cause import Left
from latfix.profilers.causes.drift.trend_tests import (
    BLOCKS,
    Rise,
    best_step,
    met_few,
    quarters,
    rises,
    squares_left,
    theil_sen,
)
from latfix.profilers.evidence.outside.outside_view import presence
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.evidence.work_model import folds_of
from latfix.statistics.change_points import rising_level

#: Least rise, as a share of a typical service time.
_LEAST_SHARE = 0.1
#: Windows: as many as the test permutes, up to so many that slopes of all pairs stay cheap; so many units in each, or
#: its median is that of a single pause. The least number of units gives the fewest windows eight of them.
_WINDOWS, _PER_WINDOW, _LEAST_UNITS = (BLOCKS, 48), 12, 8 * BLOCKS
#: More units make the medians hardly steadier.
_MOST_FITTED = 20_000
#: Groups of like inputs: with more of them, a group has too few units in a window.
_STRATA = 12


class Growth:
    """One component of one unit that rises over the run. Nanoseconds; seconds from the run's start.

    :ivar unit: ``prepare``, ``compute`` or ``finish``; ``part`` is ``cpu`` or ``blocked``.
    :ivar values: ``(w,)`` median of each window above the start; ``rise`` the fitted level, over seconds.
    :ivar slope: nanoseconds per second.
    :ivar took: duration of a typical unit in the first and in the last quarter of the windows.
    :ivar claim: per unit, the part of the rise that its own duration shows.
    """

    def __init__(self, work: _Work, fit: _Fit) -> None:
        self.unit, self.part, self.values, self.rise = work.unit, work.part, fit.values, fit.rise
        self.slope = theil_sen(fit.rise.times, fit.values)
        first, last = quarters(fit.values)
        self.took = fit.took + first, fit.took + last
        rise = fit.rise.at(work.at_s) * fit.scale(work.need)
        shown = np.clip(np.minimum(rise, work.spent - fit.usual(work)), 0, work.spent)
        self.claim = np.where(work.measured, np.rint(shown), 0).astype(np.int64)


class _Work:
    """One component of one kind of unit, a row per unit.

    :ivar at_s: start of each unit.
    :ivar spent: nanoseconds of the component; ``need`` what its inputs need, zero if unknown.
    :ivar key: elements, to group like inputs. Not the prediction, because its folds depend on time.
    :ivar measured: rows of the ledger; ``usable`` those to learn from.
    """

    def __init__(self, evidence: Evidence, left: Left | None, name: str, part: str) -> None:
        rows, batches, expected = evidence.rows, evidence.batches, evidence.expected
        unit, batched, cpu = evidence.units[name], name == "compute", part == "cpu"
        elements = batches["size"] * np.maximum(batches["padded_elements"], batches["real_elements"])
        sizes = elements if batched else rows["input_elements"]
        need = {"prepare": expected.prepare, "compute": expected.padded, "finish": expected.finish}[name]
        known = np.zeros(len(unit.start))
        if cpu and expected.models[name].accepted:
            fold = folds_of(len(need))
            learn = partial(_fold_shares, need, fold, sizes)
            known = need / evidence.norms.of(f"drift.folds.{name}", learn)[fold]
        measured = np.asarray((batches["warmup"] == 0 if batched else evidence.ok) & (unit.wall > 0))
        self.unit, self.part, self.measured = name, part, measured
        self.at_s = (unit.start - evidence.moved(name)) / 1e9
        self.spent = _spent(evidence, left, name, cpu=cpu).astype(np.float64)
        self.need, self.key = known, sizes.astype(np.float64)
        self.usable = _with_few(evidence, name, measured) if evidence.setup.servers == 0 else measured


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    values: Floats
    rise: Rise
    start: float
    misfit: float
    bounds: Floats
    offset: Floats
    typical: float | None
    took: float

    def scale(self, need: Floats) -> Floats:
        """The factor of the level for each unit: one, or its need over a typical one."""
        return np.ones(len(need)) if self.typical is None else np.maximum(need / self.typical, 0.05)

    def usual(self, work: _Work) -> Floats:
        """The duration of each unit at the age of the run's start, nanoseconds."""
        group = np.searchsorted(self.bounds, work.key, side="right")
        return np.asarray(work.need + self.scale(work.need) * (self.offset[group] + self.start), dtype=np.float64)


def find_growths(evidence: Evidence, left: Left | None = None) -> list[Growth]:
    """Every component that drifts.

    :param left: what earlier claims left; without it, the measured time minus the price of page faults.
    """
    norms, stage = evidence.norms, "drift" if left is None else "drift.left"
    least = norms.of("drift.least", lambda: _LEAST_SHARE * _typical_service(evidence))

    def fitted(name: str, part: str) -> _Fit | None:
        return _fit(_Work(evidence, left, name, part), least)

    found = []
    for name, part in (("compute", "cpu"), ("compute", "blocked"), ("prepare", "cpu"), ("finish", "cpu")):
        fit = norms.of(f"{stage}.{name}.{part}", partial(fitted, name, part))
        if fit is not None:
            found.append(Growth(_Work(evidence, left, name, part), fit))
    return found


def _typical_service(evidence: Evidence) -> float:
    total = 0.0
    for name in ("prepare", "collate", "compute", "finish"):
        wall = evidence.units[name].wall
        used = wall[wall > 0]
        total += float(np.median(used)) if len(used) else 0.0
    return total


def _with_few(evidence: Evidence, name: str, measured: Bools) -> Bools:
    """:func:`met_few`, by the requests at the service when each unit began."""
    at, (begun, ended) = evidence.units[name].start, (np.sort(times) for times in presence(evidence.rows))
    return met_few(
        at - evidence.moved(name), np.searchsorted(begun, at) - np.searchsorted(ended, at, side="right"), measured
    )


def _fold_shares(need: Ints, fold: Ints, sizes: Ints) -> Floats:
    """Each fold's prediction relative to all: a fit that saw more of a slow end predicts more for the same inputs."""
    rows, folds = np.flatnonzero(need > 0), int(fold.max(initial=0)) + 1
    if not len(rows):
        return np.ones(folds)
    _, stratum = _strata(sizes.astype(np.float64), rows)
    known = need[rows].astype(np.float64)
    middle = np.bincount(stratum, weights=known) / np.maximum(np.bincount(stratum), 1)
    relative = known / middle[stratum]
    return np.array([np.mean(relative[fold[rows] == k]) if k in fold[rows] else 1.0 for k in range(folds)])


def _spent(evidence: Evidence, left: Left | None, name: str, *, cpu: bool) -> Ints:
    if left is not None:
        return left.cpu[name] if cpu else left.blocked[name]
    unit = evidence.units[name]
    if not cpu:
        return unit.blocked
    faults = np.minimum(unit.minflt * evidence.setup.minor_fault_ns, 0.9 * unit.cpu)
    return np.asarray(np.rint(unit.cpu - faults), dtype=np.int64)


def _fit(work: _Work, least: float) -> _Fit | None:
    """The rising level of a component, or ``None``; the same for every unit or in proportion to its need."""
    rows = np.flatnonzero(work.usable)
    if len(rows) < _LEAST_UNITS:
        return None
    rows = rows[:: max(1, len(rows) // _MOST_FITTED)]
    rows = rows[np.argsort(work.at_s[rows], kind="stable")]
    usual = float(np.median(work.need[rows]))
    varied = usual > 0 and float(np.ptp(work.need[rows])) > 0.2 * usual
    typicals = [None, usual] if varied else [None]
    fits = [fit for typical in typicals if (fit := _fit_scaled(work, rows, typical, least)) is not None]
    return min(fits, key=lambda fit: fit.misfit, default=None)


def _fit_scaled(work: _Work, rows: Ints, typical: float | None, least: float) -> _Fit | None:
    scale = np.ones(len(work.spent)) if typical is None else np.maximum(work.need / typical, 0.05)
    at_s, beyond = work.at_s[rows], (work.spent[rows] - work.need[rows]) / scale[rows]
    bounds, stratum = _strata(work.key, rows)
    count = int(np.clip(len(rows) // _PER_WINDOW, *_WINDOWS))
    edges = np.linspace(0, len(rows), count + 1).astype(np.int64)
    times = np.array([at_s[a:b].mean() for a, b in pairwise(edges)])
    if np.any(np.diff(times) <= 0):
        return None
    # Units are compared with units of like inputs, so that inputs that grow with time are not drift.
    # Means first: if half of the run is slower, a median falls on either side by chance.
    offset = _by_stratum(np.clip(beyond, *np.quantile(beyond, [0.01, 0.95])), stratum, np.mean)
    level = np.interp(at_s, times, rising_level(_medians(beyond - offset[stratum], edges)))
    offset = _by_stratum(beyond - level, stratum, np.median)
    values = _medians(beyond - offset[stratum], edges)
    if least <= 0 or not rises(values, least):
        return None
    level = rising_level(values)
    step_s, start = None, float(level[0])
    at, rest = best_step(values)
    if rest < 0.5 * squares_left(values, times):
        start, after = float(np.median(values[:at])), float(np.median(values[at:]))
        level = np.where(np.arange(count) >= at, after, start)
        around = slice(int(edges[at - 1]), int(edges[min(at + 1, count)]))
        near = np.clip((beyond - offset[stratum])[around], start, after)
        step_s = float(at_s[around][min(best_step(near)[0], len(near) - 1)])
    fit = _Fit(
        values=values - start,
        rise=Rise(times, level - start, step_s),
        start=start,
        misfit=0.0,
        bounds=bounds,
        offset=offset,
        typical=typical,
        took=0.0,
    )
    usual = fit.usual(work)
    missed = work.spent[rows] - usual[rows] - fit.rise.at(at_s) * scale[rows]
    took = float(np.median(usual[work.usable]))
    return replace(fit, took=took, misfit=float(np.mean(np.abs(np.clip(missed, *np.quantile(missed, [0.02, 0.98]))))))


def _strata(key: Floats, rows: Ints) -> tuple[Floats, Ints]:
    """Bounds between groups of like inputs, and each row's group."""
    distinct = np.unique(key[rows])
    if len(distinct) <= _STRATA:
        bounds = distinct[1:]
    else:
        bounds = np.unique(np.quantile(key[rows], np.arange(1, _STRATA) / _STRATA))
    return bounds, np.searchsorted(bounds, key[rows], side="right").astype(np.int64)


def _by_stratum(values: Floats, stratum: Ints, center: Callable[[Floats], float]) -> Floats:
    """Each group's center minus the center of all."""
    everywhere = float(center(values))
    offsets = np.zeros(_STRATA + 1)
    for k in np.unique(stratum):
        offsets[k] = float(center(values[stratum == k])) - everywhere
    return offsets


def _medians(values: Floats, edges: Ints) -> Floats:
    return np.array([float(np.median(values[a:b])) for a, b in pairwise(edges)])
