"""What chance alone makes requests wait: memoryless arrivals at the run's own rate and reference service.

A service at a third of its capacity still queues now and then, because independent callers sometimes arrive
together. That is what an unperturbed run shows, and no burst.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from latfix.profilers.attribution.wait_attribution import Line, capacity, waits_at

#: From this share of capacity on, waiting is what the load does, and is to be named whatever the arrivals' law.
BUSY = 0.6
_RUNS = 40
_MOST_REQUESTS = 4_000
_UPPER = 0.975


def chance_wait_ns(line: Line, percentile: float, *, arrivals: int, span_ns: float, seed: int) -> float:
    """The mean wait of the requests at or above a percentile, under memoryless arrivals of the run's rate.

    :param arrivals: of the run, over ``span_ns`` from the first to the last.
    :returns: nanoseconds: what 39 of 40 such runs stay below. Zero where the run is busier than :data:`BUSY`.
    """
    load = (arrivals - 1) / span_ns / capacity(line) if arrivals > 1 and span_ns > 0 else 0.0
    if not 0 < load < BUSY:
        return 0.0
    n = min(arrivals, _MOST_REQUESTS)
    gap = span_ns / (arrivals - 1)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(_RUNS):
        wait = _waits(line, np.cumsum(rng.exponential(gap, n)))
        slowest = np.sort(wait)[int(np.ceil((n - 1) * percentile / 100 - 1e-9)) :]
        means.append(float(slowest.mean()))
    return float(np.quantile(means, _UPPER))


def _waits(line: Line, handed: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    n = len(handed)
    calm = replace(
        line,
        handed=handed,
        prepared=np.ones(n, dtype=bool),
        queued=np.ones(n, dtype=bool),
        priority=np.zeros(n, np.int64),
        prepare_extra=np.zeros((n, 0)),
        batch_extra=np.zeros((n, 0)),
        window_column=-1,
        ended=None,
        length=None,
        workers=replace(line.workers, window=0.0, by_length=False),
        recorded=None,
    )
    return np.asarray(waits_at(calm, np.zeros((1, 0)))[0], dtype=np.float64)
