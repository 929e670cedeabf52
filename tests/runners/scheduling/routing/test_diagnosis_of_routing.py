"""The diagnosis of a service that routes by weight: sums stay exact, and a wait for a better replica is not
attributed to a worker's lag or a timer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scheduling.simulated_routing import Routed, SimulatedRouting
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.units import gather
from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedBatch
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings
from tests.records import worker_rows
from tests.runners.scheduling.simulated_runs import offer, recorded
from tests.runners.scheduling.test_diagnosis_of_policies import MS, PAUSE, mixed_lengths


def _as_simulated(run: Routed) -> Simulated:
    taken = np.full(len(run.arrival_ns), -1, np.int64)
    result = Simulated(run.arrival_ns, taken, run.end_ns)
    for batch in run.batches:
        members, formed = list(batch.members), batch.formed
        taken[members] = np.maximum(run.arrival_ns[members], formed.open_ns)
        result.batches.append(
            SimulatedBatch(
                **{name: getattr(batch, name) for name in ("members", "worker", "free_ns", "end_ns")},
                **{name: getattr(formed, name) for name in ("open_ns", "close_ns", "full", "left")},
            )
        )
    return result


@functools.cache
def routed(slower: float, most: int = 1, window_ms: int = 0) -> RunRecord:
    """A run of two workers, the second of which takes ``slower`` times as long; one request in sixty pauses."""
    traffic = offer((10.0, 110.0), lengths=mixed_lengths, seed=4)
    order = {id(one): slot for slot, one in enumerate(traffic)}
    rng = np.random.default_rng(5)
    pauses = {int(slot): PAUSE for slot in rng.choice(len(traffic), len(traffic) // 60, replace=False)}

    def service(worker: int, members: Sequence[Offered], _now: int) -> int:
        longest = max(one.length for one in members)
        work = (3.0 + 0.5 * len(members) + 0.01 * len(members) * longest) * MS
        return int(work * (slower if worker else 1.0)) + sum(pauses.get(order[id(one)], 0) for one in members)

    sim = SimulatedRouting(workers=2, service=service, weighted=True, max_batch_size=most, window_ns=window_ms * MS)
    run = sim.run(traffic)
    settings = RunnerSettings(workers=2, routing="weighted", max_batch_size=most, batch_window_ms=float(window_ms))
    return recorded(traffic, _as_simulated(run), settings, pauses=pauses, worker_devices=["cpu", "cpu"])


@pytest.mark.parametrize(("slower", "most", "window_ms"), [(1.0, 1, 0), (3.0, 1, 0), (3.0, 4, 8)])
def test_exact_sums_and_named_pauses(slower: float, most: int, window_ms: int) -> None:
    record = routed(slower, most, window_ms)
    seen = gather(record)
    assert seen.setup.recorded
    pulled = replace(record.meta, settings=replace(record.meta.settings, routing="pull"))
    assert not gather(replace(record, meta=pulled)).setup.recorded, "pulling is replayed as a policy"
    assert seen.units["lag"].wall.max() == 0 or window_ms, "only the router kept a worker from taking a request"
    found = diagnose(record, bootstrap=20)
    assert found.ledger.conservation_error_ns() == 0
    share = {cause.cause: cause.tail_share for cause in found.causes}
    assert abs(share.get("unexplained", 0.0)) < 0.25
    assert share["host.contention"] > 0.2, "the rest is the slow worker's longer time"
    own = {cause.cause: cause.own_ms for cause in found.causes}
    assert own.get("batching.window", 0.0) < window_ms + 1.0
    assert [row.worker for row in found.workers] == [0, 1]
    assert sum(row.requests for row in found.workers) == len(record.requests["index"])


def test_shares_of_the_tail_are_by_serving_worker() -> None:
    record = routed(3.0)
    rows = worker_rows(record, 99.0)
    latency = record.requests["latency_ns"]
    late = latency >= np.sort(latency)[int(np.ceil(0.99 * len(latency))) - 1]
    worker = record.batches["worker"][record.requests["batch_id"]]
    assert [row.tail_requests for row in rows] == [int((late & (worker == k)).sum()) for k in range(2)]
    assert sum(row.tail_share for row in rows) == pytest.approx(1.0)
    assert rows[1].compute_p50_ms == pytest.approx(3 * rows[0].compute_p50_ms, rel=0.3)
    held = record.batches["finish_end_ns"] - record.batches["close_ns"]
    span = record.batches["finish_end_ns"].max() - record.batches["close_ns"].min()
    for k in range(2):
        assert rows[k].busy_share == pytest.approx(held[record.batches["worker"] == k].sum() / span)
