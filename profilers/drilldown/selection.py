"""Selection of requests to explain: by id, or the slowest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from heapq import nsmallest

import numpy as np

from latfix.arrays import Ints
from latfix.errors import InputError
from latfix.formatting import shown
from latfix.run_record.run_record import RunRecord

#: Most explanations at once: each is a page.
MOST_SLOWEST = 1000
#: Ids that an error suggests, and those that are all compared with an unknown one: with more, only its neighbors.
_SUGGESTED, _SCANNED = 3, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A request to explain.

    :param index: its position in the schedule.
    :param row: its row in the record, or ``None``.
    :param matches: number of requests in the schedule with its id.
    """

    index: int
    row: int | None
    matches: int


def check_ids(wanted: Sequence[str], ids: Sequence[str]) -> None:
    """Refuse ids that the traffic does not have.

    :raises InputError: names the nearest ids.
    """
    if not wanted:
        return
    unknown = set(wanted).difference(ids)
    for name in wanted:
        if name in unknown:
            near = ", ".join(shown(found) for found in nearest(name, ids))
            raise InputError(
                f"--request: found {shown(name)}, which is not among the traffic's {len(ids):,} requests; expected "
                f"an id{f', e.g. {near}' if near else ''}"
            )


def nearest(name: str, ids: Sequence[str]) -> list[str]:
    """Ids similar to ``name``, the likeliest first."""
    if not ids:
        return []
    name = name[:200]
    candidates = list(ids)
    if len(candidates) > _SCANNED:
        holding = [found for found in ids if name and (name in found or found in name)][:_SUGGESTED]
        ordered = sorted(candidates)
        at = bisect_left(ordered, name)
        candidates = [*holding, *ordered[max(at - 100, 0) : at + 100]]
    folded = name.casefold()
    # Ids that contain the name (typed without prefix or leading zeros) come before ids that only look similar.
    parts = [found for found in candidates if folded and folded in found.casefold()]
    likely = nsmallest(_SUGGESTED, parts, key=len)
    likely += get_close_matches(name, candidates, n=_SUGGESTED, cutoff=0.5)
    return list(dict.fromkeys(likely))[:_SUGGESTED] or list(candidates[:_SUGGESTED])


def choose_ids(record: RunRecord, wanted: Sequence[str]) -> tuple[Chosen, ...]:
    """Every request of the schedule with one of these ids, in the requested order, each once.

    With its measured row, or its warm-up row if the run recorded no other.

    :raises InputError: an id is not in the schedule.
    """
    ids = record.traffic.ids
    check_ids(wanted, ids)
    places: dict[str, list[int]] = {name: [] for name in wanted}
    for k, name in enumerate(ids):
        if name in places:
            places[name].append(k)
    index = record.requests["index"]
    chosen = []
    for found in places.values():
        for k in found:
            row = _row_of(index, k)
            warmup = None if row is not None else _warmup_row(index, k, len(ids))
            chosen.append(Chosen(index=k, row=row if row is not None else warmup, matches=len(found)))
    return tuple(chosen)


def choose_slowest(record: RunRecord, count: int) -> tuple[Chosen, ...]:
    """The slowest measured requests of any status, the slowest first."""
    index = record.requests["index"]
    return tuple(Chosen(index=int(index[row]), row=row, matches=1) for row in record.slowest(count))


def check_slowest(count: int | None) -> None:
    """Refuse an invalid count.

    :raises InputError: it is not from 1 to 1000.
    """
    if count is not None and not 1 <= count <= MOST_SLOWEST:
        raise InputError(f"--slowest: found {count}; expected a whole number from 1 to {MOST_SLOWEST}")


def _row_of(index: Ints, wanted: int) -> int | None:
    at = int(np.searchsorted(index, wanted))
    return at if at < len(index) and int(index[at]) == wanted else None


def _warmup_row(index: Ints, wanted: int, scheduled: int) -> int | None:
    """The last warm-up row of a scheduled request; warm-up repeats the schedule."""
    early = np.flatnonzero(index < 0)
    same = early[(-index[early] - 1) % max(scheduled, 1) == wanted]
    return int(same[-1]) if len(same) else None
