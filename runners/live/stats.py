"""Figures of a live runner: counts since its start, and latencies of the latest requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.files.json_documents import plain
from latfix.stages import STAGES, Status
from latfix.statistics.censored import Outcomes
from latfix.statistics.latency_summary import percentile_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStats:
    """A live runner at one moment.

    :param uptime_s: since it was loaded.
    :param requests: number since then by outcome: ``ok``, ``error``, ``timeout``, ``shed``, ``cancelled``.
    :param in_flight: requests inside now, in any stage.
    :param queued: those of them that are prepared and wait for a worker.
    :param waiting: callers in line to enter.
    :param window: number of latest requests that the figures below cover.
    :param window_s: from the first arrival to the last end among them.
    :param throughput_rps: those that ended ``ok``, per second of the window.
    :param latency_ms: from the call to the end of ``finish``; keys are :data:`latfix.formatting.LATENCY_KEYS`.
        Percentiles cover all that arrived: infinite if one falls among lost requests. The mean covers those that
        ended ``ok``.
    :param stages_ms: mean, p50 and p99 of each stage.
    """

    uptime_s: float
    requests: Mapping[str, int]
    in_flight: int
    queued: int
    waiting: int
    window: int
    window_s: float
    throughput_rps: float
    latency_ms: Mapping[str, float]
    stages_ms: Mapping[str, Mapping[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(plain(asdict(self)))


def window_figures(rows: npt.NDArray[Any]) -> dict[str, Any]:
    """Fields of :class:`RunnerStats` from rows of :data:`latfix.run_record.schema.REQUEST_DTYPE`."""
    ok = rows[rows["status"] == Status.OK]
    ends = rows["arrival_ns"] + rows["latency_ns"]
    span_s = float(ends.max() - rows["arrival_ns"].min()) / 1e9 if len(rows) else 0.0
    return {
        "window": len(rows),
        "window_s": span_s,
        "throughput_rps": len(ok) / span_s if span_s > 0 else 0.0,
        "latency_ms": Outcomes.of(rows["latency_ns"], rows["status"]).summary_ms(),
        "stages_ms": {stage: _stage(ok[f"{stage}_ns"]) for stage in STAGES},
    }


def _stage(values: npt.NDArray[np.int64]) -> dict[str, float]:
    mean = float(values.mean()) / 1e6 if len(values) else 0.0
    return {"mean": mean, "p50": percentile_ns(values, 50) / 1e6, "p99": percentile_ns(values, 99) / 1e6}
