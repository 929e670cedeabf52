"""Stalls that several requests share, each one event with one cause.

In streams, a stall is a gap much longer than usual in most open streams that ends at the same moment in all. It is
attributed to prefill if the first token of a request that came before the stall comes at that moment, or if the
engine's log shows a prefill step then. In a log without streams, a stall is a time in which no request ended although
several were being served, for longer than a request takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import seconds
from latfix.profilers.evidence.intervals import Overlaps
from latfix.profilers.recordings.requests.request_table import EngineSteps, Gaps

#: A stall: minimum length in usual gaps, tolerance of the common end as a share of its length, and minimum streams:
#: their number, and their share of the open ones.
_LONG, _TOGETHER, _LEAST, _OF_OPEN = 3.0, 0.1, 2, 0.5
_CLOSE_NS = 5_000_000
#: Stalls are periodic if there are enough times between them, of which this share is nearly the same.
_LEAST_APART, _REGULAR, _NEARLY = 5, 0.8, 0.05
#: In a log: minimum silence in typical services, and the share of it by which requests in service must be late.
_SILENT, _SHOWN = 3.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Shared stalls, and the time that each request lost in them, in nanoseconds.

    :param prefill_ns: ``(n,)`` lost in stalls due to prompts of others; ``other_ns`` in the remaining stalls.
    :param events: ``(e, 2)`` begin and end of each stall; ``by_prefill`` ``(e,)`` True if due to prompts.
    :param usual_ns: the usual gap between chunks.
    """

    prefill_ns: Ints
    other_ns: Ints
    events: Ints
    by_prefill: Bools
    usual_ns: float


def in_streams(
    arrival_ns: Ints, gaps: Gaps, first_token_ns: Ints | None, ended_ns: Ints, steps: EngineSteps | None
) -> Stalls:
    """Shared stalls of streams.

    :param first_token_ns: ``(n,)`` when each stream began, on the clock of the arrivals, or -1; ``ended_ns`` ``(n,)``
        when each request ended.
    """
    n = len(arrival_ns)
    usual = float(np.median(gaps.length_ns)) if len(gaps.length_ns) else 0.0
    usual = float(np.median(gaps.length_ns[gaps.length_ns <= _LONG * usual])) if usual else 0.0
    long = np.flatnonzero(gaps.length_ns > max(_LONG * usual, 1.0))
    prefill, other = np.zeros(n, np.int64), np.zeros(n, np.int64)
    over = gaps.start_ns + gaps.length_ns
    long = long[np.argsort(over[long], kind="stable")]
    events, due = [], []
    firsts = came = np.zeros(0, np.int64)
    if first_token_ns is not None:
        by_first = np.argsort(first_token_ns, kind="stable")[np.count_nonzero(first_token_ns < 0) :]
        firsts, came = first_token_ns[by_first], arrival_ns[by_first]
    begun = first_token_ns if first_token_ns is not None else np.zeros(n, np.int64)
    begun, ended_ns = begun[begun >= 0], ended_ns[begun >= 0]
    open_streams = Overlaps(begun, ended_ns)
    for members in _together(over[long], gaps.length_ns[long]):
        rows = long[members]
        length = int(np.median(gaps.length_ns[rows]))
        end = int(np.median(over[rows]))
        near = max(int(_TOGETHER * length), _CLOSE_NS)
        streams = np.unique(gaps.row[rows])
        there = open_streams.near(end - near, max(end - near, end - length // 2))
        still_open = np.count_nonzero((begun[there] < end - length // 2) & (ended_ns[there] >= end - near))
        if len(streams) < max(_LEAST, _OF_OPEN * still_open):
            continue
        by_prefill = _prompt_then(firsts, came, steps, end - length, end, near)
        lost = np.rint(np.maximum(gaps.length_ns[rows] - usual, 0)).astype(np.int64)
        np.add.at(prefill if by_prefill else other, gaps.row[rows], lost)
        events.append((end - length, end))
        due.append(by_prefill)
    return Stalls(
        prefill_ns=prefill,
        other_ns=other,
        events=np.array(events, np.int64).reshape(-1, 2),
        by_prefill=np.array(due, bool),
        usual_ns=usual,
    )


def _together(over: Ints, length: Ints) -> list[slice]:
    """Runs of gaps that end at one moment."""
    if not len(over):
        return []
    near = np.maximum(_TOGETHER * length, _CLOSE_NS)
    cuts = np.flatnonzero(np.diff(over) > np.minimum(near[1:], near[:-1])) + 1
    edges = [0, *cuts.tolist(), len(over)]
    return [slice(first, last) for first, last in pairwise(edges)]


def _prompt_then(firsts: Ints, came: Ints, steps: EngineSteps | None, begin: int, end: int, near: int) -> bool:
    """True if another request's prompt was computed between two moments: it came before the first.

    A prompt that comes during a stall, whatever its cause, has its first token right after it, too.
    """
    if steps is not None:
        overlap = (steps.end_ns > begin + near) & (steps.end_ns - steps.length_ns < end - near)
        return bool((steps.prefill_tokens[overlap] > 0).any())
    low, high = np.searchsorted(firsts, [end - near, end + near])
    return bool((came[low:high] <= begin + near).any())


def times_words(moments: Ints) -> str:
    """``24 times``; with the time from one stall to the next if that is nearly always the same."""
    every = regular_interval(np.sort(moments))
    return f"{len(moments)} times{f', every {seconds(every / 1e9)},' if every else ''}"


def regular_interval(moments: Ints | Floats) -> float:
    """The mean interval of ascending moments if nearly all are alike, else 0.

    Those of independent events are exponential: one in 29 is within a twentieth of their median.
    """
    apart = np.diff(moments).astype(np.float64)
    usual = float(np.median(apart)) if len(apart) >= _LEAST_APART else 0.0
    alike = np.abs(apart - usual) <= _NEARLY * usual
    return float(apart[alike].mean()) if usual > 0 and alike.mean() >= _REGULAR else 0.0


def in_log(begin: Ints, end: Ints, beyond: Floats, typical_ns: float) -> tuple[Ints, Ints, Ints]:
    """Times in which no request ended although several were being served.

    :param begin: ``(n,)`` when service began, nearly ascending; ``end`` when it ended; ``beyond`` ``(n,)``
        nanoseconds of service beyond the expectation for its input.
    :returns: ``(n,)`` nanoseconds lost by each request, ``(e, 2)`` the stalls, and ``(e,)`` nanoseconds lost in each.
    """
    lost = np.zeros(len(begin), np.int64)
    order = np.argsort(end, kind="stable")
    ends = np.concatenate([[begin.min()], end[order]])  # a log may begin with a stall
    silent = np.flatnonzero(np.diff(ends) > _SILENT * typical_ns)
    served = np.searchsorted(np.sort(begin), ends[silent + 1]) - silent
    several = served >= _LEAST  # in service during the stall
    events, costs = [], []
    for place, many in zip(silent[several].tolist(), served[several].tolist(), strict=True):
        low, high = int(ends[place]), int(ends[place + 1])
        # Requests in service during the stall end after it: theirs are the next ends.
        after = order[place : place + 4 * (many + 1)]
        inside = after[(begin[after] < high) & (end[after] >= high)]
        overlap = np.minimum(high - np.maximum(begin[inside], low), beyond[inside])
        shown = overlap > _SHOWN * (high - np.maximum(begin[inside], low))
        serving = begin[inside] <= low + (high - low) // 4
        if np.count_nonzero(serving) < _LEAST or np.mean(shown[serving]) < 1 - _SHOWN / 2:
            continue
        # All go on at once; services that are merely long end one by one.
        at_once = end[inside][serving] - high <= max(_SILENT * typical_ns, (high - low) / 4)
        if np.mean(at_once) < 1 - _SHOWN / 2:
            continue
        each = np.rint(np.maximum(overlap, 0)).astype(np.int64)
        lost[inside] += each
        events.append((low, high))
        costs.append(each.sum())
    return lost, np.array(events, np.int64).reshape(-1, 2), np.array(costs, np.int64)
