"""How late the replay itself was, and whether its latencies mean anything.

Late is what the replayer handed over late. What a service took to take up what had arrived is its own doing, and in
its latency: a runner's interpreter that was held, a core that it did not get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from latfix.run_record.run_record import RunRecord

_LATE_MS, _LATE_SHARE = 1.0, 0.1


def is_late(lag_ms: float, median_ms: float) -> bool:
    """True if a replay's lag spoils its latencies: at p99 above 1 ms and above a tenth of the median latency.

    The one rule, for ``diagnose``, ``compare``, ``optimize``, sweeps and gates.
    """
    return lag_ms > max(_LATE_MS, _LATE_SHARE * median_ms)


def lag_p99_ms(record: RunRecord) -> float:
    """From scheduled arrival to handing over, at p99 of the measured requests; 0 where nothing was recorded."""
    lag = record.requests["dispatch_ns"][record.measured]
    return float(np.quantile(lag, 0.99)) / 1e6 if len(lag) else 0.0


def is_on_time(record: RunRecord) -> bool:
    """Whether a run's latencies mean anything; see :func:`is_late`."""
    latency = record.latencies_ns()
    return not is_late(lag_p99_ms(record), float(np.median(latency)) / 1e6 if len(latency) else 0.0)
