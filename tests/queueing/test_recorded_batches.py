"""Replays of recorded batches, compared with a plain loop and finite differences, and their blame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.attribution.wait_attribution import Line, blame_waits, waits_at
from latfix.queueing.queue_simulator import Policy, replay
from latfix.queueing.recorded_batches import Recorded
from tests.profilers.attribution.test_wait_attribution import small_steps

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KINDS = 3


def run_of(seed: int, *, n: int = 40, workers: int = 2, most: int = 3, unit: float = 1.0) -> tuple[Line, Ints]:
    """Batches of a service that picks waiting requests by no rule at all, and holds some batches for a while."""
    rng = np.random.default_rng(seed)
    arrival = unit * np.cumsum(rng.exponential(900.0, n))
    extra = unit * np.where(rng.random((n, KINDS)) < 0.15, rng.exponential(4000.0, (n, KINDS)), 0.0)
    reference = unit * np.concatenate([[0.0], 800.0 + 250.0 * np.arange(1, most + 1)])
    free, left = [0.0] * workers, list(range(n))
    batch_of = np.full(n, -1, np.int64)
    worker, opened, due, ended = list[int](), list[float](), list[float](), np.zeros(n)
    while left:
        who = int(np.argmin(free))
        oldest = left[0]
        begin = close = max(free[who], arrival[oldest])
        if rng.random() < 0.3:
            close = max(begin, arrival[oldest] + unit * 1500.0)
        waiting = [k for k in left if arrival[k] <= close]
        members = list(rng.permutation(waiting)[: int(rng.integers(1, most + 1))])
        if close > begin and oldest not in members:
            members[0] = oldest  # the timer was that of the oldest
        left = [k for k in left if k not in members]
        end = close + reference[len(members)] + extra[members].sum()
        batch_of[members] = len(worker)
        ended[members] = end
        worker.append(who)
        opened.append(max(free[who], arrival[members].min()))
        due.append(close)
        free[who] = end
    exact = np.rint(arrival).astype(np.int64)
    recorded = Recorded.of(
        batch_of, np.array(worker), np.rint(opened).astype(np.int64), np.rint(due).astype(np.int64), exact
    )
    line = Line(
        handed=arrival,
        prepared=np.ones(n, dtype=bool),
        queued=np.ones(n, dtype=bool),
        priority=np.zeros(n, np.int64),
        prepare=Policy(workers=1, max_batch=1, window=0.0, reference=np.zeros(2)),
        workers=Policy(workers=workers, max_batch=most, window=0.0, reference=reference),
        prepare_extra=np.zeros((n, KINDS)),
        batch_extra=extra,
        window_column=2,
        ended=ended,
        recorded=recorded,
    )
    return line, batch_of


def one_worker(arrival: Floats, extra: Floats, recorded: Recorded, window_column: int = -1) -> Line:
    """Requests at one worker with batches of one; each takes 1000 plus its extra."""
    n = len(arrival)
    return replace(
        run_of(0)[0],
        handed=arrival,
        prepared=np.ones(n, dtype=bool),
        queued=np.ones(n, dtype=bool),
        priority=np.zeros(n, np.int64),
        workers=Policy(workers=1, max_batch=1, window=0.0, reference=np.array([0.0, 1000.0])),
        prepare_extra=np.zeros_like(extra),
        batch_extra=extra,
        window_column=window_column,
        ended=None,
        recorded=recorded,
    )


def by_loop(line: Line, batch_of: Ints, scale: Floats) -> Floats:
    """The recursion, batch after batch."""
    known = line.recorded
    assert known is not None
    waits = np.zeros(len(batch_of))
    free: dict[int, float] = {}
    order = np.argsort(known.opened, kind="stable")
    for place, b in enumerate(order):
        members = known.members[known.first[b] : known.first[b] + known.size[b]]
        arrived = line.handed[members]
        joined = arrived[known.joined[known.first[b] : known.first[b] + known.size[b]]]
        who = int(known.worker[b])
        to_come = [
            line.handed[known.members[known.first[c] : known.first[c] + known.size[c]]].min()
            for c in order[place:]
            if known.worker[c] == who
        ]
        begin = max(free.get(who, -np.inf), min(to_come))
        close = max(begin + scale[2] * known.hold[b], joined.max(initial=-np.inf))
        free[who] = close + line.workers.reference[len(members)] + float((line.batch_extra[members] @ scale).sum())
        waits[members] = np.maximum(begin - arrived, 0.0)
    return waits


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_it_equals_the_recursion(seed: int) -> None:
    line, batch_of = run_of(seed)
    scales = np.random.default_rng(seed).random((4, KINDS))
    for waits, scale in zip(waits_at(line, scales), scales, strict=True):
        assert waits == pytest.approx(by_loop(line, batch_of, scale), abs=1e-6)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_an_unchanged_replay_gives_the_recorded_waits(seed: int) -> None:
    line, batch_of = run_of(seed)
    known = line.recorded
    assert known is not None
    opened = np.zeros(len(batch_of))
    opened[known.members] = np.repeat(known.opened, known.size)
    was = np.maximum(opened - line.handed, 0.0)
    now = waits_at(line, np.ones((1, KINDS)))[0]
    assert now == pytest.approx(was, abs=2.0 * len(batch_of)), "to the rounding of each stamp"


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_derivatives_are_finite_differences(seed: int) -> None:
    line, _ = run_of(seed)
    assert line.recorded is not None
    step, alpha = 1e-6, 0.7
    moves = np.zeros((len(line.handed), KINDS))

    def served(extra: Floats, held: Floats) -> tuple[Floats, Floats, Floats]:
        assert line.recorded is not None
        known = replace(line.recorded, hold=held)
        result = known.serve(line.workers, line.handed, moves, extra, 2, alpha)
        return result.open, result.end, result.end_moves

    opened, ended, end_moves = served(line.batch_extra, line.recorded.hold)
    for column in range(KINDS):
        extra = line.batch_extra.copy()
        extra[:, column] *= 1 + step / alpha
        held = line.recorded.hold * (1 + step / alpha if column == 2 else 1)
        there, end_there, _ = served(extra, held)
        assert (end_there - ended) / step == pytest.approx(end_moves[:, column], rel=1e-3, abs=0.6)
        assert there.shape == opened.shape


@settings(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_blame_equals_brute_force_and_sums(seed: int) -> None:
    line, _ = run_of(seed, n=30, unit=1000.0)
    blame = blame_waits(line)
    full = waits_at(line, np.ones((1, KINDS)))[0]
    assert blame.traffic + blame.propagated.sum(axis=1) == pytest.approx(full, abs=2.0)
    assert not blame.priority.any()
    steps = 400
    assert line.recorded is not None
    a_step = (line.batch_extra.sum() + line.recorded.hold.sum()) / steps
    assert np.abs(blame.propagated - small_steps(line, steps)).max() < a_step


def test_a_pause_is_blamed_for_requests_that_waited_for_it_in_any_order() -> None:
    # GIVEN one worker, three requests a moment apart, served last come first; the first takes 5000 longer
    arrival = np.array([0.0, 10.0, 20.0])
    extra = np.array([[5000.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 300.0, 0.0]])
    when = np.array([0, 6000, 7300])
    recorded = Recorded.of(np.array([0, 2, 1]), np.zeros(3, np.int64), when, when, arrival.astype(np.int64))
    blame = blame_waits(one_worker(arrival, extra, recorded))
    assert blame.propagated[2].tolist() == pytest.approx([5000.0, 0.0, 0.0])
    assert blame.propagated[1].tolist() == pytest.approx([5000.0, 300.0, 0.0])
    assert blame.traffic.tolist() == pytest.approx([0.0, 1990.0, 980.0])


def test_overtaking_delays_no_request_without_a_backlog() -> None:
    # GIVEN a pause of the first request, in which a second waits and a third comes, much later, and is served first
    arrival = np.array([0.0, 100.0, 9000.0])
    extra = np.array([[10_000.0], [0.0], [0.0]])
    when = np.array([0, 11_000, 12_000])
    recorded = Recorded.of(np.array([0, 2, 1]), np.zeros(3, np.int64), when, when, arrival.astype(np.int64))
    blame = blame_waits(one_worker(arrival, extra, recorded))
    # THEN without the pause the second waits for the first and for the place that was given away, not for the third
    assert blame.traffic.tolist() == pytest.approx([0.0, 1900.0, 0.0])
    assert blame.propagated[:, 0].tolist() == pytest.approx([0.0, 10_000.0, 2000.0], abs=2.0)


def test_no_batches_cause_no_waits() -> None:
    line, _ = run_of(1, n=5)
    empty = Recorded.of(
        np.full(5, -1), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.arange(5)
    )
    alone = replace(line, recorded=empty, queued=np.zeros(5, dtype=bool))
    assert not waits_at(alone, np.ones((2, KINDS))).any()
    assert not blame_waits(alone).propagated.any()


def test_ageing_is_replayed_as_the_runner_does_it() -> None:
    # GIVEN a worker busy until 10,000 while a low request waits, and high ones that come before and after it aged
    arrival = np.array([0.0, 100.0, 250.0, 400.0])
    rank = np.array([1, 2, 0, 0])
    rules = Policy(workers=1, max_batch=1, window=0.0, reference=np.array([0.0, 10_000.0]), ageing=100.0)
    for policy, opened in (
        (rules, [0.0, 20_000.0, 10_000.0, 30_000.0]),
        (replace(rules, ageing=0.0), [0.0, 30_000.0, 10_000.0, 20_000.0]),
    ):
        served = replay(policy, arrival, np.zeros(4), rank)
        assert served.by_request(served.opened).tolist() == opened


def test_a_batch_held_briefly_after_a_long_wait_is_not_due_to_the_window() -> None:
    # GIVEN a request that waits 10,000 for the pause of the first, whose batch is then held open for 50
    arrival = np.array([0.0, 10.0])
    extra = np.array([[9000.0, 0.0], [0.0, 0.0]])
    opened, due = np.array([0, 10_000]), np.array([0, 10_050])
    recorded = Recorded.of(np.array([0, 1]), np.zeros(2, np.int64), opened, due, arrival.astype(np.int64))
    blame = blame_waits(one_worker(arrival, extra, recorded, window_column=1))
    assert blame.propagated[1].tolist() == pytest.approx([9000.0, 0.0], abs=2.0)
    assert recorded.hold.tolist() == [0.0, 50.0]
