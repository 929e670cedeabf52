"""Infers that requests share a service's cores from arrivals and ends, of a log or of a service seen from outside.

Threads, coroutines and pools of processes serve requests side by side: if these are more than the cores, each gets
an equal part (processor sharing, Kleinrock 1967). What a request received is then what it needed, and that depends
neither on how many others it met nor on when they arrived. The number of cores for which this holds is the service's;
the time beyond is a wait for the others. If it holds for none, requests do not share cores.

Latency that rises by itself also adds requests in flight. Arrivals tell them apart: only a service that is shared
becomes slower after many of them. And what requests need may change over time (drift), so those are compared that
came in the same stretch of the log.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats, Ints, ranks
from latfix.queueing.closed_loop import in_flight
from latfix.queueing.inference.queue_inference import quantiles_apart

#: Requests from which the cores are inferred, and the least number.
_SAMPLE, _LEAST = 60_000, 100
#: A correlation is certain from so many standard errors. Latency and arrivals may both wander: their correlation must
#: also be this many times as large as the same arrivals at other times give, at least this share of the log away.
_SURE, _AWAY = 3.5, 0.05
#: Stretches of a log. Least share of requests that found a free core: in a lasting overload any number fits.
_STRETCHES, _FREE = 6, 0.05
#: Least share of the latency that is a wait, and coarsest resolution as a share of the median latency.
_WORTH, _FINE = 0.05, 0.5
#: Largest factor between what requests received that met few and many others, beyond what chance produces.
_ALIKE = 1.1
#: Halvings of the interval of the number of cores.
_HALVINGS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Requests share cores evenly.

    :param cores: requests that are served at full speed.
    :param wait_ns: ``(n,)`` how much longer a request took than with a core of its own.
    :param at_ns: ``(2 n,)`` ascending: arrivals and ends; ``others_ns`` the wait since the first, of a request that
        was there all the time.
    """

    cores: float
    wait_ns: Ints
    at_ns: Ints
    others_ns: Floats


class _Presence:
    """Requests that are there over time; columns of arrivals and ends together are ``(2 n,)`` in order of time."""

    def __init__(self, arrival: Ints, latency: Ints) -> None:
        n = len(arrival)
        at = np.concatenate([arrival, arrival + latency])
        order = np.argsort(at, kind="stable")
        self.at_ns: Ints = at[order]
        self.there = np.maximum(np.cumsum(np.where(order < n, 1, -1)), 1)[:-1]
        place = np.empty(2 * n, np.int64)
        place[order] = np.arange(2 * n)
        self.begin, self.end = place[:n], place[n:]

    def others_ns(self, cores: float) -> Floats:
        """``(2 n,)`` as :attr:`Sharing.others_ns`."""
        waits = np.diff(self.at_ns) * (1.0 - np.minimum(1.0, cores / self.there))
        return np.concatenate([[0.0], np.cumsum(waits)])

    def waits(self, others: Floats) -> Floats:
        """``(n,)`` how much longer each request took than alone."""
        return np.asarray(others[self.end] - others[self.begin])


def infer_sharing(arrival: Ints, latency: Ints, resolution_ns: int) -> Sharing | None:
    """The sharing that a log shows; ``None`` if no number of cores fits, or waits are negligible.

    :param arrival: ``(n,)`` independent of the answers; ``latency`` ``(n,)`` nanoseconds.
    :param resolution_ns: of both.
    """
    if len(arrival) < _LEAST or resolution_ns > _FINE * float(np.median(latency)):
        return None
    sample = np.argsort(arrival, kind="stable")[:_SAMPLE]
    cores = _cores(arrival[sample], latency[sample])
    if cores is None:
        return None
    presence = _Presence(arrival, latency)
    others = presence.others_ns(cores)
    wait = np.clip(np.rint(presence.waits(others)), 0, latency).astype(np.int64)
    return Sharing(cores=cores, wait_ns=wait, at_ns=presence.at_ns, others_ns=others)


def _cores(arrival: Ints, latency: Ints) -> float | None:
    presence, met = _Presence(arrival, latency), in_flight(arrival, latency)

    def received(cores: float) -> Floats:
        return latency - presence.waits(presence.others_ns(cores))

    if not np.ptp(met) or _related(latency, met) < _SURE:
        return None
    low, high = 0.0, math.log(max(presence.there.max(), 2))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _related(received(math.exp(middle)), met) > 0 else (middle, high)
    cores = math.exp((low + high) / 2)
    own = received(cores)
    if own.sum() > (1 - _WORTH) * latency.sum() or np.mean(met < cores) < _FREE or _related(own, met) > _SURE:
        return None
    expected = equal_work_waits(arrival.astype(np.float64), float(own.mean()), cores)
    if not _stands_out(latency, expected) or abs(_related(own, expected)) > _SURE:
        return None
    # Needs as a share of the usual in their stretch differ as much while the service is crowded as otherwise.
    needs = [part / max(float(np.median(part)), 1.0) for part in np.array_split(own, _STRETCHES)]
    same = _alike(own / max(float(np.median(own)), 1.0), _scaled(met)) and _alike(np.concatenate(needs), met)
    return cores if same else None


def _alike(own: Floats, met: Ints | Floats) -> bool:
    """True if values are distributed alike among those that met few others and many."""
    least = np.maximum(own, 1e-3)
    few, many = met <= np.quantile(met, 1 / 3), met >= np.quantile(met, 2 / 3)
    return quantiles_apart(least[few], least[many], 0.0, limit=_ALIKE)[1] <= 0


def _scaled(values: Ints | Floats) -> Floats:
    """Ranks less their mean in each stretch, with variance 1; zeros if all are equal."""
    beyond = np.concatenate([part - part.mean() for part in np.array_split(ranks(values), _STRETCHES)])
    return np.asarray(beyond / max(float(beyond.std()), 1e-9))


def _related(one: Ints | Floats, other: Ints | Floats) -> float:
    """The rank correlation in standard errors of independent values."""
    return float(np.mean(_scaled(one) * _scaled(other))) * math.sqrt(len(one))


def _stands_out(latency: Ints, expected: Floats) -> bool:
    """True if latency follows what arrivals alone make expected, more than at any other time."""
    one, other = np.fft.rfft(_scaled(latency)), np.fft.rfft(_scaled(expected))
    n = len(latency)
    shifted = np.fft.irfft(one * np.conj(other), n) / n
    away = max(int(_AWAY * n), 1)
    elsewhere = float(np.std(shifted[away : n - away]))
    return bool(shifted[0] > _SURE * max(elsewhere, 1 / math.sqrt(n)))


def equal_work_waits(at: Floats, work: float, cores: float, alone: float = 1.0) -> Floats:
    """``(n,)`` how much longer each request takes than alone, if all need as much and share the cores evenly.

    :param at: arrivals; ``work`` on-CPU time of a request, in the same unit.
    :param alone: cores that one request can use.
    """
    order = np.argsort(at, kind="stable")
    moments, waits, quiet = at.astype(np.float64).tolist(), [0.0] * len(at), work / alone
    done, now = 0.0, 0.0  # work that each of those there has got since the start
    ahead: deque[tuple[int, float]] = deque()
    for k in [*order.tolist(), -1]:
        until = moments[k] if k >= 0 else float("inf")
        while ahead:  # in order of arrival, as all need the same
            speed = min(alone, cores / len(ahead))
            first, target = ahead[0]
            if now + (target - done) / speed > until:
                done += (until - now) * speed
                break
            now, done = now + (target - done) / speed, target
            waits[first] = now - moments[first] - quiet
            ahead.popleft()
        now = until
        ahead.append((k, done + work))
    return np.asarray(np.maximum(np.array(waits), 0.0), dtype=np.float64)
