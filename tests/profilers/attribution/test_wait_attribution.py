"""Attribution through the queue: exact for one worker, exact sums otherwise, never more than a cause's total."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.attribution.wait_attribution import Line, blame_waits, waits_at
from latfix.queueing.queue_simulator import Policy

Floats = npt.NDArray[np.float64]
POLICIES: list[dict[str, Any]] = [
    {"workers": 1, "max_batch": 1},
    {"workers": 2, "max_batch": 1},
    {"workers": 1, "max_batch": 4, "window": 2000.0},
    {"workers": 3, "max_batch": 4},
    {"workers": 1, "max_batch": 1, "classes": 3},
    {"workers": 1, "max_batch": 4, "by_length": True},
]


def line(
    seed: int,
    n: int = 120,
    *,
    workers: int = 1,
    max_batch: int = 1,
    window: float = 0.0,
    classes: int = 1,
    by_length: bool = False,
    load: float = 0.6,
    unit: float = 1.0,
) -> Line:
    rng = np.random.default_rng(seed)
    reference = np.concatenate([[0.0], 1000.0 + 300.0 * np.arange(1, max_batch + 1)])
    gap = reference[-1] / max_batch / workers / load
    batch = np.where(rng.random((n, 3)) < 0.08, rng.exponential(8000.0, (n, 3)), 0.0)
    prepare = np.where(rng.random((n, 3)) < 0.03, rng.exponential(2000.0, (n, 3)), 0.0)
    return Line(
        handed=unit * np.cumsum(rng.exponential(gap, n)),
        prepared=np.ones(n, dtype=bool),
        queued=np.ones(n, dtype=bool),
        priority=np.arange(n) % classes,
        prepare=Policy(workers=1, max_batch=1, window=0.0, reference=unit * np.array([0.0, 100.0])),
        workers=Policy(
            workers=workers,
            max_batch=max_batch,
            window=unit * window,
            reference=unit * reference,
            by_length=by_length,
        ),
        prepare_extra=unit * prepare,
        batch_extra=unit * batch,
        window_column=2 if window else -1,
        length=np.arange(n) * 7 % 90,
    )


def small_steps(known: Line, steps: int) -> Floats:
    """The same division by brute force: each cause a little further in turn."""
    n, kinds = known.prepare_extra.shape
    turns = [int(k) for step in range(steps) for k in np.roll(np.arange(kinds), step)]
    scales = np.zeros((1 + len(turns), kinds))
    for place, k in enumerate(turns):
        scales[1 + place :, k] = (place // kinds + 1) / steps
    divided = np.zeros((kinds, n))
    np.add.at(divided, turns, np.diff(waits_at(known, scales), axis=0))
    return divided.T


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_one_worker_is_divided_exactly(seed: int) -> None:
    known = line(seed, n=60, unit=1000.0)  # services of a millisecond
    divided = blame_waits(known).propagated
    # Brute force is itself off by up to one step, because causes take turns within it.
    steps = 1000
    a_step = (known.batch_extra.sum() + known.prepare_extra.sum()) / steps
    assert np.abs(divided - small_steps(known, steps)).max() < a_step


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_sum_to_the_growth_of_each_wait(policy: dict[str, Any]) -> None:
    known = line(3, **policy)
    blame = blame_waits(known)
    full = waits_at(known, np.ones((1, 3)))[0]
    assert np.allclose(blame.traffic + blame.priority + blame.propagated.sum(axis=1), full, atol=2.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_cause_owns_more_than_its_total(policy: dict[str, Any]) -> None:
    known = line(4, **policy)
    blamed = np.abs(blame_waits(known).propagated).max(axis=0)
    did = known.batch_extra.sum(axis=0) + known.prepare_extra.sum(axis=0)
    if known.window_column >= 0:
        did[known.window_column] += known.workers.window * len(known.handed)
    assert (blamed <= did + 1.0).all()


def test_causes_that_do_nothing_get_nothing() -> None:
    known = line(5, max_batch=4, window=0.0)
    known.batch_extra[:, 1] = known.prepare_extra[:, 1] = 0.0
    assert not blame_waits(known).propagated[:, 1].any()


def test_a_jump_is_shared_and_not_given_to_the_cause_whose_turn_it_was() -> None:
    # GIVEN requests that join a long batch only once its window is long enough, and a second cause of almost zero
    known = replace(line(6, n=40, max_batch=8, window=4000.0, load=0.2))
    known.batch_extra[:] = known.prepare_extra[:] = 0.0
    known.batch_extra[::8, 0] = 60_000.0
    known.batch_extra[::8, 1] = -20.0
    blamed = np.abs(blame_waits(known).propagated)
    # THEN the small cause has no more than its size in any request
    assert blamed[:, 1].max() < 2000.0
    assert blamed[:, 0].max() > 5000.0


def test_bursts_and_overload_are_distinguished() -> None:
    calm = line(7, n=400, load=0.3)
    for extra in (calm.batch_extra, calm.prepare_extra):
        extra[:] = 0.0
    span = float(np.ptp(calm.handed))
    burst = calm.handed.copy()
    burst[100:160] = burst[100]
    bursting = blame_waits(replace(calm, handed=np.sort(burst), lasting=span / 4))
    assert bursting.traffic.max() > 20_000 and not bursting.overload.any()
    flood = np.concatenate([calm.handed[:100], calm.handed[100] + np.arange(300) * 700.0])
    flooded = blame_waits(replace(calm, handed=flood, lasting=float(np.ptp(flood)) / 4))
    assert flooded.overload[-50:].all() and not flooded.overload[:90].any()
    # GIVEN a limit longer than the recorded flood: its end is unknown unless calm follows
    rush = float(np.ptp(flood[100:]))
    assert blame_waits(replace(calm, handed=flood, lasting=1.5 * rush)).overload[-50:].all()
    assert not blame_waits(replace(calm, handed=flood, lasting=2.5 * rush)).overload.any()
    after = np.concatenate([flood[:300], flood[300] + 200_000.0 + np.arange(100) * 4_000.0])
    assert not blame_waits(replace(calm, handed=after, lasting=1.5 * float(np.ptp(after[100:300])))).overload.any()
