"""The queue's replay against recursions that are known, its derivatives against finite differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.attribution.wait_attribution import blame_waits
from latfix.queueing.queue_simulator import Policy
from latfix.queueing.start_derivatives import Served, serve_each
from tests.profilers.attribution.test_wait_attribution import line

Floats = npt.NDArray[np.float64]


def policy(workers: int = 1, max_batch: int = 1, window: float = 0.0, *, by_length: bool = False) -> Policy:
    sizes = np.arange(max_batch + 1, dtype=np.float64)
    return Policy(
        workers=workers, max_batch=max_batch, window=window, reference=1000.0 + 300.0 * sizes, by_length=by_length
    )


def serve(
    rules: Policy, arrival: Floats, extra: Floats, priority: Any, alpha: float = 1.0, length: Any = None
) -> Served:
    """A single replay."""
    moves = np.zeros((1, *extra.shape))
    each = serve_each(rules, arrival[None], moves, extra, -1, np.asarray(priority), np.array([alpha]), length)
    return Served(open=each.open[0], end=each.end[0], open_moves=each.open_moves[0], end_moves=each.end_moves[0])


def replay(rules: Policy, arrival: Floats, extra: Floats, alpha: float, classes: int = 1) -> Served:
    priority = np.arange(len(arrival)) % classes
    length = np.arange(len(arrival)) * 7 % 90
    return serve(rules, arrival, extra, priority, alpha, length)


def case(seed: int, n: int = 80) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    extra = np.where(rng.random((n, 3)) < 0.1, rng.exponential(9000.0, (n, 3)), 0.0)
    return np.cumsum(rng.exponential(1500.0, n)), extra


@given(seed=st.integers(0, 10_000), workers=st.integers(1, 4))
@settings(max_examples=40)
def test_the_head_is_taken_when_the_first_worker_is_free(seed: int, workers: int) -> None:
    arrival, extra = case(seed)
    served = replay(policy(workers=workers), arrival, extra, 1.0)
    free = [-np.inf] * workers
    for i, at in enumerate(arrival):
        free.sort()
        start = max(free[0], at)
        free[0] = start + 1300.0 + extra[i].sum()
        assert served.open[i] == pytest.approx(start)
        assert served.end[i] == pytest.approx(free[0])


@pytest.mark.parametrize(
    ("rules", "classes"),
    [
        (policy(), 1),
        (policy(workers=2), 1),
        (policy(max_batch=4, window=2000.0), 1),
        (policy(), 2),
        (policy(2, 3, 500.0), 3),
        (policy(max_batch=4, window=2000.0, by_length=True), 2),
    ],
)
def test_derivatives_are_finite_differences(rules: Policy, classes: int) -> None:
    arrival, extra = case(11)
    step = 1e-7
    here = replay(rules, arrival, extra, 0.7, classes)
    for column in range(extra.shape[1]):
        nudged = extra.copy()
        nudged[:, column] *= 1 + step / 0.7
        there = replay(rules, arrival, nudged, 0.7, classes)
        assert (there.open - here.open) / step == pytest.approx(here.open_moves[:, column], rel=1e-3, abs=0.5)
        assert (there.end - here.end) / step == pytest.approx(here.end_moves[:, column], rel=1e-3, abs=0.5)


def test_blame_does_not_depend_on_the_order_of_causes() -> None:
    queue = line(4, 400)
    batch, prepare = (np.ascontiguousarray(extra[:, ::-1]) for extra in (queue.batch_extra, queue.prepare_extra))
    turned = replace(queue, batch_extra=batch, prepare_extra=prepare)
    assert blame_waits(turned).propagated[:, ::-1] == pytest.approx(blame_waits(queue).propagated, abs=1e-3)


def test_two_pauses_share_the_wait_that_they_made_together() -> None:
    # Worked by hand: three requests come one nanosecond apart, each needs 1000, the first two 3000 more each.
    # The third waits for 8000 - 2: 2000 - 2 are traffic's, 3000 each cause's.
    extra = np.zeros((3, 3))
    extra[0, 0] = extra[1, 1] = 3000.0
    workers = Policy(workers=1, max_batch=1, reference=np.array([0.0, 1000.0]))
    arrival, nobody = np.array([0.0, 1.0, 2.0]), np.zeros(3, dtype=bool)
    blame = blame_waits(replace(line(0, 3), handed=arrival, prepared=nobody, workers=workers, batch_extra=extra))
    assert blame.traffic.tolist() == pytest.approx([0.0, 999.0, 1998.0])
    assert blame.propagated[2].tolist() == pytest.approx([3000.0, 3000.0, 0.0])


def test_batches_by_length_hold_inputs_of_like_length() -> None:
    # GIVEN a worker busy with the first request while short and long inputs arrive in turn
    arrival = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    length = np.array([50, 10, 500, 10, 500])
    rules = policy(max_batch=2, by_length=True)
    served = serve(rules, arrival, np.zeros((5, 1)), [0] * 5, length=length)
    # THEN the second batch is the oldest with the other short one, and the long ones follow
    assert served.open.tolist() == [0.0, 1300.0, 2900.0, 1300.0, 2900.0]


def test_the_window_counts_from_the_oldest_and_not_from_the_head_of_its_class() -> None:
    # GIVEN a worker busy until 10,000, a low request that comes at 9,000 and a high one at 9,900
    arrival = np.array([0.0, 9000.0, 9900.0])
    extra = np.array([[6700.0], [0.0], [0.0]])
    rules = policy(max_batch=3, window=2000.0)
    served = serve(rules, arrival, extra, [1, 2, 0])
    # THEN their batch closes at 11,000, as the service's does
    assert served.end.tolist() == [10_000.0, 12_600.0, 12_600.0]


def test_a_free_worker_does_not_take_a_request_before_it_arrives() -> None:
    # GIVEN two free workers and two requests at once that are too unlike for one batch
    arrival = np.array([100.0, 100.0])
    rules = policy(workers=2, max_batch=2, by_length=True)
    served = serve(rules, arrival, np.zeros((2, 1)), [0, 0], length=np.array([10, 500]))
    assert served.open.tolist() == [100.0, 100.0]
    assert served.end.tolist() == [1400.0, 1400.0]
