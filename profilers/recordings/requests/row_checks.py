"""What a table of requests probably has wrong: impossible parts, copies, dates far from all others.

Nothing is left out: a note says what was found, and what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.formatting import counted, from_ns
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.text_source import resolution_ns

#: Rows searched for copies; copies are worth a note if there are so many times as many as expected by chance, and so
#: many standard deviations more. Pairs by chance that may have been missed in a sample without any (at 95 %).
_SEARCHED, _BEYOND_CHANCE, _DEVIATIONS, _MISSED = 500_000, 4.0, 3.0, 3.0
#: Pairs by which chance is estimated, and the most times that all rows are paired with others.
_PAIRS, _MOST_TURNS = 1_000_000, 100
#: A few requests are far from the others: at most so many or so large a share, at a distance of at least an hour and
#: so many times the others' whole length.
_FEW, _FEW_OF_ALL, _HOUR_NS, _TIMES_AS_LONG = 3, 0.005, 3_600 * 10**9, 10
#: Latencies of 0 are lines of another kind if they are such a share, and others lie so many units of time above.
_MANY_ZERO, _SHORTEST, _FAR_ABOVE = 0.05, 0.05, 4.0
#: The limit of a log of slow requests is such a number of powers of ten, at least so many units, and so large a
#: share of the median. At least so many requests begin right at it: the shortest is no farther above it than so many
#: times the distance that the density of so large a share of them lets expect, and than such a share of it. The
#: median is at least so large a share above it.
_ROUND, _UNITS, _OF_MEDIAN = (1.0, 2.0, 2.5, 3.0, 5.0), 50, 0.3
_LEAST, _NEAR, _LOWEST, _RIGHT_AT, _SPREAD = 60, 4.0, 0.1, 0.01, 0.05
#: Parts may exceed a latency by this share, or by the resolution of the times in a sample: rounding.
_ROUNDED, _SAMPLE = 0.01, 10_000


def with_checked_rows(table: RequestTable) -> RequestTable:
    """The table with parts within the latencies, and a note on each thing that is probably wrong."""
    parts: dict[str, Ints] = {}
    remaining = np.maximum(table.latency_ns, 0)
    beyond = np.zeros(len(table), bool)
    for name, column in table.parts.items():
        samples = (times[:_SAMPLE] for times in (table.latency_ns, column))
        rounding = max(resolution_ns(sample[sample > 0]) for sample in samples)
        allowed = remaining + np.maximum(_ROUNDED * table.latency_ns, rounding)
        beyond |= table.ok & (column > allowed)
        parts[name] = np.minimum(column, remaining)
        remaining = remaining - np.maximum(parts[name], 0)
    notes = [*table.notes]
    latency = table.latency_ns[table.ok]
    if len(latency) and not latency.any():
        notes.append("All latencies are 0: check the column and its unit.")
    elif len(latency) and _zero_are_others(latency):
        notes.append(
            f"{len(latency) - np.count_nonzero(latency):,} of {len(latency):,} latencies are 0, and none of the rest "
            "is near. They count as requests: if they are lines of another kind (of a begin), leave them out."
        )
    if not table.sampled and (limit_ns := _lower_limit(latency)):
        notes.append(
            f"No latency is below {from_ns(limit_ns)}, and many are just above, as in a log of slow requests only: "
            "percentiles and causes are then of slow requests, not of the service. Log all requests for those."
        )
    if beyond.any():
        notes.append(
            f"{', '.join(table.parts)}: longer than the whole latency in {counted(int(beyond.sum()), 'request')} of "
            f"{len(table):,}, and counted up to it. Check the units, and that the time lies within the latency."
        )
    return replace(table, parts=parts, notes=(*notes, *_copies(table), *_far_away(table)))


def _zero_are_others(latency: Ints) -> bool:
    """True if many latencies are 0, and the others are so much longer than their resolution that none should be."""
    above = latency[latency > 0]
    least = float(np.quantile(above, _SHORTEST))
    return len(above) < (1 - _MANY_ZERO) * len(latency) and least > _FAR_ABOVE * resolution_ns(above)


def _lower_limit(latency: Ints) -> float:
    """The limit from which on alone requests were written, in nanoseconds; 0 without one.

    Latencies begin at a round number, and as a tail does: the closer to it, the more.
    """
    if len(latency) < _LEAST or not (shortest := float(latency.min())):
        return 0.0
    power = 10.0 ** math.floor(math.log10(shortest))
    limit = max(each * power for each in _ROUND if each * power <= shortest)
    unit = resolution_ns(latency)
    if shortest - limit > max(_RIGHT_AT * limit, unit) or limit < _UNITS * unit:
        return 0.0
    low, middle = np.quantile(latency, (_LOWEST, 0.5)).tolist()
    expected = _NEAR * (low - limit) / (_LOWEST * len(latency))
    half = np.count_nonzero(latency < (limit + middle) / 2)
    sharp = shortest - limit <= max(expected, unit) and middle - limit >= _SPREAD * limit
    return limit if sharp and half >= len(latency) / 4 and limit >= _OF_MEDIAN * middle else 0.0


def _copies(table: RequestTable) -> Iterator[str]:
    if not table.timed or table.sampled:
        return
    rows = np.flatnonzero(table.ok[:_SEARCHED])
    stamp = table.arrival_ns  # of a line: the arrival, or the end if that is on the grid of the recorded times
    if (np.diff(stamp[rows]) % table.resolution_ns).any():
        stamp = stamp + table.latency_ns
    columns = [*table.features.values(), *table.parts.values(), *([] if table.route is None else [table.route])]
    keys = [column[rows] for column in (*columns, table.latency_ns, stamp)]
    rows = rows[np.lexsort(keys)]
    same_time = np.diff(stamp[rows]) == 0
    copies = int(np.count_nonzero(_equal(table, rows[1:][same_time], rows[:-1][same_time])))
    if not copies:
        return
    _, at_once = np.unique(stamp[rows], return_counts=True)
    pairs = float((at_once * (at_once - 1.0)).sum()) / 2
    mixed = np.random.default_rng(0).permutation(rows)
    turns = min(max(_PAIRS // len(rows), 1), len(rows) - 1, _MOST_TURNS)
    found = sum(np.count_nonzero(_equal(table, mixed, np.roll(mixed, turn))) for turn in range(1, turns + 1))
    alike = float((found + _MISSED) / (turns * len(rows)))
    # Of a batch, all that come in one unit of time repeat each other: then those of neighboring units end together.
    end = table.arrival_ns + table.latency_ns
    neighbors = rows[1:][~same_time], rows[:-1][~same_time]
    if len(neighbors[0]):
        alike = max(alike, float(np.mean(end[neighbors[0]] == end[neighbors[1]])))
    if copies > _BEYOND_CHANCE * alike * pairs + _DEVIATIONS * math.sqrt(alike * pairs):
        yield (
            f"{copies:,} of {len(rows):,} requests repeat{'s' * (copies == 1)} another one's time, latency and all "
            "else. If lines were collected twice, they count twice: leave the copies out (sort -u)."
        )


def _equal(table: RequestTable, one: Ints, other: Ints) -> Bools:
    """``(k,)`` True for pairs of rows with the same values; their arrivals are not compared."""
    same = table.latency_ns[one] == table.latency_ns[other]
    columns = [*table.parts.values(), *table.features.values(), *(() if table.route is None else (table.route,))]
    for column in columns:
        same &= (column[one] == column[other]) | ((column[one] != column[one]) & (column[other] != column[other]))
    if table.ids:
        for place in np.flatnonzero(same).tolist():
            same[place] = table.ids[one[place]] == table.ids[other[place]]
    return np.asarray(same)


def _far_away(table: RequestTable) -> Iterator[str]:
    arrival, n = table.arrival_ns, len(table)
    few = max(_FEW, int(_FEW_OF_ALL * n))
    if not table.timed or n < 3 * few:
        return
    length = int(arrival[n - 1 - few] - arrival[few])  # without the first and the last few
    gap = np.diff(arrival)
    for early in (True, False):
        part = gap[:few] if early else gap[::-1][:few]
        far = np.flatnonzero(part > max(_HOUR_NS, _TIMES_AS_LONG * length))
        if len(far):
            apart = timedelta(seconds=int(part[far[-1]]) // 10**9)
            yield (
                f"{counted(int(far[-1]) + 1, 'request')}{_date(table, 0 if early else n - 1)} arrived {apart} "
                f"{'before' if early else 'after'} all others: rates and times of the whole recording include this "
                "gap. Leave out what has a wrong date."
            )


def _date(table: RequestTable, row: int) -> str:
    if table.start_unix_ns is None:
        return ""
    moment = datetime.fromtimestamp((table.start_unix_ns + int(table.arrival_ns[row])) // 10**9, UTC)
    return f" ({moment:%Y-%m-%d %H:%M:%S} UTC)"
