"""How late the replay itself was, and if its latencies can be trusted.

Only the replayer's delay in handing requests over is lag. A service that is slow to accept what has arrived (its
interpreter was held, it did not get a core) causes that delay itself, and it is part of the latency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from latfix.run_record.run_record import RunRecord

_LATE_MS, _LATE_SHARE = 1.0, 0.1


def is_late(lag_ms: float, median_ms: float) -> bool:
    """True if a replay's lag spoils its latencies: at p99 above 1 ms and above a tenth of the median latency.

    The only such rule, for ``diagnose``, ``compare``, ``optimize``, sweeps and gates.
    """
    return lag_ms > max(_LATE_MS, _LATE_SHARE * median_ms)


def lag_p99_ms(record: RunRecord) -> float:
    """The p99 from scheduled arrival to handing over, over measured requests; 0 if none was recorded."""
    lag = record.requests["dispatch_ns"][record.measured]
    return float(np.quantile(lag, 0.99)) / 1e6 if len(lag) else 0.0


def is_on_time(record: RunRecord) -> bool:
    """True if a run's latencies can be trusted; see :func:`is_late`."""
    latency = record.latencies_ns()
    return not is_late(lag_p99_ms(record), float(np.median(latency)) / 1e6 if len(latency) else 0.0)
