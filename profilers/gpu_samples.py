"""What NVML said about a GPU while each batch computed there: one or two readings a second, between them a line."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from latfix.profilers.evidence import Evidence

Floats = npt.NDArray[np.float64]
#: A reading that lies farther from a batch says nothing about it.
_FARTHEST_NS = 3_000_000_000


def at_batches(evidence: Evidence, series: str) -> Floats | None:
    """A sampled series at the middle of each batch's compute, ``(m,)``; NaN where no reading is near.

    :returns: ``None`` where the run did not compute on a device, or the series was not read.
    """
    if not evidence.setup.on_device:
        return None
    times, values = evidence.series(series)
    if not len(times):
        return None
    unit = evidence.units["compute"]
    middle = (unit.start + unit.end) // 2
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    after = np.minimum(np.searchsorted(times, middle), len(times) - 1)
    before = np.maximum(after - 1, 0)
    near = np.minimum(np.abs(times[after] - middle), np.abs(times[before] - middle)) <= _FARTHEST_NS
    found = np.interp(middle.astype(np.float64), times.astype(np.float64), values)
    return np.where(near, found, np.nan)
