"""Clocks of services that differ: a callee's spans outside of the calls that they answer.

For every call from one service to another the callee's span lies within the caller's. Each call so gives bounds of
the difference between the two clocks; a difference that fits nearly all calls is removed. Clocks that drift or are
set, and hosts of one service with clocks of their own, have no such difference. A client's span waits for the answer,
so each callee's span is moved into it by the least amount. Without that, the part of a span outside of its call is
lost, and counted as the network's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints, groups_of
from latfix.formatting import from_ns, share
from latfix.profilers.recordings.requests.spans.span_table import SpanTable

#: Calls from which a difference is estimated, and the share of them that it must fit; fewer fit without it.
_LEAST_CALLS, _FITS = 10, 0.9
#: Of fewer calls, the share outside from which they are moved one by one.
_MOST = 0.5
#: Differences named in the note.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Difference:
    """How far the callee's clock is ahead of the caller's, and the share of calls that show it."""

    caller: int
    callee: int
    ahead_ns: int
    outside: float


def with_one_clock(spans: SpanTable) -> SpanTable:
    """The spans on the clocks of their outermost callers, with a note if some were moved or lie outside of calls."""
    inside = np.flatnonzero(spans.parent >= 0)
    remote = inside[spans.service[inside] != spans.service[spans.parent[inside]]]
    pair = spans.service[spans.parent[remote]] * len(spans.services) + spans.service[remote]
    moved: list[_Difference] = []
    left: list[_Difference] = []
    shift = np.zeros(len(spans), np.int64)
    for group in groups_of(pair):
        calls = remote[group]
        found = _difference(spans, calls, *divmod(int(pair[group[0]]), len(spans.services)))
        if found is None:
            continue
        waited_for = spans.calls[spans.parent[calls]]
        (moved if found.ahead_ns or waited_for.all() else left).append(found)
        shift[calls] = -found.ahead_ns + np.where(waited_for, _into_call(spans, calls, found.ahead_ns), 0)
    if not moved and not left:
        return spans
    total = _inherited(spans.parent, shift)
    return replace(
        spans,
        start_ns=spans.start_ns + total,
        end_ns=spans.end_ns + total,
        notes=(*spans.notes, *_notes(spans, moved, left)),
    )


def _difference(spans: SpanTable, calls: Ints, caller: int, callee: int) -> _Difference | None:
    """The difference of two clocks, 0 if none explains the spans outside of calls; ``None`` if few lie there."""
    parent = spans.parent[calls]
    least, most = spans.end_ns[calls] - spans.end_ns[parent], spans.start_ns[calls] - spans.start_ns[parent]
    fits = least <= most  # a callee that takes longer than the call works on after its answer
    within = float(np.mean((least <= 0) & (most >= 0) | ~fits))
    few = np.count_nonzero(fits) < _LEAST_CALLS
    if not fits.any() or (within > 1 - _MOST if few else within >= _FITS):
        return None
    outside = float(np.mean((least > 0) | (most < 0)))
    ahead, fitting = (0, 0) if few else _most_common(least[fits], most[fits])
    if fitting < _FITS * len(calls):
        ahead = 0
    return _Difference(caller, callee, ahead, outside)


def _into_call(spans: SpanTable, calls: Ints, ahead_ns: int) -> Ints:
    """The least shift of each callee's span into the caller's, if it fits there; else 0."""
    parent = spans.parent[calls]
    late = spans.end_ns[calls] - ahead_ns - spans.end_ns[parent]
    early = spans.start_ns[parent] - (spans.start_ns[calls] - ahead_ns)
    return np.asarray(np.where(late + early <= 0, np.maximum(early, 0) - np.maximum(late, 0), 0))


def _most_common(least: Ints, most: Ints) -> tuple[int, int]:
    """The middle of the range that lies within the most intervals, and their number."""
    points: Ints = np.sort(least)
    within = np.searchsorted(points, points, "right") - np.searchsorted(np.sort(most), points, "left")
    best = int(np.argmax(within))
    ends: Floats | Ints = most[(least <= points[best]) & (most >= points[best])]
    return int(points[best] + ends.min()) // 2, int(within[best])


def _inherited(parent: Ints, shift: Ints) -> Ints:
    """``(n,)`` each span's shift and those of all spans above it; 0 for spans without a way to an outermost one."""
    total = np.zeros_like(shift)
    known: Bools = parent < 0
    while True:
        reached = np.flatnonzero(~known & known[parent])
        if not len(reached):
            return total
        total[reached] = shift[reached] + total[parent[reached]]
        known[reached] = True


def _by(ahead_ns: int) -> str:
    if not ahead_ns:
        return "by changing amounts from"
    return f"{from_ns(abs(ahead_ns))} {'ahead of' if ahead_ns > 0 else 'behind'}"


def _notes(spans: SpanTable, moved: list[_Difference], left: list[_Difference]) -> tuple[str, ...]:
    names = spans.services
    notes = []
    if moved:
        moved = sorted(moved, key=lambda each: -abs(each.ahead_ns))
        listed = "; ".join(
            f"{names[each.callee]} {_by(each.ahead_ns)} {names[each.caller]} ({share(each.outside)} of its spans lay "
            "outside of their calls)"
            for each in moved[:_SHOWN]
        )
        more = f"; and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
        notes.append(f"Clocks differ, and spans were moved accordingly: {listed}{more}.")
    if left:
        worst = max(left, key=lambda each: each.outside)
        notes.append(
            f"{share(worst.outside)} of {names[worst.callee]}'s spans lie partly outside of {names[worst.caller]}'s "
            "calls: the clocks differ by changing amounts, or it works on after its answer. That part is not counted "
            "as its own."
        )
    return tuple(notes)
