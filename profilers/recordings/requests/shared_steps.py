"""Steps of streams that take longer the more streams are open, and what that costs each stream.

A server that is slow for a while has more open streams, too. Only the change from one chunk of a stream to the next,
when another stream began or ended between them, shows what others cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.recordings.requests.request_table import Gaps

#: Changes from chunk to chunk that show it, at least; parts of the recording, each of which must show such a share.
_LEAST_CHANGES, _SPLIT, _IN_EACH = 200, 4, 0.5
#: Of usual gaps: those that are longer are stalls; chunks closer than this many follow each other.
_STALL, _NEXT = 3.0, 5.0
#: Least share of a usual gap that a usual change of the number of streams costs.
_MATERIAL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSteps:
    """What other streams cost.

    :param lost_ns: ``(n,)`` by request, beyond that with the usual number of streams; negative with fewer.
    :param each_ns: a further open stream adds so much to the time from chunk to chunk; ``usual`` open streams.
    """

    lost_ns: Ints
    each_ns: float
    usual: int


def shared_steps(gaps: Gaps, first_ns: Ints, ended_ns: Ints, usual_ns: float) -> SharedSteps | None:
    """What other streams cost each; ``None`` if the recording does not show that they do.

    :param first_ns: ``(n,)`` when each stream began, on the clock of the gaps, or -1; ``ended_ns`` ``(n,)`` its end.
    :param usual_ns: from chunk to chunk.
    """
    there = first_ns >= 0
    begun, over = np.sort(first_ns[there]), np.sort(ended_ns[there])
    # Chunks of one step do not arrive at quite the same moment, so streams are counted between them.
    middle = gaps.start_ns + gaps.length_ns // 2
    before, after = (np.searchsorted(begun, at, "right") for at in (middle, middle + gaps.length_ns))
    streams = before - np.searchsorted(over, middle, "right")
    # In a gap that ends as a stream begins, its prompt was computed.
    short = gaps.length_ns <= _STALL * usual_ns
    plain = np.flatnonzero((before == after) & short)
    one, other = plain[:-1], plain[1:]
    follows = (gaps.row[one] == gaps.row[other]) & (middle[other] - middle[one] < _NEXT * usual_ns)
    changed = follows & (streams[one] != streams[other])
    one, other = one[changed], other[changed]
    if len(one) < _LEAST_CHANGES:
        return None
    more = (streams[other] - streams[one]).astype(np.float64)
    longer = (gaps.length_ns[other] - gaps.length_ns[one]).astype(np.float64)
    each = _slope(more, longer)
    parts = np.array_split(np.argsort(gaps.start_ns[other], kind="stable"), _SPLIT)
    usual = int(np.median(streams[plain]))
    spread = float(np.quantile(streams[plain], 0.9)) - usual
    if each * spread < _MATERIAL * usual_ns or min(_slope(more[p], longer[p]) for p in parts) < _IN_EACH * each:
        return None
    cost = np.where(short, np.minimum(each * (streams - usual), gaps.length_ns), 0)
    lost = np.bincount(gaps.row, cost, len(first_ns))
    return SharedSteps(lost_ns=np.rint(lost).astype(np.int64), each_ns=each, usual=usual)


def _slope(more: Floats, longer: Floats) -> float:
    return float(np.sum(more * longer) / np.sum(more * more))
