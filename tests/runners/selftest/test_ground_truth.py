"""The ground truth: the cost of logged faults for each request, in small queues with known answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.runners.selftest.faults.fault_log import Fault
from latfix.runners.selftest.fixed_queue import fixed_queue
from latfix.runners.selftest.ground_truth import STEPS, Truth, find_truth
from tests.runners.selftest.conftest import T0, simulate

MS = 1_000_000


def _truth(run: Any, faults: list[Fault] | None = None) -> Truth:
    return find_truth(run.record, run.faults if faults is None else faults, 99, least_ns=MS)


def _part(truth: Truth, cause: str) -> tuple[list[float], list[float]]:
    k = truth.causes.index(cause)
    return (truth.own[k] / MS).tolist(), (truth.propagated[k] / MS).tolist()


def test_the_recorded_waits_are_reproduced() -> None:
    rng = np.random.default_rng(3)
    run = simulate(np.cumsum(rng.exponential(6, 200)).tolist(), model_faults={20: ("a", 40), 90: ("b", 25)})
    rows = run.record.requests
    queue = fixed_queue(run.record)
    nothing = np.zeros(len(queue.rows), np.int64)
    waits = queue.waits(nothing, nothing, np.zeros_like(queue.service))
    assert (waits == rows["prepare_wait_ns"] + rows["queue_ns"] + rows["batch_ns"]).all()
    assert waits.max() > 30 * MS


def test_a_fault_in_the_model_delays_requests_behind_it() -> None:
    run = simulate([0, 10, 12, 100], model_faults={1: ("python.gc", 20)})
    own, propagated = _part(_truth(run), "python.gc")
    assert own == [0, 20, 0, 0]
    # Request 2 is prepared at 13 and would wait until 15; with the fault the worker is free at 35.
    assert propagated == [0, 0, 20, 0]


def test_idle_time_absorbs_a_part_of_the_fault() -> None:
    run = simulate([0, 10, 20], model_faults={1: ("python.gc", 20)})
    _, propagated = _part(_truth(run), "python.gc")
    assert propagated[2] == pytest.approx(35 - 21)


def test_a_fault_in_prepare_delays_the_next_prepare() -> None:
    run = simulate([0, 10, 11], prepare_faults={1: ("external.dependency", 30)})
    own, propagated = _part(_truth(run), "external.dependency")
    assert own == [0, 30, 0]
    assert propagated[2] == pytest.approx(30, abs=1e-3)  # waits in prepare instead of for the worker


def test_two_causes_share_a_wait_and_sum_to_it() -> None:
    run = simulate([0, 1, 2, 3, 4], model_faults={0: ("a", 10), 1: ("b", 30)})
    truth = _truth(run)
    a, b = _part(truth, "a")[1], _part(truth, "b")[1]
    rows = run.record.requests
    waited = rows["prepare_wait_ns"] + rows["queue_ns"]
    clean = simulate([0, 1, 2, 3, 4]).record.requests
    grown = waited - clean["prepare_wait_ns"] - clean["queue_ns"]
    assert [x + y for x, y in zip(a, b, strict=True)] == pytest.approx((grown / MS).tolist(), abs=1e-9)
    assert a[1:] == pytest.approx([10] * 4) and b[2:] == pytest.approx([30] * 3) and b[1] == 0


def test_sharing_does_not_depend_on_the_causes_order() -> None:
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(7, 150)).tolist()
    strikes = {k: ("a" if k % 2 else "b", 25.0) for k in range(10, 150, 12)}
    strikes |= {k: ("b" if k % 2 else "a", 9.0) for k in range(15, 150, 13)}
    swapped = {k: ("b" if cause == "a" else "a", ms) for k, (cause, ms) in strikes.items()}
    first, second = (_truth(simulate(arrivals, model_faults=each)) for each in (strikes, swapped))
    assert _part(first, "a")[1] == pytest.approx(_part(second, "b")[1], abs=25 / STEPS)


def test_a_batch_pays_once_and_every_member_does() -> None:
    run = simulate([0, 0.1, 0.2, 40], batches=[[0, 1, 2], [3]], model_faults={1: ("memory.page_faults", 15)})
    own, _ = _part(_truth(run), "memory.page_faults")
    assert own == [15, 15, 15, 0]


def test_a_fault_in_finish_costs_those_finished_after_it() -> None:
    run = simulate([0, 0.1, 0.2, 1], batches=[[0, 1, 2], [3]], finish_faults={1: ("external.dependency", 8)})
    own, propagated = _part(_truth(run), "external.dependency")
    assert own == [0, 8, 8, 0]
    assert propagated == pytest.approx([0, 0, 0, 8])


def test_warm_up_and_small_faults_do_not_count() -> None:
    run = simulate([0, 50, 100], model_faults={1: ("python.gc", 20), 2: ("python.gc", 0.4)})
    early = replace(run.faults[0], start_ns=run.faults[0].start_ns - 1000 * MS)
    truth = _truth(run, [early, *run.faults])
    assert truth.faults == {"python.gc": 2} and truth.kept == {"python.gc": 1}
    assert _part(truth, "python.gc")[0] == [0, 20, 0.4]


def test_a_collection_holds_up_other_threads() -> None:
    """It overlaps 3 of the 4 ms of request 1's model, and request 2 arrives 1.5 ms before its end."""
    run = simulate([0, 20, 23.5])
    rows = run.record.requests
    start = T0 + 22 * MS
    rows["dispatch_ns"][2] += MS
    fault = Fault(
        cause="python.gc", kind="gc", where="prepare", request="", start_ns=start, end_ns=start + 3 * MS, ns=3 * MS
    )
    truth = _truth(run, [fault])
    own, _ = _part(truth, "python.gc")
    operator = fixed_queue(run.record).operator_ns / MS
    assert operator > 0
    assert own == pytest.approx([0, 3 - operator, 1.5], abs=1e-6)


def test_the_natural_wait_is_that_of_arrivals_alone() -> None:
    calm = simulate([0, 1, 2, 60, 120, 180])
    struck = simulate([0, 1, 2, 60, 120, 180], model_faults={0: ("a", 50)})
    truth = _truth(struck)
    rows = calm.record.requests
    assert (truth.natural == rows["prepare_wait_ns"] + rows["queue_ns"]).all()
    assert truth.natural[2] > 0


def test_the_tail_is_that_of_the_run() -> None:
    run = simulate([k * 20.0 for k in range(100)], model_faults={50: ("python.gc", 12)})
    truth = _truth(run)
    assert truth.tail.sum() == 1 and truth.tail_ms("python.gc") == pytest.approx(12)
    assert truth.tail_ms("host.contention") == 0
    without = _truth(simulate([0, 10, 20]))
    assert without.causes == () and without.own.shape == (0, 3) and without.faults == {}


def test_an_earlier_request_does_not_wait_for_its_recorded_batch() -> None:
    # GIVEN a request with a fault in prepare, served in a batch with one that arrives during the fault
    run = simulate([0, 100, 135], batches=[[0], [1, 2]], prepare_faults={1: ("external.dependency", 40)})
    queue = fixed_queue(run.record)
    nothing, service = np.zeros(3, np.int64), np.zeros(2, np.int64)
    less = np.array([0, 40 * MS, 0])
    # WHEN the fault is removed, THEN the worker is idle when the request arrives
    assert replace(queue, most=2, workers=1, window=0).waits(nothing, less, service)[1] == 0
    assert replace(queue, most=2, workers=1, window=3 * MS).waits(nothing, less, service)[1] == 3 * MS
    # other requests are not affected, and with the fault the waits are as recorded
    assert (
        replace(queue, most=2).waits(nothing, nothing, service).tolist()
        == queue.waits(nothing, nothing, service).tolist()
    )


def test_an_earlier_request_takes_the_place_of_a_later_one() -> None:
    run = simulate([0, 10, 11, 12], batches=[[0], [2], [3], [1]], prepare_faults={1: ("external.dependency", 0.5)})
    queue = replace(fixed_queue(run.record), most=2, workers=1, window=0)
    rows = run.record.requests
    nothing, service = np.zeros(4, np.int64), np.zeros(4, np.int64)
    less = np.array([0, MS // 2, 0, 0])
    begun = rows["arrival_ns"] + rows["prepare_ns"] + rows["queue_ns"]
    sooner = queue.waits(nothing, less, service)[1] + rows["arrival_ns"][1] + rows["prepare_ns"][1] - MS // 2
    assert sooner < begun[1]


def test_without_its_fault_a_request_is_served_before_those_that_overtook_it() -> None:
    # GIVEN a request that sleeps in its prepare thread, while another thread prepares two later ones
    run = simulate([0, 10, 20], batches=[[1], [2], [0]], prepare_faults={0: ("external.dependency", 40)})
    at = np.array([0, 10, 20]) * MS
    prepare = np.array([41, 1, 1]) * MS
    queue = replace(
        fixed_queue(run.record), handed=at, prepare=prepare, enqueued=at + prepare, thread=np.array([0, 1, 1])
    )
    queue = replace(
        queue, most=1, prepare_hold=np.zeros(3, np.int64), hold=np.zeros(3, np.int64), first_come=True, workers=1
    )
    nothing, less = np.zeros(3, np.int64), np.array([40, 0, 0]) * MS
    # THEN nobody waits, neither as recorded nor without the sleep
    assert queue.waits(nothing, nothing, nothing).tolist() == [0, 0, 0]
    assert queue.waits(nothing, less, nothing).tolist() == [0, 0, 0]
    # unless the queue has an order of its own
    assert replace(queue, first_come=False).waits(nothing, less, nothing)[0] > 20 * MS
