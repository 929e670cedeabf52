"""A service on simulated time: traffic, replays of it as records, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.records import build_record

MakeTraffic = Callable[..., Traffic]
Simulate = Callable[..., RunRecord]


def make_traffic(n: int = 400, rate: float = 50.0, *, seed: int = 0, bursts: float = 1.0) -> Traffic:
    """Independent arrivals; with ``bursts`` above 1, so many times the rate in every fourth second, less else."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0 / rate, size=n)
    if bursts > 1:
        calm = (4 - bursts) / 3
        when = np.cumsum(gaps)
        gaps = gaps / np.where(when % 4 < 1, bursts, calm)
    arrival = np.cumsum(gaps)
    arrival_ns = np.rint((arrival - arrival[0]) * 1e9).astype(np.int64)
    return Traffic.plain(arrival_ns, features={"value": np.arange(n)}, metadata={"source": "simulated"})


def simulate(
    traffic: Traffic,
    *,
    fixed: float = 0.0,
    each: float = 0.01,
    noise: float = 0.0,
    settings: RunnerSettings | None = None,
    seed: int = 0,
    prepare: float = 1e-4,
    lost: float = 0.0,
    cut_s: float | None = None,
    folder: Path | None = None,
) -> RunRecord:
    """The runner's policy, one batch after the other, as it would be recorded.

    :param fixed: seconds of a batch, and ``each`` of each of its members; ``noise``: gamma, SCV.
    :param lost: share of requests that end in error.
    :param cut_s: when the replay is ended early; requests that have not ended then have no row.
    """
    settings = settings or RunnerSettings()
    rng = np.random.default_rng(seed)
    n, most, window = len(traffic), settings.max_batch_size, settings.batch_window_ms / 1e3
    arrival = traffic.arrival_ns / 1e9
    ready = (arrival + prepare).tolist()
    free = [0.0] * settings.workers
    batches: list[tuple[int, int, float, float, float, float]] = []
    i = 0
    while i < n:
        worker = free.index(min(free))
        begin = max(ready[i], free[worker])
        j = i + 1
        while j < n and j - i < most and ready[j] <= begin:
            j += 1
        close = begin
        if window > 0 and j - i < most and ready[i] + window > begin:
            due = ready[i] + window
            while j < n and j - i < most and ready[j] <= due:
                j += 1
            close = ready[j - 1] if j - i == most else due
        took = fixed + each * (j - i)
        end = close + (took * rng.gamma(1 / noise, noise) if noise > 0 else took)
        batches.append((worker, j - i, free[worker], begin, close, end))
        free[worker] = end
        i = j
    table = np.array(batches).reshape(-1, 6)
    batch_of = np.repeat(np.arange(len(table)), table[:, 1].astype(np.int64))
    opened, closed, ended = table[batch_of, 3:].T
    sent = n if cut_s is None else int(np.searchsorted(arrival, cut_s, side="right"))
    keep = np.flatnonzero((np.arange(n) < sent) & (ended <= (np.inf if cut_s is None else cut_s)))
    failed = rng.random(n) < lost
    rows: dict[str, Any] = {name: np.zeros(len(keep), np.int64) for name in REQUEST_DTYPE.names or ()}
    taken = np.maximum(opened, ready)

    def ns(seconds: Any) -> Any:
        return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)

    rows["index"], rows["arrival_ns"] = keep, traffic.arrival_ns[keep]
    rows["prepare_ns"] = ns(np.full(len(keep), prepare))
    rows["queue_ns"] = (ns(taken) - ns(ready))[keep]
    rows["batch_ns"] = (ns(closed) - ns(taken))[keep]
    rows["compute_ns"] = (ns(ended) - ns(closed))[keep]
    for stage in ("prepare", "queue", "batch", "compute"):
        rows["latency_ns"] = rows["latency_ns"] + rows[f"{stage}_ns"]
    rows["status"] = np.where(failed[keep], Status.ERROR, Status.OK).astype(np.int64)
    rows["batch_id"] = batch_of[keep]
    shown = table[table[:, 5] <= (np.inf if cut_s is None else cut_s)]
    columns: dict[str, Any] = {name: np.zeros(len(shown), np.int64) for name in BATCH_DTYPE.names or ()}
    columns["batch_id"] = np.arange(len(shown))
    columns["worker"], columns["size"] = shown[:, 0].astype(np.int64), shown[:, 1].astype(np.int64)
    columns["free_ns"], columns["open_ns"], columns["close_ns"] = ns(shown[:, 2]), ns(shown[:, 3]), ns(shown[:, 4])
    for name in ("collated_ns", "h2d_end_ns"):
        columns[name] = columns["close_ns"]
    for name in ("compute_end_ns", "d2h_end_ns", "finish_end_ns"):
        columns[name] = ns(shown[:, 5])
    columns["real_elements"] = columns["padded_elements"] = columns["size"]
    return build_record(
        folder=folder or Path("run"),
        state="complete" if cut_s is None else "interrupted",
        workload="simulated",
        settings=settings,
        scheduled=n,
        sent=sent,
        machine={"cores": 2},
        versions={"latfix": "0"},
        requests=rows,
        batches=columns,
        traffic=traffic,
        errors={int(k): "it failed" for k in keep[failed[keep]]},
        partial=cut_s is not None,
    )


@pytest.fixture(scope="session", name="make_traffic")
def _make_traffic() -> MakeTraffic:
    return make_traffic


@pytest.fixture(scope="session", name="simulate")
def _simulate() -> Simulate:
    return simulate
