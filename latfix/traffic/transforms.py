"""Recorded traffic made longer, shorter, faster, denser: pure functions, each recorded in the metadata."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import InputError
from latfix.traffic.schedule import Traffic
from latfix.traffic.value_parsers import MAX_SECONDS, NS_PER_S

#: More requests do not fit into a replay's memory.
MAX_REQUESTS = 20_000_000
#: A resampled request moves to a time between those of this many neighbors on either side.
JITTER_NEIGHBORS = 10


def scale_time(traffic: Traffic, speed: float) -> Traffic:
    """Divide all arrival times by ``speed``: 2 replays twice as fast. Deadlines are unchanged.

    :raises InputError: ``speed`` is not a number above 0 and at most a billion, or the result exceeds 31 years.
    """
    _positive("speed", speed)
    if speed > MAX_SECONDS:  # any traffic would arrive within a second; a record holds no number beyond 2^63
        raise InputError(f"speed: found {speed:g}; expected at most {MAX_SECONDS:.0e}")
    _check_duration(traffic.duration_s / speed, f"speed {speed:g}")
    scaled = np.rint(traffic.arrival_ns.astype(np.longdouble) / np.longdouble(speed)).astype(np.int64)
    return _noted(replace(traffic, arrival_ns=scaled), "scale_time", speed=speed)


def without_lead(traffic: Traffic) -> Traffic:
    """The traffic from its first request on if a replay skips the time before that (:attr:`Traffic.start_s`)."""
    if not traffic.start_s:
        return traffic
    begun = replace(traffic, arrival_ns=traffic.arrival_ns - traffic.arrival_ns[0])
    return _noted(begun, "without_lead", seconds=traffic.start_s)


def scale_to_duration(traffic: Traffic, seconds: float) -> Traffic:
    """Scale arrivals so that the last is at ``seconds``.

    :raises InputError: ``seconds`` is not a finite number above 0, or all arrivals are at zero.
    """
    _positive("duration", seconds)
    _check_duration(seconds, f"duration {seconds:g}")
    last = int(traffic.arrival_ns[-1]) if len(traffic) else 0
    if last == 0:
        raise InputError("duration: found traffic whose requests all arrive at 0 s; expected arrivals to scale")
    target = round(seconds * NS_PER_S)
    scaled = np.rint(traffic.arrival_ns.astype(np.longdouble) * target / last).astype(np.int64)
    return _noted(
        replace(traffic, arrival_ns=scaled),
        "scale_to_duration",
        seconds=seconds,
        speed=last / target if target else None,
    )


def slice_time(traffic: Traffic, start_s: float = 0.0, end_s: float | None = None) -> Traffic:
    """The requests with ``start_s <= arrival < end_s``, relative to ``start_s``.

    :raises InputError: the bounds are not finite, not in order, or nothing lies between them.
    """
    end = math.inf if end_s is None else end_s
    if not (math.isfinite(start_s) and start_s >= 0) or math.isnan(end) or end <= start_s:
        raise InputError(f"slice: found {start_s:g} to {end:g} s; expected 0 <= start < end")
    if end_s is not None and math.isinf(end_s):
        raise InputError(f"slice: found an end at {end_s:g} s; expected a finite number; leave it out for no end")
    start_ns = _to_ns(start_s)
    if end_s is not None:  # no traffic is longer, and a record holds no number beyond 2^63
        end_s = min(end_s, MAX_SECONDS)
    first = int(np.searchsorted(traffic.arrival_ns, start_ns, side="left"))
    last = len(traffic) if end_s is None else int(np.searchsorted(traffic.arrival_ns, _to_ns(end), side="left"))
    if first >= last:
        raise InputError(
            f"slice: found no request between {start_s:g} and {end:g} s; "
            f"expected bounds within the traffic's 0 to {traffic.duration_s:g} s"
        )
    taken = traffic.rows(np.arange(first, last))
    taken = replace(taken, arrival_ns=taken.arrival_ns - start_ns)
    return _noted(taken, "slice_time", start_s=start_s, end_s=end_s)


def limit(traffic: Traffic, n: int) -> Traffic:
    """The first ``n`` requests, or all if there are fewer.

    :raises InputError: ``n`` is below 1.
    """
    if n < 1:
        raise InputError(f"limit: found {n}; expected 1 or more requests")
    taken = min(n, len(traffic))  # also the number that is noted: one of any size would not fit into a document
    return _noted(traffic.rows(np.arange(taken)), "limit", n=taken)


def cap_gaps(traffic: Traffic, seconds: float) -> Traffic:
    """Limit gaps between consecutive arrivals, and the first arrival, to ``seconds``.

    :raises InputError: ``seconds`` is not a finite number above 0.
    """
    _positive("cap_gaps", seconds)
    gaps = np.diff(traffic.arrival_ns, prepend=0)
    capped = np.minimum(gaps, _to_ns(seconds))
    return _noted(
        replace(traffic, arrival_ns=np.cumsum(capped)),
        "cap_gaps",
        seconds=seconds,
        gaps_capped=int(np.count_nonzero(gaps > capped)),
        removed_s=float((gaps - capped).sum()) / NS_PER_S,
    )


def repeat(traffic: Traffic, times: int) -> Traffic:
    """The traffic ``times`` over, with copies one mean gap apart (1 s for a single request).

    Ids and sessions of later copies end in ``#2``, ``#3`` …: they are other requests of other conversations.

    :raises InputError: ``times`` is below 1, or the result is too large.
    """
    if times < 1:
        raise InputError(f"repeat: found {times}; expected 1 or more")
    count = len(traffic)
    _check_count(count * times, f"repeat {times}")
    span = int(traffic.arrival_ns[-1] - traffic.arrival_ns[0])
    gap = round(span / (count - 1)) if count > 1 else NS_PER_S
    _check_duration((int(traffic.arrival_ns[-1]) + (times - 1) * (span + gap)) / NS_PER_S, f"repeat {times}")
    copies = np.repeat(np.arange(times), count)
    indices = np.tile(np.arange(count), times)
    repeated = traffic.rows(indices)
    repeated = replace(
        repeated,
        arrival_ns=repeated.arrival_ns + copies * (span + gap),
        ids=_copied_ids(repeated.ids, copies, "#"),
        sessions=[
            session if session is None or copy == 0 else f"{session}#{copy + 1}"
            for session, copy in zip(repeated.sessions, copies.tolist(), strict=True)
        ],
    )
    return _noted(repeated, "repeat", times=times, gap_s=gap / NS_PER_S)


def resample_rate(traffic: Traffic, rate_factor: float, seed: int = 0) -> Traffic:
    """``rate_factor`` times as many requests, with the same course of the rate.

    Below 1, requests are drawn at random without replacement. Above 1, copies of requests are added: every
    request once for each whole 1 in the factor, the rest drawn at random. A copy arrives at a random time
    among its :data:`JITTER_NEIGHBORS` neighbors on either side, so that it neither coincides with its original
    nor leaves the stretch of time whose rate it represents. Ids of copies end in ``+1``, ``+2`` ….

    :raises InputError: the factor is not a finite number above 0, leaves no request or makes too many.
    """
    _positive("rate_factor", rate_factor)
    wanted = round(len(traffic) * rate_factor) if rate_factor * len(traffic) < 1e12 else MAX_REQUESTS + 1
    _check_count(wanted, f"rate_factor {rate_factor:g}")
    if wanted < 1:
        raise InputError(f"rate_factor: found {rate_factor:g}, which leaves no request of {len(traffic)}")
    if seed < 0:
        raise InputError(f"seed: found {seed}; expected 0 or more")
    random = np.random.default_rng(seed)
    count = len(traffic)
    whole, rest = divmod(wanted, count)
    drawn = np.sort(random.choice(count, size=rest, replace=False))
    if whole == 0:
        downsampled = traffic.rows(drawn)
        return _noted(downsampled, "resample_rate", rate_factor=rate_factor, seed=seed)
    indices = np.concatenate([np.tile(np.arange(count), whole), drawn])
    copies = np.concatenate([np.repeat(np.arange(whole), count), np.full(rest, whole)])
    arrival = traffic.arrival_ns[indices]
    extra = copies > 0
    low = traffic.arrival_ns[np.maximum(indices - JITTER_NEIGHBORS, 0)]
    high = traffic.arrival_ns[np.minimum(indices + JITTER_NEIGHBORS, count - 1)]
    moved = low + np.floor(random.random(len(indices)) * (high - low)).astype(np.int64)
    arrival = np.where(extra, moved, arrival)
    order = np.lexsort((indices, arrival))
    denser = traffic.rows(indices[order])
    denser = replace(denser, arrival_ns=arrival[order], ids=_copied_ids(denser.ids, copies[order], "+", first=1))
    return _noted(denser, "resample_rate", rate_factor=rate_factor, seed=seed)


def _copied_ids(ids: list[str], copies: Ints, mark: str, first: int = 2) -> list[str]:
    """Unique ids of copies: the original keeps its own, copy ``k`` gets ``mark`` and a number."""
    numbers = copies.tolist()
    taken = {name for name, copy in zip(ids, numbers, strict=True) if copy == 0}
    copied: list[str] = []
    for name, copy in zip(ids, numbers, strict=True):
        candidate = name if copy == 0 else f"{name}{mark}{copy - 1 + first}"
        while copy and candidate in taken:
            candidate += mark
        taken.add(candidate)
        copied.append(candidate)
    return copied


def _noted(traffic: Traffic, transform: str, **arguments: Any) -> Traffic:
    before = traffic.metadata.get("transforms", [])
    entry = {"transform": transform, **arguments, "requests": len(traffic)}
    return replace(traffic, metadata={**traffic.metadata, "transforms": [*before, entry]})


def _to_ns(seconds: float) -> int:
    return round(min(seconds, 9 * MAX_SECONDS) * NS_PER_S)


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: found {value}; expected a finite number above 0")


def _check_duration(seconds: float, what: str) -> None:
    if not seconds <= MAX_SECONDS:
        raise InputError(f"{what}: found a result of {seconds:.3g} s; expected at most {MAX_SECONDS:.0e} s")


def _check_count(count: int, what: str) -> None:
    if count > MAX_REQUESTS:
        raise InputError(f"{what}: found a result of {count} requests; expected at most {MAX_REQUESTS}")
