"""The requests that each point of a sweep replays: how many, which of the recorded ones, at what rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.capacity.objective import TAIL_REQUESTS, LatencyObjective
from latfix.errors import InputError
from latfix.formatting import counted
from latfix.traffic.schedule import Traffic
from latfix.traffic.summary import fano_factor
from latfix.traffic.transforms import MAX_REQUESTS, limit, repeat, scale_time, slice_time
from latfix.traffic.value_parsers import MAX_SECONDS

#: The share of the budget that the first round over the requested loads may take.
_GRID_SHARE = 0.5
#: The least duration of a point, so that queues settle, but at most this share of the budget.
_SHORTEST_S, _SHORTEST_SHARE = 4.0, 0.05
#: The longest duration of a point as a share of a setting's budget; at low loads it limits the requests.
_LONGEST_SHARE = 0.2
#: Most requests that a point is repeated to, to reach the least duration.
_MOST_REPEATED = 20_000
#: With this many times the requests that a percentile needs, more points are better than longer ones.
_PLENTY = 2.0
#: The largest share of the budget that one point at the recorded rate may take, and the fewest requests of any.
_POINT_SHARE, _FEWEST = 0.15, 50
#: About what a point takes in addition to its schedule: lead-in, drain, closing the record.
POINT_OVERHEAD_S = 1.5
#: About how long starting a process takes.
_LOAD_S = 3.0
_CANDIDATES = 60
_WINDOWS = 30
_LEAST_WINDOWS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Burstiness:
    """How arrivals vary.

    :param gap_scv: squared coefficient of variation of the gaps.
    :param windows: in mean gaps, ascending, and ``index`` the index of dispersion of counts in them. Stretching the
        schedule changes neither.
    """

    gap_scv: float
    windows: tuple[float, ...]
    index: tuple[float, ...]

    def over(self, gaps: float) -> float:
        """The index of dispersion over ``gaps`` mean gaps; at most at the longest window that was counted."""
        if not self.windows:
            return self.gap_scv
        return float(np.interp(math.log(max(gaps, 1e-9)), np.log(self.windows), self.index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of the recorded traffic that is replayed at every load.

    :param traffic: its schedule at the recorded rate, starting with the first request.
    :param rate: its requests per second; ``recorded`` those of the whole.
    :param bursts: how arrivals vary in all of the recorded traffic, which has longer windows.
    :param dispersion: index of dispersion of counts over a thirtieth of the part's length; ``whole`` over windows
        of the same length in all of the recorded traffic.
    :param shortest_s: a replay is repeated until it lasts this long, and ends after ``longest_s``.
    """

    traffic: Traffic
    rate: float
    recorded: float
    bursts: Burstiness
    dispersion: float
    whole: float
    repeated: int = 1
    shortest_s: float = 0.0
    longest_s: float = math.inf

    def at(self, load: float) -> Traffic:
        """The schedule at a multiple of the recorded rate, with the same burstiness."""
        sent = self.sent(load)
        if sent < len(self.traffic):
            return scale_time(limit(self.traffic, sent), load * self.recorded / self.rate)
        times = self._times(load)
        if times == 1:
            return scale_time(self.traffic, load * self.recorded / self.rate)
        longer = repeat(self.traffic, times)
        return scale_time(longer, load * self.recorded / recorded_rate(longer))

    def seconds(self, load: float) -> float:
        """Duration of the schedule at a load."""
        return (self.sent(load) - 1) / (load * self.recorded)

    def requests(self, load: float) -> int:
        """Number of requests of the whole schedule at a load."""
        return self._times(load) * len(self.traffic)

    def arrivals(self, load: float) -> Floats:
        """Arrival times at a load, in nanoseconds."""
        recorded, times = self.traffic.arrival_ns, self._times(load)
        span = float(recorded[-1] - recorded[0]) * len(recorded) / max(len(recorded) - 1, 1)
        copies = np.repeat(np.arange(times), len(recorded)) * span
        slower = self.rate / (load * self.recorded)
        return np.asarray((np.tile(recorded - recorded[0], times) + copies) * slower, dtype=np.float64)

    def sent(self, load: float) -> int:
        """How many of them are replayed; only the first ones if all would take too long, but not of one moment."""
        at_once = int(np.searchsorted(self.traffic.arrival_ns, self.traffic.arrival_ns[0], side="right"))
        fitting = max(self.longest_s * load * self.recorded, float(_FEWEST), at_once + 1.0)
        return math.ceil(min(float(self.requests(load)), fitting))

    def _times(self, load: float) -> int:
        wanted = math.ceil(self.shortest_s * load * self.recorded / len(self.traffic))
        fitting = int(MAX_SECONDS * self.rate / len(self.traffic))  # repeated at the recorded pace, then scaled
        return max(1, min(wanted, _MOST_REPEATED // len(self.traffic), fitting))


def recorded_rate(traffic: Traffic) -> float:
    """Requests per second over the recorded traffic.

    :raises InputError: all requests arrive at one moment.
    """
    span = float(traffic.arrival_ns[-1] - traffic.arrival_ns[0]) / 1e9 if len(traffic) > 1 else 0.0
    if span <= 0:
        raise InputError(
            f"traffic: found {counted(len(traffic), 'request')} that arrive at one moment; expected several at "
            "different times"
        )
    return (len(traffic) - 1) / span


def plan_requests(
    rate: float, loads: Sequence[float], settings: int, budget_s: float, target: LatencyObjective
) -> int:
    """Requests per point, so that the first round takes about half of the budget.

    At least as many as the percentile needs, unless one point at the recorded rate then took over 15 % of the
    budget. At most twice as many, unless a point at a high recorded rate would be too short.

    :param rate: recorded requests per second.
    :raises InputError: arrivals are so dense that a point would need more requests than can be replayed.
    """
    pace = sum(1.0 / (load * rate) for load in loads) * settings
    overhead = settings * (len(loads) * POINT_OVERHEAD_S + _LOAD_S)
    fitting = max(_GRID_SHARE * budget_s - overhead, 0.0) / pace
    share = max(target.allowed, 1e-6)
    most = max(_PLENTY * TAIL_REQUESTS / share, _SHORTEST_S * rate)
    least = min(TAIL_REQUESTS / share, _POINT_SHARE * budget_s * rate)
    wanted = max(math.ceil(min(max(fitting, least), most) - 1e-6), _FEWEST)
    if wanted > MAX_REQUESTS:
        raise InputError(
            f"traffic: found {rate:.3g} requests a second, too dense to sweep: the {wanted / rate:.3g} s of a "
            f"point would be {wanted:.3g} requests; expected at most {MAX_REQUESTS:,}; check the arrivals' unit, "
            "slow it down with latfix traffic convert --speed, or set --requests"
        )
    return wanted


def budget_for(requests: int, rate: float) -> float:
    """The least budget in seconds with which :func:`plan_requests` allows ``requests`` per point."""
    return requests / (_POINT_SHARE * rate)


def point_seconds(budget_s: float, settings: int) -> tuple[float, float]:
    """The least and the longest duration of a point."""
    return min(_SHORTEST_S, _SHORTEST_SHARE * budget_s), _LONGEST_SHARE * budget_s / settings


def part_of(traffic: Traffic, requests: int, *, shortest_s: float = 0.0, longest_s: float = math.inf) -> Part:
    """The stretch of ``requests`` requests most like the whole in rate and burstiness; repeated if it is short.

    :param shortest_s: see :class:`Part`, as ``longest_s``.
    :raises InputError: all requests arrive at one moment, or the traffic cannot be repeated that often.
    """
    rate = recorded_rate(traffic)
    n, times = len(traffic), 1
    if requests >= 1.5 * n:
        times = min(round(requests / n), MAX_REQUESTS // n)
        _check_repeated(traffic, times, rate)
        chosen = repeat(traffic, times)
    elif requests >= 0.9 * n:
        chosen = traffic
    else:
        chosen = _stretch(traffic, requests, rate)
    chosen = slice_time(chosen, float(chosen.arrival_ns[0]) / 1e9)
    length = float(chosen.arrival_ns[-1]) / 1e9
    window = max(length / _WINDOWS, 1e-9)
    own = recorded_rate(chosen)
    return Part(
        traffic=chosen,
        rate=own,
        recorded=rate,
        bursts=burstiness(traffic if len(traffic) > len(chosen) else chosen),
        dispersion=index_of_dispersion(chosen.arrival_ns, window),
        whole=index_of_dispersion(traffic.arrival_ns, window),
        repeated=times,
        shortest_s=shortest_s,
        longest_s=longest_s,
    )


def _check_repeated(traffic: Traffic, times: int, rate: float) -> None:
    lasting = float(traffic.arrival_ns[0]) / 1e9 + times * len(traffic) / rate
    if lasting > MAX_SECONDS:
        raise InputError(
            f"traffic: found {len(traffic):,} requests over {(len(traffic) - 1) / rate:.3g} s, too sparse to sweep: "
            f"repeated to a point's {times * len(traffic):,} requests they last {lasting:.3g} s; expected at most "
            f"{MAX_SECONDS:.0e} s; check the arrivals' unit, or shorten it with latfix traffic convert --to-duration"
        )


def burstiness(traffic: Traffic) -> Burstiness:
    """How the gaps between arrivals vary, and their counts in windows of one mean gap and more.

    Windows grow until fewer than fifteen fit, because a handful of counts says little.
    """
    gaps = np.diff(traffic.arrival_ns) / 1e9
    mean = float(gaps.mean())
    if mean <= 0:
        return Burstiness(gap_scv=1.0, windows=(), index=())
    windows = [10 ** (k / 4) for k in range(32) if 10 ** (k / 4) * _LEAST_WINDOWS <= len(gaps)]
    return Burstiness(
        gap_scv=float(gaps.var()) / mean**2,
        windows=tuple(windows),
        index=tuple(index_of_dispersion(traffic.arrival_ns, window * mean) for window in windows),
    )


def index_of_dispersion(arrival_ns: Ints, window_s: float) -> float:
    """Variance over mean of the counts in windows; 1 for independent arrivals. NaN for fewer than eight windows."""
    seconds = (arrival_ns - arrival_ns[0]) / 1e9
    windows = int(float(seconds[-1]) / window_s + 1e-9)
    return fano_factor(seconds, window_s, windows) if windows >= 8 else math.nan


def _stretch(traffic: Traffic, requests: int, rate: float) -> Traffic:
    arrival = traffic.arrival_ns
    span = arrival[requests - 1 :] - arrival[: len(arrival) - requests + 1]
    starts = np.unique(np.linspace(0, len(span) - 1, _CANDIDATES).astype(int))
    starts = starts[span[starts] > 0]
    if not len(starts):
        return traffic
    window = requests / rate / _WINDOWS
    whole = index_of_dispersion(arrival, window)

    def unlike(start: int) -> float:
        own = (requests - 1) / (float(span[start]) / 1e9)
        dispersion = index_of_dispersion(arrival[start : start + requests], window)
        known = math.isfinite(dispersion) and math.isfinite(whole) and min(dispersion, whole) > 0
        return abs(math.log(own / rate)) + (abs(math.log(dispersion / whole)) if known else 0.0)

    start = min(starts.tolist(), key=unlike)
    end = float(arrival[start + requests - 1]) / 1e9 + 1e-9
    return slice_time(traffic, float(arrival[start]) / 1e9, end)
