"""Which numeric columns of a log, whose names say nothing, may measure the work of a request.

A request's input is there before it is served: it depends neither on how many others are in flight nor on when it
came, and it is no function of the latency. What does is an outcome or a state of the service (lengths of queues,
sizes of batches, memory, counters, flags of slow requests), and would take its time from the cause behind it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from latfix.arrays import Floats
from latfix.profilers.evidence.predictive_features import possible_features, rank_correlation
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.queueing.closed_loop import in_flight

#: Words of names of times, states, outcomes and numbers that count nothing.
_NO_INPUT = re.compile(
    r"(^|_)(time\w*|run_?time|date|day|hour|minute|month|year|uptime|lat|latency|dur|duration|elapsed|took|wait\w*|delay\w*|lag"
    r"|queue\w*|pending|backlog|in_?flight|flight|active|concurren\w*|conns?|connections?|load|cpu\w*|mem|memory|rss"
    r"|heap|gc|allocs?|port|pid|tid|ppid|threads?|workers?|shard|ids?|uid|uuid|hash|seq|sequence|index|idx|line|lineno"
    r"|offset|version|retr\w+|attempts?|tries|errors?|fail\w*|warn\w*|status|code|hits?|miss\w*|faults?|cost|price"
    r"|usd|percent|pct|util\w*|ttl|seed|slo|sla|slow|ok|success)(_|$)",
    re.I,
)
#: Requests by which columns are judged, at least and at most; the share of rows that need a number.
_LEAST, _MOST, _NUMBERS = 60, 4_000, 0.99
#: Largest rank correlation with the load and with the order of arrival, and standard errors beyond which it is one.
_OF_LOAD, _OF_TIME, _ERRORS = 0.15, 0.3, 4.0
#: Rank correlation with the column's last value from which it changes slowly, as states do; where the load is not
#: known, that of the load. It is not if times are coarser than this share of a latency.
_SLOWLY, _FINE = 0.5, 0.5
#: A column is a function of the latency if so few rows are out of order, at most; few values without a gap between.
#: The latter is one of so many times the mean of those beside it.
_OUT_OF_ORDER, _FEW_VALUES, _GAP, _BESIDE = 0.001, 20, 8.0, 5
#: Neighbors on each side that give the rate of arrivals; rank correlation with the latency that is worth a note.
_NEAR, _TELLING = 16, 0.5


def says_no_input(words: str) -> bool:
    """True if a name, in words with underscores, is that of a time, a state, an outcome or a number of a thing."""
    return _NO_INPUT.search(words) is not None


def possible_inputs(
    table: RequestTable, columns: Mapping[str, Floats], units_ns: Mapping[str, int]
) -> tuple[dict[str, Floats], list[str]]:
    """The columns that may be inputs, and the names of those that the latency follows, but that may not.

    :param columns: ``(n,)`` each; NaN where a cell is empty, infinite where it is no number.
    :param units_ns: of those whose names have a unit of time: they may be inputs if they exceed the latency.
    """
    rows, inputs, states = np.flatnonzero(table.ok), {}, []
    if len(rows) < _LEAST:
        return {}, []
    part = rows[:: max(len(rows) // _MOST, 1)]
    latency = table.latency_ns[part].astype(np.float64)
    numbers = {name: x for name, x in columns.items() if np.mean(np.isinf(x[rows])) <= 1 - _NUMBERS}
    signs = [sign[part] for sign in _of_load(table)]
    for name, x in possible_features(numbers, part).items():
        if name in units_ns and np.median(x) * units_ns[name] <= np.median(latency):
            continue
        if not _is_state(x, signs) and not _follows(x, latency):
            inputs[name] = columns[name]
        elif rank_correlation(x, latency) > _TELLING:
            states.append(name)
    return inputs, states


def _of_load(table: RequestTable) -> Iterator[Floats]:
    """``(n,)`` each: in flight as each request arrived; how many came until it ended, for the usual rate.

    The latter as a probability, drawn within that of the count itself: it is uniform whatever the latency, if
    arrivals are independent. The difference to the mean would follow the latency where hardly any come.
    """
    if not table.timed or table.sampled or table.resolution_ns > _FINE * float(np.median(table.latency_ns[table.ok])):
        return
    from scipy.special import pdtr

    at, n = table.arrival_ns, len(table)
    latency = np.maximum(table.latency_ns, 0)
    yield in_flight(at, latency).astype(np.float64)
    near = np.arange(n)
    first, last = np.maximum(near - _NEAR, 0), np.minimum(near + _NEAR, n - 1)
    rate = (last - first) / np.maximum(at[last] - at[first], 1)
    drawn = np.random.default_rng(0).random(n)
    came = np.searchsorted(at, at + latency, "right") - near - 1
    fewer, as_many = pdtr(came - 1, rate * latency), pdtr(came, rate * latency)
    yield np.where(came > 0, fewer, 0.0) * (1 - drawn) + as_many * drawn


def _is_state(x: Floats, signs: Sequence[Floats]) -> bool:
    """True if values, in order of arrival, follow the load or the time, or change slowly."""
    chance = _ERRORS / math.sqrt(len(x))
    return (
        any(abs(rank_correlation(x, sign)) > max(_OF_LOAD, chance) for sign in signs)
        or abs(rank_correlation(x, np.arange(len(x)))) > max(_OF_TIME, chance)
        or rank_correlation(x[1:], x[:-1]) > max(_SLOWLY if signs else _OF_LOAD, chance)
    )


def _follows(x: Floats, latency: Floats) -> bool:
    """True if values are a function of the latency: a copy of it, or a flag of slow requests."""
    order = np.lexsort((x, latency))
    rising = x[order]
    if np.mean(np.diff(rising) < 0) > _OUT_OF_ORDER:
        return False
    values = np.unique(x)
    if len(values) > _FEW_VALUES:
        return True
    # Kinds of requests lie apart; a threshold lies among the latencies.
    gaps = np.diff(latency[order])
    for place in np.flatnonzero(np.diff(rising) > 0).tolist():
        beside = [gaps[max(place - _BESIDE, 0) : place], gaps[place + 1 : place + 1 + _BESIDE]]
        if gaps[place] <= _GAP * max(float(part.mean()) if len(part) else 0.0 for part in beside):
            return True
    return False
