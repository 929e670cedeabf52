"""Series that grew during a drift (memory, sessions, objects, shapes, compilations), and which one it follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats
from latfix.profilers.causes.drift.growth import Growth
from latfix.profilers.causes.drift.trend_tests import best_step, quarters, squares_left
from latfix.profilers.evidence.units import Evidence

#: Times at which levels are compared: as many as growth has windows at most.
_POINTS = 48
#: A line through fewer readings fits anything.
_LEAST_SAMPLES = 8
#: Less growth of memory is that of buffers and caches of any start.
_LEAST_BYTES = 16 * 2**20
#: Growth of Python objects below these limits is normal: each request leaves some, latfix's records among them.
_LEAST_OBJECTS, _OBJECTS_A_REQUEST = 10_000, 25
_OBJECTS = "live Python objects"
#: A block of Python's allocator is at most so large; what is larger comes from the C library.
_BLOCK_BYTES = 512
#: A line on the series must explain this share of the squares that a line in time or a step explains, whichever more.
_FOLLOWS = 0.85
#: A series is preferred if its residual is at most this share of the next best one's.
_PREFERRED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A series that grew while work slowed down.

    :param cause: the drift that it indicates.
    :param name: what it counts.
    :param first: its mean over the first quarter of the run; ``last`` over the last.
    :param rest: residual squares of the drift's level after a straight line on the series.
    """

    cause: str
    name: str
    first: float
    last: float
    rest: float

    def words(self) -> str:
        """``resident memory grew from 310 to 980 MiB``."""
        if self.cause == "drift.memory":
            return f"{self.name} grew from {self.first / 2**20:,.0f} to {self.last / 2**20:,.0f} MiB"
        return f"{self.name} grew from {self.first:,.0f} to {self.last:,.0f}"


def origin_of(evidence: Evidence, growths: list[Growth]) -> tuple[str, tuple[Companion, ...]]:
    """The drift's cause, and the series that the growth follows, the best first.

    ``drift.unknown`` if no series fits, or several fit equally well.

    A series must have grown materially and explain, by a straight line, nearly all that a straight line in time or
    one step explains. A level that never falls is no measure, because it follows the noise of a weak drift as well.
    If two kinds fit, the better one counts only if its residual is half of the other's; series that all grow evenly
    cannot be told apart. Memory that grew by no more than the Python objects that grew with it can occupy is the same
    growth, seen by a less specific counter.
    """
    times = _common_times(growths)
    level = sum((np.interp(times, growth.rise.times, growth.values) for growth in growths), np.zeros(len(times)))
    total = float(((level - level.mean()) ** 2).sum())
    explained = total - min(squares_left(level, times), best_step(level)[1])
    following: dict[str, Companion] = {}
    for cause, name, values in _candidates(evidence, times):
        rest = squares_left(level, values)
        rises = float((values - values.mean()) @ (level - level.mean())) > 0
        if not rises or total - rest < _FOLLOWS * explained:
            continue
        known = following.get(cause)
        if known is None or rest < known.rest:
            first, last = quarters(values)
            following[cause] = Companion(cause=cause, name=name, first=first, last=last, rest=rest)
    if _is_made_of(following.get("drift.memory"), following.get("drift.cache")):
        del following["drift.memory"]
    ordered = tuple(sorted(following.values(), key=lambda companion: companion.rest))
    decided = len(ordered) == 1 or (len(ordered) > 1 and ordered[0].rest <= _PREFERRED * ordered[1].rest)
    if decided:
        return ordered[0].cause, ordered[:1]
    return "drift.unknown", ordered


def _is_made_of(memory: Companion | None, objects: Companion | None) -> bool:
    """True if the growth of memory is that of small Python objects."""
    if memory is None or objects is None or objects.name != _OBJECTS:
        return False
    return memory.last - memory.first <= _BLOCK_BYTES * (objects.last - objects.first)


def _common_times(growths: list[Growth]) -> Floats:
    low = max(float(growth.rise.times[0]) for growth in growths)
    high = min(float(growth.rise.times[-1]) for growth in growths)
    return np.linspace(low, max(high, low), _POINTS)


def _candidates(evidence: Evidence, times: Floats) -> Iterator[tuple[str, str, Floats]]:
    # Half of the normal growth, because the first and the last quarter are half to three quarters of the run apart.
    objects = max(_LEAST_OBJECTS, _OBJECTS_A_REQUEST * int(np.count_nonzero(evidence.ok))) / 2
    for cause, series, name, ratio, amount in (
        ("drift.memory", "process.rss_bytes", "resident memory", 1.1, _LEAST_BYTES),
        ("drift.memory", "malloc.used_bytes", "memory in use on the heap", 1.1, _LEAST_BYTES),
        ("drift.cache", "python.blocks", _OBJECTS, 1.0, objects),
    ):
        t_ns, sampled = evidence.series(series)
        if len(t_ns) >= _LEAST_SAMPLES:
            values = np.asarray(np.interp(times, t_ns / 1e9, sampled), dtype=np.float64)
            if _grew(values, ratio=ratio, amount=amount):
                yield cause, name, values
    yield from _session_candidates(evidence, times)
    batches, compiled = evidence.batches, evidence.pauses["compile"].everywhere.start
    shapes = (batches["open_ns"] - evidence.moved("compute"))[batches["first_shape"] > 0]
    for name, moments in (("input shapes seen", shapes), ("compilations made", compiled)):
        values = _so_far(moments / 1e9, times)
        if _grew(values, ratio=1.5, amount=4):
            yield "drift.cache", name, values


def _session_candidates(evidence: Evidence, times: Floats) -> Iterator[tuple[str, str, Floats]]:
    known = evidence.sessions >= 0
    if not known.any():
        return
    arrival, session = evidence.rows["arrival_ns"][known] / 1e9, evidence.sessions[known]
    order = np.argsort(arrival, kind="stable")
    _, first = np.unique(session[order], return_index=True)
    _, last = np.unique(session[order][::-1], return_index=True)
    begun, ended = arrival[order][first], arrival[order][::-1][last]
    seen = _so_far(begun, times)
    live = seen - _so_far(ended, times)
    for name, values in (("sessions seen", seen), ("live sessions", live)):
        if _grew(values, ratio=1.5, amount=5):
            yield "drift.sessions", name, values


def _so_far(moments_s: Floats, times: Floats) -> Floats:
    """The number of moments that had passed at each time."""
    return np.searchsorted(np.sort(moments_s), times, side="right").astype(np.float64)


def _grew(values: Floats, *, ratio: float, amount: float) -> bool:
    first, last = quarters(values)
    return last >= ratio * first and last - first >= amount
