"""How late the replay itself was, and whether its latencies mean anything.

Late is what the replayer handed over late. What a service took to take up what had arrived is its own doing, and in
its latency: a runner's interpreter that was held, a core that it did not get.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from latfix.stages import Status

if TYPE_CHECKING:
    from latfix.run_record.run_record import RunRecord

_LATE_MS, _LATE_SHARE = 1.0, 0.1


def is_late(lag_p99_ms: float, median_ms: float) -> bool:
    """True if a replay's lag spoils its latencies: at p99 above 1 ms and above a tenth of the median latency.

    The one rule, for ``diagnose``, ``compare``, ``optimize``, sweeps and gates.
    """
    return lag_p99_ms > max(_LATE_MS, _LATE_SHARE * median_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLag:
    """Scheduled arrival to handing over, over the measured requests, in milliseconds.

    :param trustworthy: see :func:`is_late`.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    trustworthy: bool


def dispatch_lag(record: RunRecord) -> DispatchLag:
    """The replay's own lag in a run; zero where nothing was recorded."""
    measured = record.measured
    lag = record.requests["dispatch_ns"][measured] / 1e6
    if not len(lag):
        return DispatchLag(p50_ms=0.0, p99_ms=0.0, max_ms=0.0, trustworthy=True)
    ok = record.requests["status"][measured] == Status.OK
    latency = record.requests["latency_ns"][measured][ok] / 1e6
    typical = float(np.median(latency)) if len(latency) else 0.0
    p99 = float(np.quantile(lag, 0.99))
    return DispatchLag(
        p50_ms=float(np.median(lag)),
        p99_ms=p99,
        max_ms=float(lag.max()),
        trustworthy=not is_late(p99, typical),
    )
