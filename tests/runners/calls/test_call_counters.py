"""What stands in for a model's operators is counted where it runs."""

from __future__ import annotations

import threading

import pytest

from latfix.runners.calls.call_counters import Calls, Tally, summary


def test_each_thread_counts_its_own_runs() -> None:
    tally = Tally()
    double = tally.counting(lambda x: 2 * x)
    assert double(4) == 8
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend((tally.runs, double(1), tally.runs)))
    thread.start()
    thread.join()
    assert seen == [0, 2, 1]
    assert tally.runs == 1 and tally.ns > 0


def test_a_run_that_raises_is_a_run() -> None:
    tally = Tally()

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        tally.counting(fails)()
    assert tally.runs == 1


def test_a_batch_that_ran_nothing_else_is_not_counted_as_replaced() -> None:
    tally = Tally()
    graph = tally.counting(lambda: sum(range(20_000)))
    calls = Calls(tally=tally)
    for runs_graph in (True, False, True):
        before = calls.begin()
        if runs_graph:
            graph()
            graph()
        calls.end(before, inference=runs_graph)
    found = summary([calls])
    assert (found["batches_run"], found["batches_replaced"], found["batches_inference"]) == (3, 2, 2)
    assert found["replacing_runs"] == 4
    assert 0.5 < found["replaced_share"] <= 1.0
    calls.reset()
    assert summary([calls]) == {
        "batches_run": 0,
        "batches_replaced": 0,
        "replacing_runs": 0,
        "batches_inference": 0,
        "replaced_share": 0.0,
    }


def test_without_a_tally_nothing_is_replaced() -> None:
    calls = Calls()
    calls.end(calls.begin(), inference=False)
    other = Calls(batches=2, replaced=1, compute_ns=100, replaced_ns=50)
    found = summary([calls, other])
    assert found["batches_run"] == 3 and found["batches_replaced"] == 1
