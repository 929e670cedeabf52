"""The shape of recorded traffic: its rate, gaps, burstiness and features, and its kind."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats, Ints
from latfix.errors import InputError
from latfix.files.json_documents import plain
from latfix.formatting import percent, significant
from latfix.request import PRIORITIES
from latfix.traffic.heavy_tails import Tail, describe_tail
from latfix.traffic.periodicity import MIN_CYCLES, Period, find_period
from latfix.traffic.schedule import Traffic

Kind = Literal["steady", "periodic", "bursty", "long-tailed"]

#: With fewer requests, traffic is called steady because nothing else can be shown.
MIN_REQUESTS = 50
_MOST_RATE_WINDOWS = 120
#: A dispersion is estimated from at least this many windows.
_MIN_COUNT_WINDOWS = 30
_PERCENTILES = {"p1": 1, "p10": 10, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "p99_9": 99.9}
_TOP_VALUES = 5
#: Gaps that vary less are more regular than random ones by two standard errors, with as few requests as are judged.
_RANDOM_CV = 0.7
#: The tail decides only if gaps vary this much more than those of independent arrivals.
_MIN_TAIL_CV = 1.2
#: Log likelihood by which a heavy-tailed family must beat every light-tailed one.
_MIN_HEAVY_ADVANTAGE = 5.0
_MAX_TAIL_INDEX = 3.0
#: With more dispersion than this relative to the same gaps in random order, their order is bursty, not their tail.
_MAX_ORDER_RATIO = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOverTime:
    """Requests per second in windows of ``window_s`` seconds from the first arrival on."""

    window_s: float
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Times between consecutive arrivals, in seconds.

    :param cv: standard deviation over mean; 1 for independent arrivals, 0 for a metronome.
    :param zero_share: share of gaps that are zero: arrivals at the same instant.
    :param percentiles: ``p1`` … ``p99_9``.
    :param histogram: counts of the gaps above zero between ``edges_s``, which grow by a constant factor.
    """

    mean_s: float
    min_s: float
    max_s: float
    cv: float
    zero_share: float
    percentiles: dict[str, float]
    edges_s: tuple[float, ...]
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispersion:
    """Index of dispersion for counts, also called the Fano factor: variance over mean of the counts in windows.

    1 for independent arrivals at every ``window_s``, 0 for a metronome, growing with the window for bursts.
    """

    window_s: float
    windows: int
    index: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSummary:
    """One feature over all requests.

    :param present: how many requests have it.
    :param numbers: ``min``, ``mean``, ``p50``, ``p95``, ``max`` of a number; empty for texts.
    :param distinct: how many different texts; ``None`` for numbers.
    :param top: the most frequent texts with their counts.
    """

    name: str
    present: int
    numbers: dict[str, float]
    distinct: int | None
    top: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """The shape of recorded traffic.

    :param kind: ``steady``, ``periodic``, ``bursty`` or ``long-tailed``.
    :param reason: why, in one sentence with the figures.
    :param duration_s: from the start of the traffic to the last arrival.
    :param span_s: from the first arrival to the last; rates are over it.
    :param mean_rate: gaps per second: ``(count - 1) / span_s``; 0 if all arrive at once.
    :param peak_rate: the highest of ``rate``.
    :param dispersion: at several windows, ascending.
    :param grid_s: the coarsest time step of which all arrivals are multiples, if it is 1 ms or more.
    """

    kind: Kind
    reason: str
    source: str
    format: str
    count: int
    duration_s: float
    span_s: float
    mean_rate: float
    peak_rate: float
    rate: RateOverTime
    gaps: Gaps | None
    grid_s: float | None
    dispersion: tuple[Dispersion, ...]
    period: Period | None
    tail: Tail | None
    features: tuple[FeatureSummary, ...]
    sessions: int
    session_requests: int
    priorities: dict[str, int]
    deadlines: int
    deadline_ms: dict[str, float]
    skipped_lines: int
    transforms: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """The shape as JSON values; ``null`` for numbers that are not finite."""
        shape: dict[str, Any] = plain({"schema": "latfix.traffic-shape/1", **dataclasses.asdict(self)})
        return shape


def describe(traffic: Traffic) -> TrafficShape:
    """The shape of ``traffic``.

    :raises InputError: it has no requests.
    """
    if not len(traffic):
        raise InputError("traffic: found no requests; expected at least one")
    seconds = (traffic.arrival_ns - traffic.arrival_ns[0]) / 1e9
    span = float(seconds[-1])
    rate = _rate_over_time(seconds)
    gaps = np.diff(seconds)
    period = find_period(seconds)
    tail = describe_tail(gaps)
    dispersion = _dispersion(seconds)
    gap_summary = _gap_summary(gaps)
    kind, reason = _classify(len(seconds), gaps, gap_summary, dispersion, period, tail)
    deadlines = traffic.deadline_ms[~np.isnan(traffic.deadline_ms)]
    sessions = [session for session in traffic.sessions if session is not None]
    priorities = np.bincount(traffic.priority, minlength=len(PRIORITIES)).tolist()
    return TrafficShape(
        kind=kind,
        reason=reason,
        source=str(traffic.metadata.get("source", "")),
        format=str(traffic.metadata.get("format", "")),
        count=len(traffic),
        duration_s=traffic.duration_s,
        span_s=span,
        mean_rate=(len(seconds) - 1) / span if span > 0 else 0.0,
        peak_rate=max(rate.rates),
        rate=rate,
        gaps=gap_summary,
        grid_s=_grid_s(traffic.arrival_ns),
        dispersion=dispersion,
        period=period,
        tail=tail,
        features=tuple(_feature(name, column) for name, column in traffic.features.items()),
        sessions=len(set(sessions)),
        session_requests=len(sessions),
        priorities={name: count for name, count in zip(PRIORITIES, priorities, strict=True) if count},
        deadlines=len(deadlines),
        deadline_ms=_numbers(deadlines),
        skipped_lines=int(traffic.metadata.get("skipped_lines", 0)),
        transforms=tuple(traffic.metadata.get("transforms", ())),
    )


def _rate_over_time(seconds: Floats) -> RateOverTime:
    span = float(seconds[-1])
    if span <= 0:
        return RateOverTime(window_s=1.0, rates=(float(len(seconds)),))
    window = nice_step(span / min(_MOST_RATE_WINDOWS, max(1, len(seconds) // 4)))
    # The last window is whole: a remainder would have too low a rate, or an arbitrary one if it is tiny.
    windows = max(1, int(span / window + 1e-9))
    index = np.minimum((seconds / window).astype(np.int64), windows)
    counts = np.bincount(index, minlength=windows + 1)
    rates = counts[:windows] / window
    if span < window:
        rates = np.array([len(seconds) / span])
        window = span
    return RateOverTime(window_s=window, rates=tuple(rates.tolist()))


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10 … (with any power of ten) that is at least ``least``; minutes above 60."""
    for step in (60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0):
        if 30 < least <= step:
            return step
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-12))


def _gap_summary(gaps: Floats) -> Gaps | None:
    if not len(gaps):
        return None
    mean = float(gaps.mean())
    above = gaps[gaps > 0]
    edges, counts = np.array([]), np.array([], dtype=np.int64)
    if len(above):
        low, high = float(above.min()), float(above.max())
        edges = np.geomspace(low, max(high, 10 * low), 25)
        edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
        counts = np.histogram(above, edges)[0]
    return Gaps(
        mean_s=mean,
        min_s=float(gaps.min()),
        max_s=float(gaps.max()),
        cv=float(gaps.std()) / mean if mean > 0 else 0.0,
        zero_share=1 - len(above) / len(gaps),
        percentiles={name: float(np.percentile(gaps, q)) for name, q in _PERCENTILES.items()},
        edges_s=tuple(edges.tolist()),
        histogram=tuple(counts.tolist()),
    )


def _grid_s(arrival_ns: Ints) -> float | None:
    steps = np.diff(np.unique(arrival_ns))
    if not len(steps):
        return None
    grid = int(np.gcd.reduce(steps))
    return grid / 1e9 if grid >= 1_000_000 else None


def _dispersion(seconds: Floats) -> tuple[Dispersion, ...]:
    """At windows of 1, 3, 10, 30 … mean gaps, as long as there are enough windows."""
    span = float(seconds[-1])
    if span <= 0 or len(seconds) < 2 * _MIN_COUNT_WINDOWS:
        return ()
    gap = span / (len(seconds) - 1)
    found: list[Dispersion] = []
    for exponent in range(13):
        window = gap * 10 ** (exponent / 2)
        windows = int(span / window)
        if windows < _MIN_COUNT_WINDOWS:
            break
        found.append(Dispersion(window_s=window, windows=windows, index=fano_factor(seconds, window, windows)))
    return tuple(found)


def fano_factor(seconds: Floats, window: float, windows: int) -> float:
    """Variance over mean of the counts in windows: the index of dispersion."""
    index = (seconds / window).astype(np.int64)
    counts = np.bincount(index[index < windows], minlength=windows)
    mean = float(counts.mean())
    return float(counts.var(ddof=1)) / mean if mean > 0 else 0.0


def _classify(
    count: int,
    gaps: Floats,
    summary: Gaps | None,
    dispersion: tuple[Dispersion, ...],
    period: Period | None,
    tail: Tail | None,
) -> tuple[Kind, str]:
    if summary is None or count < MIN_REQUESTS:
        few = "1 request is" if count == 1 else f"{count} requests are"
        return "steady", f"{few} too few to show bursts, a period or a tail (at least {MIN_REQUESTS})."
    if period is not None:
        return "periodic", (
            f"The rate repeats every {seconds_text(period.seconds)}: seen {period.cycles:.0f} times, this explains "
            f"{percent(period.strength)} of its variation."
        )
    burst = max(dispersion, key=lambda entry: entry.index / _poisson_limit(entry), default=None)
    dispersed = burst is not None and burst.index > _poisson_limit(burst)
    if (dispersed or summary.cv > _MIN_TAIL_CV) and _is_long_tailed(gaps, summary, dispersion, tail):
        assert tail is not None
        return "long-tailed", (
            f"Gaps between requests have a heavy tail: tail index {tail.hill:.2g}, p50 "
            f"{seconds_text(summary.percentiles['p50'])}, p99 {seconds_text(summary.percentiles['p99'])}, longest "
            f"{seconds_text(summary.max_s)}; {tail.best_heavy} fits them better than {tail.best_light}."
        )
    if dispersed:
        assert burst is not None
        return "bursty", (
            f"Counts in windows of {seconds_text(burst.window_s)} vary {figure(burst.index)} times as much as those "
            f"of independent arrivals (gap coefficient of variation {summary.cv:.2f}), with no period of which at "
            f"least {MIN_CYCLES} cycles were seen."
        )
    random = "at random (Poisson-like)" if summary.cv >= _RANDOM_CV else "more evenly than at random"
    most = max(dispersion, key=lambda entry: entry.index, default=None)
    vary = "" if most is None else f"; their counts vary at most {most.index:.2g} times as much as random ones"
    return "steady", f"Requests arrive {random}: gap coefficient of variation {summary.cv:.2f}{vary}."


def _poisson_limit(entry: Dispersion) -> float:
    """An upper limit for the dispersion of independent arrivals: half as much again, and four standard errors."""
    return 1.5 + 4 * math.sqrt(2 / entry.windows)


def _is_long_tailed(gaps: Floats, summary: Gaps, dispersion: tuple[Dispersion, ...], tail: Tail | None) -> bool:
    if tail is None or summary.cv < _MIN_TAIL_CV or summary.zero_share > 0.5:
        return False
    if tail.heavy_advantage < _MIN_HEAVY_ADVANTAGE or tail.hill > _MAX_TAIL_INDEX:
        return False
    return _order_ratio(gaps, dispersion) < _MAX_ORDER_RATIO


def _order_ratio(gaps: Floats, dispersion: tuple[Dispersion, ...]) -> float:
    """Dispersion relative to that of the same gaps in random order, at the window with the largest ratio."""
    random = np.random.default_rng(0)
    shuffled: list[list[float]] = []
    for _ in range(9):
        seconds = np.concatenate([[0.0], np.cumsum(random.permutation(gaps))])
        shuffled.append([fano_factor(seconds, entry.window_s, entry.windows) for entry in dispersion])
    typical = np.median(np.array(shuffled), axis=0)
    ratios = [entry.index / max(float(base), 0.5) for entry, base in zip(dispersion, typical, strict=True)]
    return max(ratios, default=1.0)


def _feature(name: str, column: npt.NDArray[Any]) -> FeatureSummary:
    if column.dtype.kind == "O":
        texts = [value for value in column.tolist() if value is not None]
        counts = Counter(texts)
        top = tuple(counts.most_common(_TOP_VALUES))
        return FeatureSummary(name=name, present=len(texts), numbers={}, distinct=len(counts), top=top)
    numbers = column.astype(np.float64)
    numbers = numbers[~np.isnan(numbers)]
    return FeatureSummary(name=name, present=len(numbers), numbers=_numbers(numbers), distinct=None, top=())


def _numbers(values: Floats) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        "min": float(values.min()),
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p95": float(np.percentile(values, 95)),
        "max": float(values.max()),
    }


def seconds_text(seconds: float) -> str:
    """A time for people: three significant digits with a unit."""
    if seconds == 0:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds / size:.3g}") >= 1:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds * 1e9)} ns"


def figure(value: float) -> str:
    """A number with three significant digits, whole from 1,000 to a billion."""
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1e9:
        return significant(value)
    if abs(rounded) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{rounded:.3g}"
