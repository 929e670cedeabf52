"""The latency that imported requests had where they were recorded, to hold a replay against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def recorded_summary_ms(recorded_ms: npt.ArrayLike | None) -> dict[str, float]:
    """Percentiles of recorded latencies, NaN where one is not known; empty where none is."""
    if recorded_ms is None:
        return {}
    known = np.asarray(recorded_ms)
    if known.dtype.kind not in "fiu":  # a feature of that name that somebody made of texts
        return {}
    known = known[np.isfinite(known)]
    return {key: float(np.percentile(known, q)) for key, q in PERCENTILES.items()} if len(known) else {}
