"""Infers the batches behind arrivals and ends of a log, if they confirm them: members, limit, window and workers.

Requests of a batch end together although they arrived apart. In order of arrival, batches are runs of such requests.
The rule that closed them shows in who is a member: the last request that joined came before the batch closed, and the
first of the next batch came after, unless the batch was full. So of each kind of timer, and for each number of
workers, the window is the one that separates members from the others best. Its batches must then have been computed
after a worker was free, and for the same time whether or not they had waited for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from latfix.arrays import Bools, Ints, groups_of
from latfix.formatting import from_ns, share
from latfix.queueing.inference.queue_inference import starts

#: When the timer of a batch starts: as its first request arrives, as a worker takes it up, or as its first request
#: arrives with batches that line up for a worker.
Timer = Literal["arrival", "worker", "batcher"]
_TIMERS: tuple[Timer, ...] = ("arrival", "worker", "batcher")
_WORKERS = (1, 2, 3, 4, 6, 8)
#: Requests and batches from which the rule is inferred, and windows that are tried.
_SAMPLE, _BATCHES, _WINDOWS = 60_000, 4_000, 200
#: Least requests and batches with company; shuffles that show what chance gathers, and how far it must be exceeded.
_LEAST_GATHERED, _LEAST_SHARED, _SHUFFLES, _BEYOND_CHANCE = 30, 12, 20, 3.0
#: Ends within a batch are closer than others by a factor: few differences lie between, as a share of the closer ones.
_VALLEY, _BETWEEN = 2.0, 0.25
#: The quantile of distances between ends that are still those of a batch.
_USUAL = 0.95
#: A batch's ends are closer than its arrivals, at least by this factor, for this share of those that end together.
_CLOSER, _MOSTLY = 2.0, 0.5
#: Largest share of telling batches that a rule may explain wrongly, and whose computation would end before it began.
_WRONG, _TOO_EARLY = 0.08, 0.02
#: A rule this close to the best (share of batches) is preferred if its computation times scatter less.
_AS_GOOD = 0.01
#: Windows that explain as much differ by less than this share, else only the least one is certain.
_NARROW = 0.2
#: Largest factor between computation times of batches that waited for a worker and of those that did not, and between
#: the quartiles of those of one size.
_ALIKE, _ONE_LENGTH = 1.3, 4.0
#: Largest share of runs that are several batches.
_MERGED = 0.15
#: Batches that are full without the next request having waited: from so many the limit is known.
_LEAST_FULL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How batches are closed.

    :param workers: batches that are computed at once.
    :param window_ns: how long a batch is held open; ``timer`` since when.
    :param limit: largest size; ``None`` if none was reached.
    :param close_ns: ends of one batch follow each other at most so closely.
    :param wrong: share of batches with other members than the rule says, of those with company by either.
    :param scatter_ns: median deviation of computation times from those of batches of the same size.
    """

    workers: int
    timer: Timer
    window_ns: int
    limit: int | None
    close_ns: int
    wrong: float
    scatter_ns: float

    def batches(self, arrival: Ints, latency: Ints) -> Batches:
        """Requests in batches by this rule.

        :param arrival: ``(n,)`` ascending; ``latency`` ``(n,)`` nanoseconds.
        """
        runs = _runs(arrival, arrival + latency, self.close_ns, self.limit)
        free = starts(runs.came, runs.end, self.workers)
        begin = _begin(runs, free, _closing(runs, free, self.timer, self.window_ns))
        return Batches(rule=self, first=runs.first, free_ns=free, begin_ns=begin, end_ns=runs.end)

    @property
    def sentence(self) -> str:
        """The rule in words, and how well it explains who is in which batch."""
        limit = "" if self.limit is None else f", at most until {self.limit} are in"
        since = "a worker takes it up" if self.timer == "worker" else "its first request arrived"
        held = (
            f"a batch is held open for {from_ns(self.window_ns)} after {since}{limit}"
            if self.window_ns
            else f"a batch begins as soon as a worker is free{limit.replace('until ', '').replace(' are in', '')}"
        )
        explains = f"the rule explains {share(1 - self.wrong)} of shared batches"
        return f"inferred from who ended together ({explains}): {held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches of ``n`` requests in order of arrival.

    :param first: ``(m,)`` the first request of each batch; a batch reaches to the next one's.
    :param free_ns: ``(m,)`` when a worker was free for it, or its first request arrived if that was later.
    :param begin_ns: ``(m,)`` when its computation began; ``end_ns`` when its first request ended.
    """

    rule: Rule
    first: Ints
    free_ns: Ints
    begin_ns: Ints
    end_ns: Ints

    def size(self, n: int) -> Ints:
        """``(m,)`` members of each batch of ``n`` requests."""
        return np.diff(np.append(self.first, n))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """``(m,)`` runs of requests that ended together: arrival of the first, the last and the next one, end, size."""

    first: Ints
    came: Ints
    last: Ints
    after: Ints
    end: Ints
    size: Ints
    full: Bools


def infer_rule(arrival: Ints, latency: Ints, resolution_ns: int) -> Rule | None:
    """How requests were gathered in batches; ``None`` if none ended together, or no rule explains who did.

    :param arrival: ``(n,)`` ascending; ``latency`` ``(n,)`` nanoseconds.
    :param resolution_ns: of both.
    """
    came, took = arrival[:_SAMPLE], latency[:_SAMPLE]
    if len(came) < _LEAST_GATHERED:
        return None
    best: Rule | None = None
    for close in _closeness(came + took, resolution_ns):
        found = _rule(came, took, close, resolution_ns)
        if found is not None and (best is None or found.wrong < best.wrong):
            best = found
        if best is not None and best.wrong <= _AS_GOOD:
            break
    return best


def _rule(came: Ints, took: Ints, close: int, resolution_ns: int) -> Rule | None:
    """The same, if ends of one batch follow each other at most ``close``."""
    ended = came + took
    if not _beyond_chance(came, took, close, resolution_ns):
        return None
    whole = _runs(came, ended, close)
    if np.count_nonzero(whole.size > 1) < _LEAST_SHARED:
        return None
    spread = (np.maximum.reduceat(ended, whole.first) - whole.end)[whole.size > 1]
    slack = max(2 * resolution_ns, int(np.quantile(spread, 0.9)))
    limited = {limit: _runs(came, ended, close, limit) for limit in _limits(whole.size)}
    fits = [fit for limit, runs in limited.items() for fit in _fits(runs, limit, close, slack)]
    if not fits:
        return None
    least = min(fit.wrong for fit in fits)
    as_good = (fit for fit in fits if fit.wrong <= least + _AS_GOOD)
    rule = min(as_good, key=lambda fit: (fit.scatter_ns // slack, fit.workers))
    varied = np.count_nonzero(whole.size != np.argmax(np.bincount(whole.size))) >= _LEAST_SHARED
    if not varied and rule.scatter_ns <= close:
        return None  # servers with equal services, in step with each other, end in the same way
    return rule


def _closeness(end: Ints, resolution_ns: int) -> tuple[int, ...]:
    """How close the ends of one batch may be: distances, ascending, that few ends have.

    The least is that of most batches, others lie in gaps above it: an answer may be late, but batches of several
    workers may end as close as that.
    """
    apart = np.maximum(np.abs(np.diff(end)), max(resolution_ns // 2, 1)).astype(np.float64)
    logs = np.sort(np.log(apart))
    n = len(logs)
    below = np.arange(1, n)
    running = np.cumsum(logs)
    means = running[:-1] / below, (running[-1] - running[:-1]) / (n - below)
    spread = below * (n - below) * (means[1] - means[0]) ** 2  # between two classes (Otsu 1979)
    cut = int(np.argmax(spread))
    usual = apart[apart <= max(math.exp((means[0][cut] + means[1][cut]) / 2), apart.min())]
    least = max(_VALLEY * float(np.quantile(usual, _USUAL)), float(resolution_ns))
    inside = logs[(logs > math.log(least)) & (logs < means[1][cut])]
    above = np.concatenate([[math.log(least)], inside, [means[1][cut]]])
    gaps = np.flatnonzero(np.diff(above) > 2 * math.log(_VALLEY))
    found = []
    for close in (least, *np.exp((above[gaps] + above[gaps + 1]) / 2).tolist()):
        near = apart <= max(close / _VALLEY, resolution_ns)
        between = ~near & (apart < close * _VALLEY + resolution_ns)
        if np.mean(between) <= _BETWEEN * np.mean(near):
            found.append(round(close))
    return tuple(found)


def _beyond_chance(arrival: Ints, latency: Ints, close: int, resolution_ns: int) -> bool:
    """True if more requests that arrived apart end together than with the same latencies in another order."""

    def gathered(took: Ints) -> tuple[int, int]:
        """Requests that end together, and those of them that arrived apart."""
        end = arrival + took
        first = _first(end, close)
        size = np.diff(np.append(first, len(end)))
        came = arrival[first + size - 1] - arrival[first]
        went = np.maximum.reduceat(end, first) - np.minimum.reduceat(end, first)
        return int(size[size > 1].sum()), int(size[came > _CLOSER * np.maximum(went, resolution_ns)].sum())

    (together, found), rng = gathered(latency), np.random.default_rng(0)
    by_chance = max(gathered(rng.permutation(latency))[1] for _ in range(_SHUFFLES))
    return found >= max(_LEAST_GATHERED, _BEYOND_CHANCE * by_chance, _MOSTLY * together)


def _first(end: Ints, close: int) -> Ints:
    """The first of each run of requests that end together."""
    return np.concatenate([[0], np.flatnonzero(np.abs(np.diff(end)) > close) + 1])


def _runs(arrival: Ints, end: Ints, close: int, limit: int | None = None) -> _Runs:
    """Runs of requests that end together; what exceeds a limit are several batches that end at one moment."""
    first = _first(end, close)
    size = np.diff(np.append(first, len(end)))
    if limit is not None and (size > limit).any():
        within = np.arange(len(end)) - np.repeat(first, size)
        first = np.flatnonzero(within % limit == 0)
        size = np.diff(np.append(first, len(end)))
    return _Runs(
        first=first,
        came=arrival[first],
        last=arrival[first + size - 1],
        after=np.append(arrival[first[1:]], np.iinfo(np.int64).max),
        end=np.minimum.reduceat(end, first),
        size=size,
        full=np.zeros(len(first), bool) if limit is None else size >= limit,
    )


def _limits(size: Ints) -> tuple[int | None, ...]:
    """Limits that sizes of runs may show, where larger runs are few: several batches."""
    counts = np.bincount(size)
    larger = len(size) - np.cumsum(counts)
    edges = np.flatnonzero((larger <= _MERGED * len(size)) & (counts > larger) & (counts >= _LEAST_FULL))
    edges = edges[edges > 1]
    return (None, *dict.fromkeys(edges[[0, -1]].tolist())) if len(edges) else (None,)


def _fits(runs: _Runs, limit: int | None, close: int, slack: int) -> Iterator[Rule]:
    """The best window for each timer and number of workers, if it explains enough batches."""
    sample = slice(1, _BATCHES + 1)  # what the first request of a log met is unknown
    for workers, timer in product(_WORKERS, _TIMERS):
        free = starts(runs.came, runs.end, workers)
        base = free if timer == "worker" else runs.came
        offsets = np.concatenate([(runs.last - base)[sample], (runs.after - base)[:-1][sample]])
        offsets = np.append(offsets[offsets >= 0], 0)
        tried = np.unique(np.append(np.quantile(offsets, np.linspace(0, 0.98, _WINDOWS)).astype(np.int64), 0))
        wrong = np.array([_wrong(runs, _closing(runs, free, timer, w), slack, sample) for w in tried.tolist()])
        best = tried[wrong <= wrong.min()]  # between the last one too short and the first one too long
        narrow = best[-1] - best[0] <= max(4 * slack, _NARROW * best[-1])
        window = int(best[len(best) // 2] if narrow else best[0])
        closed = _closing(runs, free, timer, window)
        early = int(np.count_nonzero(runs.full & (runs.after < closed - slack)))
        if wrong.min() > _WRONG or (limit is not None and early < _LEAST_FULL):
            continue
        computed = runs.end - _begin(runs, free, closed)
        scatter = _scatter(computed[sample], runs.size[sample], free[sample] > runs.came[sample])
        if scatter is not None:
            yield Rule(
                workers=workers,
                timer=timer,
                window_ns=window,
                limit=limit,
                close_ns=close,
                wrong=float(wrong.min()),
                scatter_ns=scatter,
            )


def _closing(runs: _Runs, free: Ints, timer: Timer, window: int) -> Ints:
    """``(m,)`` when each batch closed if it was not full."""
    if timer == "arrival":
        return np.maximum(free, runs.came + window)
    return (free if timer == "worker" else runs.came) + window


def _begin(runs: _Runs, free: Ints, closed: Ints) -> Ints:
    return np.maximum(free, np.where(runs.full, np.minimum(closed, runs.last), closed))


def _wrong(runs: _Runs, closed: Ints, slack: int, sample: slice) -> float:
    """The share of batches with a member that came too late, or without the next one although it came in time.

    Of those that had company or should have: others tell nothing.
    """
    late = runs.last > closed + slack
    missed = ~runs.full & (runs.after <= closed - slack)
    telling = int(np.count_nonzero(((runs.size > 1) | missed)[sample]))
    return float(np.count_nonzero((late | missed)[sample])) / max(telling, 1)


def _scatter(computed: Ints, size: Ints, waited: Bools) -> float | None:
    """Median deviation of computation times from those of the same size, nanoseconds; ``None`` if impossible."""
    if np.mean(computed <= 0) > _TOO_EARLY:
        return None
    usual = np.empty(len(computed))
    for rows in groups_of(size):
        usual[rows] = max(float(np.median(computed[rows])), 1.0)
    relative = np.maximum(computed / usual, 1e-9)
    low, high = np.quantile(relative, (0.25, 0.75))
    if high > _ONE_LENGTH * low:
        return None
    both = [relative[rows] for rows in (waited, ~waited)]
    comparable = min(map(len, both)) >= _LEAST_SHARED
    if comparable and not 1 / _ALIKE < float(np.median(both[0]) / np.median(both[1])) < _ALIKE:
        return None
    return float(np.median(np.abs(computed - usual)))
