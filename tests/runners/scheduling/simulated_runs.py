"""Traffic and runs on simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.queueing.queue_simulator import Offered, Simulated
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE, Columns
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.profilers.samples import values_in_order
from tests.records import build_record, zeros

MS = 1_000_000


def offer(
    *rates: tuple[float, float],
    seed: int = 0,
    ranks: Sequence[float] = (),
    lengths: Callable[[np.random.Generator, int], npt.NDArray[np.int64]] | None = None,
    deadline_ms: float = 0.0,
) -> list[Offered]:
    """Requests with exponential gaps; ``rates`` are consecutive pairs of seconds and requests per second."""
    rng = np.random.default_rng(seed)
    arrivals, start = [], 0.0
    for seconds, rate in rates:
        gaps = rng.exponential(1 / rate, int(seconds * rate * 1.5) + 20).cumsum()
        arrivals += [start + at for at in gaps[gaps < seconds]]
        start += seconds
    n = len(arrivals)
    classes = rng.choice(len(ranks), n, p=list(ranks)) if ranks else np.ones(n, np.int64)
    sizes = lengths(rng, n) if lengths is not None else np.ones(n, np.int64)
    return [
        Offered(
            arrival_ns=int(at * 1e9),
            rank=int(rank),
            length=int(length),
            expires_ns=int(at * 1e9 + deadline_ms * MS) if deadline_ms else 0,
        )
        for at, rank, length in zip(arrivals, classes, sizes, strict=True)
    ]


PREPARE_NS = 100_000


def recorded(
    traffic: Sequence[Offered],
    run: Simulated,
    settings: RunnerSettings,
    *,
    pauses: Mapping[int, int] | None = None,
    series: Mapping[str, Sequence[float]] | None = None,
    **meta: Any,
) -> RunRecord:
    """The record of a simulated run, as the service's recorder would write it.

    :param pauses: by request, run-queue delay in nanoseconds that its batch's service time includes.
    """
    n, m = len(traffic), len(run.batches)
    rows: Columns = zeros(REQUEST_DTYPE, n)
    table: Columns = zeros(BATCH_DTYPE, m)
    rows["index"], rows["batch_id"] = np.arange(n), np.full(n, -1)
    rows["arrival_ns"] = np.array([one.arrival_ns for one in traffic], dtype=np.int64) - PREPARE_NS
    rows["prepare_ns"] = rows["prepare_cpu_ns"] = np.full(n, PREPARE_NS)
    rows["input_elements"] = rows["bucket_length"] = np.array([one.length for one in traffic], dtype=np.int64)
    rows["status"] = np.full(n, int(Status.SHED))
    for b, batch in enumerate(run.batches):
        members = list(batch.members)
        arrived = run.arrival_ns[members]
        paused = sum((pauses or {}).get(slot, 0) for slot in members)
        rows["batch_id"][members] = b
        rows["status"][members] = int(Status.OK)
        rows["queue_ns"][members] = np.maximum(batch.open_ns - arrived, 0)
        rows["batch_ns"][members] = batch.close_ns - np.maximum(batch.open_ns, arrived)
        rows["compute_ns"][members] = batch.end_ns - batch.close_ns
        late = [slot for slot in members if 0 < traffic[slot].expires_ns < batch.end_ns]
        rows["status"][late] = int(Status.TIMEOUT)
        table["batch_id"][b], table["worker"][b], table["size"][b] = b, batch.worker, len(members)
        table["free_ns"][b], table["open_ns"][b], table["close_ns"][b] = (
            batch.free_ns,
            batch.open_ns,
            batch.close_ns,
        )
        table["collated_ns"][b] = table["h2d_end_ns"][b] = batch.close_ns
        table["compute_end_ns"][b] = table["d2h_end_ns"][b] = table["finish_end_ns"][b] = batch.end_ns
        table["compute_runq_ns"][b] = paused
        table["compute_cpu_ns"][b] = batch.end_ns - batch.close_ns - paused
        sizes = rows["input_elements"][members]
        table["real_elements"][b], table["padded_elements"][b] = sizes.sum(), len(members) * sizes.max()
        table["padded_length"][b] = sizes.max()
    table["process_cpu_ns"] = table["compute_cpu_ns"].copy()
    rows["latency_ns"] = rows["prepare_ns"] + rows["queue_ns"] + rows["batch_ns"] + rows["compute_ns"]
    expires = np.array([one.expires_ns for one in traffic], dtype=np.float64)
    deadline = np.where(expires > 0, (expires - rows["arrival_ns"]) / MS, np.nan)
    return build_record(
        workload="simulated",
        state="complete",
        scheduled=n,
        torch_threads=1,
        settings=settings,
        calibration={"minor_fault_ns": 500.0},
        threads={"worker": [9000 + w for w in range(settings.workers)], "prepare": [9100]},
        **meta,
        requests=rows,
        batches=table,
        samples=values_in_order(series or {}),
        traffic=Traffic(
            arrival_ns=rows["arrival_ns"].copy(),
            ids=[f"r{k}" for k in range(n)],
            priority=np.array([one.rank for one in traffic], dtype=np.int8),
            sessions=[None] * n,
            deadline_ms=deadline,
            payloads=[None] * n,
        ),
    )
