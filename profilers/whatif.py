"""What percentiles would be with causes removed, predicted from the ledger."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from latfix.diagnosis import Ledger
from latfix.statistics import percentile_ns


def without(ledger: Ledger, causes: Collection[str]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds, had the requests not met these causes.

    What a cause owns of a request, on its own path and through the queue, is taken off its latency. Because
    blame is additive this is the first-order answer; a queue that is rid of a cause may gain a little more or
    less than its share of a joint wait.
    """
    rows = [k for k, cause in enumerate(ledger.causes) if cause in causes]
    latency = ledger.latency_ns - (ledger.own_ns[rows] + ledger.propagated_ns[rows]).sum(axis=0)
    if not len(latency):
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    latency = np.maximum(latency, 0)
    return {f"p{q}": percentile_ns(latency, q) / 1e6 for q in (50, 95, 99)}
