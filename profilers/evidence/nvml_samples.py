"""What NVML said about a GPU while each batch computed there: one or two readings a second, between them a line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.evidence.units import Evidence

#: A reading that lies farther from a batch says nothing about it.
_FARTHEST_NS = 1_500_000_000


def series_of(series: str, number: int) -> str:
    """A series of one of several devices: that of the first as it is, ``nvml.2.sm_clock_mhz`` of another.

    :param number: of the device, as in ``cuda:2``; -1 for the first worker's.
    """
    kind, _, name = series.partition(".")
    return series if number < 0 else f"{kind}.{number}.{name}"


def at_batches(evidence: Evidence, series: str) -> Floats | None:
    """A sampled series of its device at the middle of each batch's compute, ``(m,)``; NaN where no reading is near.

    :param series: as of the first device.
    :returns: ``None`` where the run did not compute on a device, or the series was read of none.
    """
    if not evidence.setup.on_device:
        return None
    numbers = evidence.setup.device_numbers(evidence.batches["worker"])
    found, read = np.full(len(numbers), np.nan), False
    unit = evidence.units["compute"]
    middle = (unit.start + unit.end) // 2
    for number in np.unique(numbers).tolist() or [-1]:
        times, values = evidence.series(series_of(series, number))
        if len(times):
            here, read = numbers == number, True
            found[here] = _between(times, values, middle[here])
    return found if read else None


def share_since(evidence: Evidence, names: Sequence[str]) -> Floats | None:
    """Of the time between two polls, what the largest of some counters of nanoseconds grew by, ``(m,)`` by batch.

    At each batch by the poll that came after it, which counts what happened since the one before.

    :param names: of series as of the first device, each what a counter grew by since the poll before.
    :returns: ``None`` where the run did not compute on a device, or none was read.
    """
    if not evidence.setup.on_device:
        return None
    numbers = evidence.setup.device_numbers(evidence.batches["worker"])
    unit = evidence.units["compute"]
    middle = (unit.start + unit.end) // 2
    found, read = np.zeros(len(numbers)), False
    for number in np.unique(numbers).tolist() or [-1]:
        here = numbers == number
        for name in names:
            times, grown = evidence.series(series_of(name, number))
            if len(times) > 1:
                read = True
                share = np.clip(grown[1:] / np.maximum(np.diff(times), 1), 0.0, 1.0)
                after = np.searchsorted(times, middle[here])
                inside = (after > 0) & (after < len(times))
                held = np.where(inside, share[np.clip(after - 1, 0, len(share) - 1)], 0.0)
                found[here] = np.maximum(found[here], held)
    return found if read else None


def _between(times: Ints, values: Floats, middle: Ints) -> Floats:
    """A series at other times, along the line between readings; NaN where none is near."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    after = np.minimum(np.searchsorted(times, middle), len(times) - 1)
    before = np.maximum(after - 1, 0)
    near = np.minimum(np.abs(times[after] - middle), np.abs(times[before] - middle)) <= _FARTHEST_NS
    return np.where(near, np.interp(middle.astype(np.float64), times.astype(np.float64), values), np.nan)
