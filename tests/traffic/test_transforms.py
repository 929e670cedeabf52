"""Transforms of arrivals and ids, and their record in the metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.traffic import transforms as transform
from latfix.traffic.schedule import Traffic
from latfix.traffic.summary import describe
from latfix.traffic.synthesize import Synthesis, synthesize


def traffic_at(*seconds: float, sessions: bool = False) -> Traffic:
    n = len(seconds)
    plain = Traffic.plain(
        np.array([round(second * 1e9) for second in seconds], dtype=np.int64),
        features={"x": np.arange(n, dtype=np.int64)},
        payloads=list(range(n)),
        metadata={"source": "test"},
    )
    return replace(plain, sessions=[f"s{index}" for index in range(n)]) if sessions else plain


def seconds_of(traffic: Traffic) -> list[float]:
    return [arrival / 1e9 for arrival in traffic.arrival_ns.tolist()]


def last_note(traffic: Traffic) -> dict[str, object]:
    return dict(traffic.metadata["transforms"][-1])


def test_speed_two_is_twice_as_fast() -> None:
    fast = transform.scale_time(traffic_at(1, 3, 4), 2)
    assert seconds_of(fast) == [0.5, 1.5, 2.0]
    assert last_note(fast) == {"transform": "scale_time", "speed": 2, "requests": 3}


def test_scaling_to_a_duration_hits_it_exactly() -> None:
    scaled = transform.scale_to_duration(traffic_at(0, 1, 3435.948056), 60)
    assert scaled.arrival_ns[-1] == 60 * 10**9
    assert scaled.arrival_ns[1] == round(60 * 10**9 / 3435.948056)


def test_a_slice_is_half_open_and_counts_from_its_start() -> None:
    cut = transform.slice_time(traffic_at(0, 1, 2, 3), 1, 3)
    assert seconds_of(cut) == [0, 1]
    assert cut.ids == ["r1", "r2"]
    assert cut.features["x"].tolist() == [1, 2]
    assert cut.payloads == [1, 2]
    assert seconds_of(transform.slice_time(traffic_at(0, 1, 2, 3), 2.5)) == [0.5]
    whole = transform.slice_time(traffic_at(0, 1), 0, 9.3e18)
    assert len(whole) == 2 and whole.metadata["transforms"][-1]["end_s"] < 2**63


def test_a_limit_takes_the_first() -> None:
    assert transform.limit(traffic_at(0, 1, 2), 2).ids == ["r0", "r1"]
    assert transform.limit(traffic_at(0, 1, 2), 2**70).metadata["transforms"] == [
        {"transform": "limit", "n": 3, "requests": 3}
    ]


def test_gaps_are_capped_and_the_rest_moves_up() -> None:
    capped = transform.cap_gaps(traffic_at(5, 6, 100, 101), 2)
    assert seconds_of(capped) == [2, 3, 5, 6]
    assert last_note(capped)["gaps_capped"] == 2
    assert last_note(capped)["removed_s"] == 95.0


def test_copies_are_one_mean_gap_apart_with_their_own_ids_and_sessions() -> None:
    twice = transform.repeat(traffic_at(0.5, 1.5, 4.5, sessions=True), 3)
    assert seconds_of(twice) == [0.5, 1.5, 4.5, 6.5, 7.5, 10.5, 12.5, 13.5, 16.5]
    assert twice.ids == ["r0", "r1", "r2", "r0#2", "r1#2", "r2#2", "r0#3", "r1#3", "r2#3"]
    assert twice.sessions[3] == "s0#2"
    assert len(set(transform.repeat(twice, 2).ids)) == 18


def test_thinning_draws_requests_and_moves_none() -> None:
    whole = synthesize(Synthesis(kind="poisson", rate=100, duration_s=20, seed=3))
    thin = transform.resample_rate(whole, 0.25, seed=1)
    assert len(thin) == round(len(whole) * 0.25)
    assert set(thin.arrival_ns.tolist()) <= set(whole.arrival_ns.tolist())
    assert thin.ids == transform.resample_rate(whole, 0.25, seed=1).ids
    assert thin.ids != transform.resample_rate(whole, 0.25, seed=2).ids


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.25])
def test_densifying_adds_copies_that_do_not_coincide_and_keeps_the_course_of_the_rate(factor: float) -> None:
    whole = synthesize(Synthesis(kind="periodic", rate=100, duration_s=60, period_s=10, seed=3))
    dense = transform.resample_rate(whole, factor, seed=1)
    assert len(dense) == round(len(whole) * factor)
    assert len(set(dense.ids)) == len(dense)
    assert set(whole.ids) <= set(dense.ids)
    assert np.all(np.diff(dense.arrival_ns) >= 0)
    assert len(np.unique(dense.arrival_ns)) > 0.99 * len(dense)
    before, edges = np.histogram(whole.arrival_ns, 12, range=(0, 60e9))
    after, _ = np.histogram(dense.arrival_ns, edges)
    assert np.corrcoef(before, after)[0, 1] > 0.97
    assert describe(dense).kind == "periodic"


def test_every_transform_is_stated_in_order() -> None:
    changed = transform.limit(transform.scale_time(transform.cap_gaps(traffic_at(0, 9, 10), 1), 2), 2)
    assert [entry["transform"] for entry in changed.metadata["transforms"]] == ["cap_gaps", "scale_time", "limit"]
    assert changed.metadata["source"] == "test"


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_factors_are_refused(bad: float) -> None:
    traffic = traffic_at(0, 1)
    attempts: list[Callable[[], Traffic]] = [
        lambda: transform.scale_time(traffic, bad),
        lambda: transform.scale_to_duration(traffic, bad),
        lambda: transform.cap_gaps(traffic, bad),
        lambda: transform.resample_rate(traffic, bad),
    ]
    for refused in attempts:
        with pytest.raises(InputError, match="expected"):
            refused()


def test_transforms_that_leave_nothing_or_too_much_are_refused() -> None:
    traffic = traffic_at(0, 1)
    attempts: list[Callable[[], Traffic]] = [
        lambda: transform.slice_time(traffic, 5, 6),
        lambda: transform.slice_time(traffic, 2, 1),
        lambda: transform.slice_time(traffic, -1, 1),
        lambda: transform.limit(traffic, 0),
        lambda: transform.repeat(traffic, 0),
        lambda: transform.repeat(traffic, 10**9),
        lambda: transform.resample_rate(traffic, 0.01),
        lambda: transform.resample_rate(traffic, 1e300),
        lambda: transform.resample_rate(traffic, 1.0, seed=-1),
        lambda: transform.scale_time(traffic, 1e-300),
        lambda: transform.scale_to_duration(traffic_at(0, 0), 5),
    ]
    for refused in attempts:
        with pytest.raises(InputError, match=r"expected|leaves no request"):
            refused()


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 10**15), min_size=1, max_size=30),
    st.floats(0.01, 100),
    st.integers(1, 4),
    st.floats(0.3, 4),
)
def test_results_stay_sorted_unique_and_of_one_length(
    arrivals: list[int], speed: float, times: int, factor: float
) -> None:
    traffic = traffic_at(*(arrival / 1e9 for arrival in sorted(arrivals)))
    if len(traffic) * factor < 1:
        factor = 1.0
    changed = transform.scale_time(
        transform.repeat(transform.resample_rate(transform.cap_gaps(traffic, 5), factor), times), speed
    )
    assert np.all(np.diff(changed.arrival_ns) >= 0)
    assert changed.arrival_ns[0] >= 0
    assert len(set(changed.ids)) == len(changed) == len(changed.payloads) == len(changed.features["x"])
