"""NVML readings of a GPU at each batch: one or two readings per second, interpolated linearly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.units import Evidence
from latfix.run_record.schema import device_series

#: Readings farther from a batch than this do not count for it.
_FARTHEST_NS = 1_500_000_000
#: The driver's utilization by process is an average of about two seconds: a use shows for so long before or after.
_AVERAGED_NS = 3_000_000_000


def at_batches(evidence: Evidence, series: str) -> Floats | None:
    """``(m,)`` a sampled series of each batch's device at the middle of its compute; NaN without a reading nearby.

    :param series: name for the first device.
    :returns: ``None`` for a run on the CPU, or if the series was not read.
    """
    return _each_batch(evidence, series, _between)


def at_next_poll(evidence: Evidence, series: str) -> Floats | None:
    """``(m,)`` a series at the poll after each batch, of an average since the poll before; NaN without such polls.

    :returns: ``None`` for a run on the CPU, or if the series was not read.
    """

    def after(times: Ints, values: Floats, middle: Ints) -> Floats:
        place = np.searchsorted(times, middle)
        inside = (place > 0) & (place < len(times))
        return np.where(inside, values[np.minimum(place, len(times) - 1)], np.nan)

    return _each_batch(evidence, series, after)


def largest_nearby(evidence: Evidence, series: str) -> Floats:
    """``(m,)`` the largest value of a moving average that may contain each batch; 0 without one."""
    found = np.zeros(len(evidence.batches["worker"]))
    for number, here, middle in _by_device(evidence):
        times, values = evidence.series(device_series(series, number))
        first, end = (np.searchsorted(times, middle + by) for by in (-_AVERAGED_NS, _AVERAGED_NS))
        largest = np.zeros(len(middle))
        for k in range(int((end - first).max(initial=0))):
            within = first + k < end
            largest[within] = np.maximum(largest[within], values[(first + k)[within]])
        found[here] = largest
    return found


def share_since(evidence: Evidence, names: Sequence[str]) -> Floats | None:
    """``(m,)`` by batch, the growth of nanosecond counters as a share of the time between two polls.

    The largest of the counters, at the poll after the batch, which covers the time since the previous poll.

    :param names: names for the first device of series with a counter's growth since the previous poll.
    :returns: ``None`` for a run on the CPU, or if none was read.
    """
    if not evidence.setup.on_device:
        return None
    found, read = np.zeros(len(evidence.batches["worker"])), False
    for number, here, middle in _by_device(evidence):
        for name in names:
            times, grown = evidence.series(device_series(name, number))
            if len(times) > 1:
                read = True
                share = np.clip(grown[1:] / np.maximum(np.diff(times), 1), 0.0, 1.0)
                after = np.searchsorted(times, middle)
                inside = (after > 0) & (after < len(times))
                held = np.where(inside, share[np.clip(after - 1, 0, len(share) - 1)], 0.0)
                found[here] = np.maximum(found[here], held)
    return found if read else None


def _each_batch(evidence: Evidence, series: str, choose: Callable[[Ints, Floats, Ints], Floats]) -> Floats | None:
    """``(m,)`` what ``choose`` makes of each device's readings (times, values) and its batches' middles."""
    if not evidence.setup.on_device:
        return None
    found, read = np.full(len(evidence.batches["worker"]), np.nan), False
    for number, here, middle in _by_device(evidence):
        times, values = evidence.series(device_series(series, number))
        if len(times):
            read = True
            found[here] = choose(times, values, middle)
    return found if read else None


def _by_device(evidence: Evidence) -> Iterator[tuple[int, Bools, Ints]]:
    """Each device's number, the mask of its batches, and the middle of their compute."""
    numbers, unit = evidence.setup.device_numbers(evidence.batches["worker"]), evidence.units["compute"]
    for number in np.unique(numbers).tolist() or [-1]:
        here = numbers == number
        yield number, here, ((unit.start + unit.end) // 2)[here]


def _between(times: Ints, values: Floats, middle: Ints) -> Floats:
    """A series at other times, interpolated linearly; NaN without a reading nearby."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    after = np.minimum(np.searchsorted(times, middle), len(times) - 1)
    before = np.maximum(after - 1, 0)
    near = np.minimum(np.abs(times[after] - middle), np.abs(times[before] - middle)) <= _FARTHEST_NS
    return np.where(near, np.interp(middle.astype(np.float64), times.astype(np.float64), values), np.nan)
