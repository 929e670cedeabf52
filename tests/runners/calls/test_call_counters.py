"""Runs of what replaces a model's operators are counted in their thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from latfix.runners.calls.call_counters import Calls, Tally, summary


def test_each_thread_counts_its_own_runs_those_that_raise_too() -> None:
    tally = Tally()
    double = tally.counting(lambda x: 2 * x)
    assert double(4) == 8
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (tally.runs, double(1), tally.runs)).result() == (0, 2, 1)
    assert tally.runs == 1 and tally.ns > 0
    with pytest.raises(TypeError):
        tally.counting(len)(3)
    assert tally.runs == 2


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
    assert set(summary([calls])) == set(found) and not any(summary([calls]).values())


def test_without_a_tally_nothing_is_replaced() -> None:
    calls = Calls()
    calls.end(calls.begin(), inference=False)
    other = Calls(batches=2, replaced=1, compute_ns=100, replaced_ns=50)
    found = summary([calls, other])
    assert found["batches_run"] == 3 and found["batches_replaced"] == 1
