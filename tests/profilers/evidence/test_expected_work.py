"""Costs of inputs, batching and padding, learned from batch durations alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from latfix.profilers.evidence.expected_work import ExpectedWork, Members, padded_row, work_designs
from latfix.profilers.evidence.predictive_features import (
    error_of_work,
    is_running_number,
    predictive_features,
    with_features,
)
from latfix.profilers.evidence.run_baselines import Norms

Floats = npt.NDArray[np.float64]
Cost = Callable[[Floats], float]


def batched(n: int, seed: int) -> tuple[Members, dict[str, npt.NDArray[np.int64]]]:
    """Requests of lengths over two orders of magnitude, in batches of one to eight padded to the longest."""
    rng = np.random.default_rng(seed)
    length = np.clip(np.exp(rng.normal(4.6, 0.7, n)), 10, 1500).astype(np.int64)
    count: list[int] = []
    while sum(count) < n:
        count.append(min(int(rng.integers(1, 9)), n - sum(count)))
    size = np.array(count, np.int64)
    first = np.concatenate([[0], np.cumsum(size)[:-1]])
    longest = np.maximum.reduceat(length, first)
    members = Members(
        attributes=np.column_stack([length, length]).astype(np.float64),
        order=np.arange(n),
        first=first,
        count=size,
        usable=np.ones(n, dtype=bool),
    )
    real = np.add.reduceat(length, first)
    padded = size * longest
    return members, {"size": size, "real_elements": real, "padded_elements": padded, "padded_length": longest}


def lengths_of(members: Members) -> list[Floats]:
    return np.split(members.attributes[:, 1], members.first[1:])


def expected(
    members: Members, batches: Mapping[str, npt.NDArray[np.int64]], cost_ms: Cost, *, noise: float = 0.03
) -> tuple[ExpectedWork, Floats]:
    rng = np.random.default_rng(9)
    took = np.array([cost_ms(lengths) for lengths in lengths_of(members)]) * 1e6
    took *= 1 + noise * np.abs(rng.standard_normal(len(took)))
    times = {
        "prepare": np.full(len(members.usable), 1e6),
        "finish": np.full(len(members.usable), 1e5),
        "compute": took,
    }
    clean = {name: np.ones(len(values), dtype=bool) for name, values in times.items()}
    return ExpectedWork(members, batches, times, clean, 8, Norms()), took


COSTS: dict[str, tuple[Cost, bool]] = {
    # steps run for the longest sequence; positions beyond a sequence's end are not computed
    "packed": (lambda L: 2 + 0.02 * L.max() + 0.004 * L.sum(), False),
    "ever fuller units": (lambda L: 2 + 0.3 * L.sum() ** 0.6, False),
    "packed, ever fuller": (
        lambda L: 2 + 0.02 * float(sum(np.count_nonzero(t < L) ** 0.5 for t in range(int(L.max())))),
        False,
    ),
    "padded": (lambda L: 2 + 0.03 * len(L) * L.max(), True),
    "padded, ever fuller": (lambda L: 2 + 0.05 * L.max() * len(L) ** 0.5, True),
}


@pytest.mark.parametrize("name", list(COSTS))
def test_padding_counts_only_if_it_is_computed(name: str) -> None:
    cost, pays = COSTS[name]
    members, batches = batched(2000, 1)
    work, took = expected(members, batches, cost)
    padding = (work.padded - work.unpadded).sum() / took.sum()
    assert work.models["compute"].accepted
    if pays:
        assert padding > 0.15
    else:
        assert abs(padding) < 0.05


@pytest.mark.parametrize("name", list(COSTS))
def test_the_largest_batches_are_not_overestimated(name: str) -> None:
    members, batches = batched(2000, 2)
    work, took = expected(members, batches, COSTS[name][0])
    slowest = np.argsort(took)[-len(took) // 50 :]
    assert np.median(work.padded[slowest] / took[slowest]) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("unit", ["prepare", "finish"])
def test_own_code_may_take_the_square_of_a_feature(unit: str) -> None:
    # GIVEN texts of varied length that become tensors of one size, and code that compares all pairs of words
    rng = np.random.default_rng(6)
    members, batches = batched(1500, 5)
    words = members.attributes[:, 1]
    members = replace(members, attributes=np.column_stack([np.ones((1500, 2)), words]))
    times = {name: 1e6 * np.ones(1500) for name in ("prepare", "finish")} | {
        "compute": 1e6 * np.ones(len(members.count))
    }
    times[unit] = (1e5 + 40.0 * words**2) * (1 + 0.03 * rng.random(1500))
    clean = {name: np.ones(len(values), dtype=bool) for name, values in times.items()}
    work = ExpectedWork(members, batches, times, clean, 8, Norms())
    longest = np.argsort(words)[-30:]
    found = getattr(work, unit)[longest] / times[unit][longest]
    assert np.abs(found - 1).max() < 0.1


def test_one_batch_has_the_columns_that_all_have() -> None:
    members, batches = batched(300, seed=4)
    feature = np.random.default_rng(2).integers(1, 50, (300, 2)).astype(np.float64)
    members = replace(members, attributes=np.column_stack([members.attributes, feature]))
    designs, _ = work_designs(members, batches, Norms())
    top = members.largest(members.attributes)
    real = members.total(members.attributes)[:, 0]
    for k, row in enumerate(designs["compute"]):
        one = padded_row(int(batches["size"][k]), real[k], float(batches["padded_elements"][k]), top[k].tolist())
        assert one == pytest.approx(row.tolist())


def test_features_are_selected_by_what_they_explain() -> None:
    # GIVEN four ids with a value of their own for each request, and a number of steps with ten
    rng = np.random.default_rng(5)
    members, batches = batched(1200, 3)
    n = len(members.usable)
    steps = rng.integers(1, 11, n).astype(np.float64)
    features = {f"id_{k}": rng.permutation(n).astype(np.float64) for k in range(4)} | {"steps": steps}
    total = np.add.reduceat(steps, members.first)
    times = {"prepare": np.full(n, 1e6), "finish": np.full(n, 1e5), "compute": 1e6 + 4e5 * total}
    times = {name: values * (1 + 0.05 * rng.random(len(values))) for name, values in times.items()}
    clean = {name: np.ones(len(values), dtype=bool) for name, values in times.items()}
    position = np.arange(n)
    error = partial(error_of_work, members, batches, times, clean)
    against = [times["prepare"], times["compute"][np.repeat(np.arange(len(members.count)), members.count)]]
    assert predictive_features(features, position, against, error) == ("steps",)
    many = features | {f"number_{k}": rng.permutation(n).astype(np.float64) for k in range(20)}
    assert predictive_features(many, position, against, error) == ("steps",)
    # Of a few, all are kept: an irrelevant one gets no coefficient.
    assert predictive_features({"steps": steps}, position, against, error) == ("steps",)
    assert with_features(members, [steps]).attributes.shape == (n, 3)


@pytest.mark.parametrize(
    ("values", "running"),
    [
        pytest.param(np.arange(500.0), True, id="index"),
        pytest.param(1.7e9 + np.cumsum(np.random.default_rng(1).exponential(1.0, 500)), True, id="time"),
        pytest.param(np.arange(500.0)[::-1], True, id="countdown"),
        pytest.param(np.arange(500.0) + 40 * np.random.default_rng(2).random(500), True, id="of several clients"),
        pytest.param(np.random.default_rng(3).random(500), False, id="size"),
        pytest.param(np.repeat(np.arange(5.0), 100), False, id="five levels"),
        pytest.param(np.random.default_rng(4).permutation(500).astype(np.float64), False, id="ids in no order"),
    ],
)
def test_running_numbers(values: Floats, running: bool) -> None:
    assert is_running_number(values) is running
