"""Percentiles of all requests that arrived, including those that were never answered.

A request that failed, timed out or was shed counts as slower than any, because its caller never got an answer. Over
*n* requests that arrived, the q-th percentile is the time within which q % of them were answered (the cumulative
incidence of an answer, with loss as a competing risk). If more than 1 - q were lost there is no such time: the
percentile is lost, and only bounded from below by how long the slow and the lost requests had waited, and by the
summary's percentiles below it.

A request in flight when the record ends would have been answered later: it is right-censored, as by Kaplan and Meier
(1958; :func:`scipy.stats.ecdf` on ``CensoredData`` gives the same steps). Its weight goes to requests that took
longer than it had waited.

Percentiles are interpolated between steps as in :mod:`latency_summary`; without losses they are equal to those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import LATENCY_KEYS
from latfix.lower_bound import AtLeast, in_order, in_unit
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from latfix.statistics.latency_summary import QUANTILES, percentile_ns, summarize_ms, summary_intervals_ms
from latfix.statistics.percentiles import at_rank, quantile_of

if TYPE_CHECKING:
    from latfix.run_record.chunked_record import RecordSource

#: Finite replacement for a lost request's latency: this many times the slowest answer of both arms.
_BEYOND_ANY = 2.0
#: Tolerance for ranks, which are sums of floats.
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of requests, in order of arrival.

    :param waited_ns: ``(n,)`` latency of those that ended ``ok``; how long the others had waited when they were lost.
    :param answered: ``(n,)`` ended ``ok``.
    :param open: ``(n,)`` in flight when the record ends.
    """

    waited_ns: Floats
    answered: Bools
    open: Bools

    @classmethod
    def of(cls, latency_ns: npt.ArrayLike, status: npt.ArrayLike) -> Outcomes:
        """From columns of a record's requests."""
        codes = np.asarray(status)
        waited = np.asarray(latency_ns, dtype=np.float64)
        return cls(waited, np.asarray(codes == Status.OK), np.asarray(codes == Status.UNFINISHED))

    @classmethod
    def answers(cls, latency_ns: npt.ArrayLike) -> Outcomes:
        """Outcomes of requests that all ended ``ok``."""
        waited = np.asarray(latency_ns, dtype=np.float64)
        return cls(waited, np.ones(len(waited), np.bool_), np.zeros(len(waited), np.bool_))

    @classmethod
    def joined(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Requests of several runs, concatenated."""
        return cls(
            np.concatenate([np.zeros(0), *(part.waited_ns for part in parts)]),
            np.concatenate([np.zeros(0, np.bool_), *(part.answered for part in parts)]),
            np.concatenate([np.zeros(0, np.bool_), *(part.open for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.waited_ns)

    @property
    def ok_ns(self) -> Floats:
        """Latencies of those that ended ``ok``, in order of arrival."""
        return self.waited_ns[self.answered]

    @property
    def series_ns(self) -> Floats:
        """``(n,)`` latencies, infinite for requests without an answer."""
        return np.where(self.answered, self.waited_ns, math.inf)

    def percentiles_ns(self, percentiles: Iterable[float]) -> list[float]:
        """The percentiles (0..100); :class:`AtLeast` if lost, NaN if no request arrived."""
        asked = list(percentiles)
        if not len(self):
            return [math.nan] * len(asked)
        if self.answered.all():
            return [percentile_ns(self.waited_ns, q) for q in asked]
        wanted = sorted({*asked, *(100 * q for q in QUANTILES.values())})
        counted = self.answered | self.open
        # A request censored at a latency was still waiting then, so it comes after those that ended.
        order = np.lexsort((self.open[counted], self.waited_ns[counted]))
        censored = self.open[counted][order].astype(np.int64)
        ranks = answered_ranks(1 - censored, censored, len(self), wanted)
        ok = self.waited_ns[counted][order][censored == 0]
        waited = np.sort(self.waited_ns)
        values = [
            AtLeast(quantile_of(waited, q / 100)) if math.isnan(rank) else at_rank(ok, rank)
            for q, rank in zip(wanted, ranks, strict=True)
        ]
        found = dict(zip(wanted, in_order(values), strict=True))
        return [found[q] for q in asked]

    def summary_ms(self) -> dict[str, float]:
        """Percentiles and maximum of all that arrived, and the mean of those that ended ``ok``, in milliseconds.

        :returns: an entry for each of ``LATENCY_KEYS``; NaN if there is no such request.
        """
        if len(self) and self.answered.all():
            return summarize_ms(self.waited_ns)
        found = self.percentiles_ns([*(100 * q for q in QUANTILES.values()), 100.0])
        figures = dict(zip((*QUANTILES, "max"), (in_unit(value, 1e6) for value in found), strict=True))
        ok = self.ok_ns
        figures["mean"] = float(ok.mean()) / 1e6 if len(ok) else math.nan
        return {key: figures[key] for key in LATENCY_KEYS}

    def intervals_ms(self, *, seed: int) -> dict[str, tuple[float, float]]:
        """Intervals of :meth:`summary_ms`; the upper end is infinite if lost requests may reach it."""
        found, figures = summary_intervals_ms(self.series_ns, seed=seed), self.summary_ms()
        return {key: (min(lo, figures[key]), max(hi, figures[key])) for key, (lo, hi) in found.items()}


def outcomes_of(source: RunRecord | RecordSource) -> Outcomes:
    """Outcomes of the measured requests of a run, in order of its schedule."""
    names = ("latency_ns", "status", "warmup")
    parts = [source.requests] if isinstance(source, RunRecord) else source.scan(names)
    kept = [(rows, rows["warmup"] == 0) for rows in parts]
    return Outcomes.joined([Outcomes.of(rows["latency_ns"][some], rows["status"][some]) for rows, some in kept])


def beyond_any(base: Sequence[Floats], new: Sequence[Floats]) -> tuple[list[Floats], list[Floats]]:
    """Replace infinity in two arms' latencies by a finite number beyond any answer, for rank tests.

    The requests beyond a percentile show if one arm's exceeds the other's. They do not show by how much if it falls
    among lost requests.
    """
    both = [series[np.isfinite(series)] for series in (*base, *new)]
    largest = max((float(series.max()) for series in both if len(series)), default=math.nan)
    return (
        [np.where(np.isposinf(series), _BEYOND_ANY * largest, series) for series in base],
        [np.where(np.isposinf(series), _BEYOND_ANY * largest, series) for series in new],
    )


def answered_ranks(answered: Ints, censored: Ints, requests: int, percentiles: Iterable[float]) -> list[float]:
    """Fractional ranks, from 0, of percentiles of all requests among those that were answered.

    :param answered: ``(k,)`` requests that ended ``ok``, by cells of ascending latency.
    :param censored: ``(k,)`` requests in flight at the record's end, by how long they had waited; within a cell they
        come last.
    :param requests: all that arrived: these two, and lost ones.
    :returns: NaN for a lost percentile.
    """
    held = np.flatnonzero(answered)
    if not len(held):
        return [math.nan for _ in percentiles]
    total = int(answered.sum())
    before = np.cumsum(answered) - answered
    at_risk = requests - (np.cumsum(answered + censored) - answered - censored)
    # Kaplan and Meier: the share of still waiting requests that was answered in each cell.
    survival = np.concatenate([[1.0], np.cumprod(1.0 - answered / np.maximum(at_risk, 1))])
    reached, each = 1.0 - survival[:-1], survival[:-1] / np.maximum(at_risk, 1)
    last = held[-1]
    later = int(at_risk[last] - answered[last])
    # One request's weight less than 1: percentiles run from the first request to the last.
    whole = 1.0 - (survival[last + 1] / later if later else each[last])
    ranks = []
    for q in percentiles:
        mass = q / 100 * whole
        place = int(np.searchsorted((1.0 - survival[1:])[held], mass + _TINY / requests, side="right"))
        if place == len(held) and later:
            ranks.append(math.nan)
            continue
        cell = held[min(place, len(held) - 1)]
        rank = float(before[cell] + max(mass - reached[cell], 0.0) / each[cell])
        ranks.append(math.nan if later and rank > total - 1 + _TINY * requests else min(rank, total - 1))
    return ranks
