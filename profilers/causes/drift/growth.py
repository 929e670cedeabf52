"""Drift: units of work that take longer with age for the same inputs, and what grew alongside.

A level is fitted to medians over windows of the run, of what each unit took beyond what its inputs need. It may
only rise, must be there at the end, and must be clear against windows put in another order. Episodes that end
are not drift, nor is a start that is slower than the rest.
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
    Slope,
    best_step,
    rise_probability,
    squares_left,
    theil_sen,
)
from latfix.profilers.evidence.units import Evidence
from latfix.statistics.change_points import rising_level

#: A rise counts from this share of a typical service time on.
LEAST_SHARE = 0.1
_LEAST_UNITS = 64
_WINDOWS = (8, 48)
_PER_WINDOW = 12
_MOST_FITTED = 20_000
_STRATA = 12
_SIGNIFICANT = 0.05
#: Of the windows' spread, what a level that never falls must explain; and the part of the rise left at the end.
_EXPLAINED = 0.6
_LASTING = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One component of one unit that rises over the run. Nanoseconds; seconds from the run's start.

    :param unit: ``prepare``, ``compute`` or ``finish``; ``part`` is ``cpu`` or ``blocked``.
    :param times_s: ``(w,)`` middle of each window; ``values`` their medians above ``start``, as measured.
    :param level: ``(w,)`` the fitted rise above the start, never falling.
    :param step_s: when it rose, where it did so at once; otherwise ``None``.
    :param slope: nanoseconds a second.
    :param took: what a typical unit took in the first and in the last quarter of the windows.
    :param claim: per unit, its part of the rise: what of the level it shows itself.
    """

    unit: str
    part: str
    times_s: Floats
    values: Floats
    level: Floats
    step_s: float | None
    slope: Slope
    took: tuple[float, float]
    claim: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One component to look at, a row a unit.

    :param at_s: when each began.
    :param spent: nanoseconds of the component; ``need`` what its inputs need, zero where that is not known.
    :param key: elements, by which larger and smaller inputs are told apart; no prediction, whose folds know time.
    :param usable: rows to learn from.
    """

    unit: str
    part: str
    at_s: Floats
    spent: Floats
    need: Floats
    key: Floats
    usable: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    times_s: Floats
    values: Floats
    level: Floats
    start: float
    step_s: float | None
    misfit: float
    bounds: Floats
    offset: Floats
    typical: float | None
    took: float

    def scale(self, need: Floats) -> Floats:
        """By what the level is multiplied for each unit: one, or its need over a typical one."""
        return np.ones(len(need)) if self.typical is None else np.maximum(need / self.typical, 0.05)

    def usual(self, work: _Work) -> Floats:
        """Nanoseconds that each unit would have taken at the run's start."""
        group = np.searchsorted(self.bounds, work.key, side="right")
        return np.asarray(work.need + self.scale(work.need) * (self.offset[group] + self.start), dtype=np.float64)

    def rise(self, at_s: Floats) -> Floats:
        """Nanoseconds above the start, at any moment, for a unit of scale one."""
        if self.step_s is not None:
            return np.where(at_s >= self.step_s, self.level[-1], 0.0)
        return np.asarray(np.interp(at_s, self.times_s, self.level), dtype=np.float64)


def find_growths(evidence: Evidence, left: Left | None = None) -> list[Growth]:
    """Every component that drifts.

    :param left: what other causes have left; without it, what was measured less the price of page faults.
    """
    norms, stage = evidence.norms, "drift" if left is None else "drift.left"
    least = norms.of("drift.least", lambda: LEAST_SHARE * _typical_service(evidence))
    found = []
    for name, part in (("compute", "cpu"), ("compute", "blocked"), ("prepare", "cpu"), ("finish", "cpu")):
        known = f"{stage}.{name}.{part}"
        if known in norms and norms.of(known, _nothing) is None:
            continue
        work = _work(evidence, left, name, part)
        fit = norms.of(known, partial(_fit, work, least))
        if fit is not None:
            found.append(_growth(work, fit))
    return found


def _nothing() -> _Fit | None:
    return None


def _typical_service(evidence: Evidence) -> float:
    total = 0.0
    for name in ("prepare", "collate", "compute", "finish"):
        wall = evidence.units[name].wall
        used = wall[wall > 0]
        total += float(np.median(used)) if len(used) else 0.0
    return total


def _work(evidence: Evidence, left: Left | None, name: str, part: str) -> _Work:
    rows, batches, expected = evidence.rows, evidence.batches, evidence.expected
    unit, batched, cpu = evidence.units[name], name == "compute", part == "cpu"
    elements = batches["size"] * np.maximum(batches["padded_elements"], batches["real_elements"])
    sizes = elements if batched else rows["input_elements"]
    need = {"prepare": expected.prepare, "compute": expected.padded, "finish": expected.finish}[name]
    model = expected.models[name]
    known = np.zeros(len(unit.start))
    if cpu and model.accepted:
        learn = partial(_fold_shares, need, model.fold, sizes)
        known = need / evidence.norms.of(f"drift.folds.{name}", learn)[model.fold]
    measured = batches["warmup"] == 0 if batched else evidence.ok
    return _Work(
        unit=name,
        part=part,
        at_s=unit.start / 1e9,
        spent=_spent(evidence, left, name, cpu=cpu).astype(np.float64),
        need=known,
        key=sizes.astype(np.float64),
        usable=np.asarray(measured & (unit.wall > 0)),
    )


def _fold_shares(need: Ints, fold: Ints, sizes: Ints) -> Floats:
    """What each fit predicts over what all do: those that saw more of a slow end predict more for the same inputs."""
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
        return left.cpu(name) if cpu else left.blocked(name)
    unit = evidence.units[name]
    if not cpu:
        return unit.blocked
    faults = np.minimum(unit.minflt * evidence.setup.minor_fault_ns, 0.9 * unit.cpu)
    return np.asarray(np.rint(unit.cpu - faults), dtype=np.int64)


def _fit(work: _Work, least: float) -> _Fit | None:
    """The rising level of a component, if there is one; added to every unit, or in proportion to its need."""
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
    # Units of like inputs are compared among themselves, so that inputs which grow with time are not an age.
    # Means first: where half of the run is slower, a median would fall on either side of it by chance.
    offset = _by_stratum(np.clip(beyond, *np.quantile(beyond, [0.01, 0.95])), stratum, np.mean)
    level = np.interp(at_s, times, rising_level(_medians(beyond - offset[stratum], edges)))
    offset = _by_stratum(beyond - level, stratum, np.median)
    values = _medians(beyond - offset[stratum], edges)
    if not _rises(values, least):
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
        times_s=times,
        values=values - start,
        level=level - start,
        start=start,
        step_s=step_s,
        misfit=0.0,
        bounds=bounds,
        offset=offset,
        typical=typical,
        took=0.0,
    )
    usual = fit.usual(work)
    missed = work.spent[rows] - usual[rows] - fit.rise(at_s) * scale[rows]
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


def _by_stratum(values: Floats, stratum: Ints, middle: Callable[[Floats], float]) -> Floats:
    """Each group's middle less the middle of all."""
    everywhere = float(middle(values))
    offsets = np.zeros(_STRATA + 1)
    for k in np.unique(stratum):
        offsets[k] = float(middle(values[stratum == k])) - everywhere
    return offsets


def _medians(values: Floats, edges: Ints) -> Floats:
    return np.array([float(np.median(values[a:b])) for a, b in pairwise(edges)])


def _rises(values: Floats, least: float) -> bool:
    """The windows rise by a material amount, clearly, and stay up to the end."""
    quarter = max(len(values) // 4, 1)
    before, after = float(np.mean(values[:quarter])), float(np.mean(values[-quarter:]))
    if after - before <= max(least, 0.0) or least <= 0:
        return False
    spread = float(((values - values.mean()) ** 2).sum())
    rest = float(((values - rising_level(values)) ** 2).sum())
    if spread <= 0 or rest > (1 - _EXPLAINED) * spread:
        return False
    end = float(np.median(values[-max(len(values) // 8, 2) :]))
    if end < before + _LASTING * (after - before):
        return False
    return rise_probability(values) <= _SIGNIFICANT


def _growth(work: _Work, fit: _Fit) -> Growth:
    rise = fit.rise(work.at_s) * fit.scale(work.need)
    shown = np.minimum(rise, work.spent - fit.usual(work))
    typical = fit.took
    quarter = max(len(fit.values) // 4, 1)
    took = (typical + float(np.mean(fit.values[:quarter])), typical + float(np.mean(fit.values[-quarter:])))
    return Growth(
        unit=work.unit,
        part=work.part,
        times_s=fit.times_s,
        values=fit.values,
        level=fit.level,
        step_s=fit.step_s,
        slope=theil_sen(fit.times_s, fit.values),
        took=took,
        claim=np.where(work.usable, np.rint(np.clip(shown, 0, work.spent)), 0).astype(np.int64),
    )
