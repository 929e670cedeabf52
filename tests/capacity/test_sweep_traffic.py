"""The requests of each point: as many as the budget allows, as bursty as the whole, at the requested load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.capacity.sweep_world import make_traffic
from latfix.capacity.objective import LatencyObjective
from latfix.capacity.sweep_traffic import burstiness, index_of_dispersion, part_of, plan_requests, recorded_rate
from latfix.errors import InputError
from latfix.traffic.schedule import Traffic

P99 = LatencyObjective(percentile=99.0)
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


@pytest.mark.parametrize("load", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("requests", [150, 1000, 2500])
def test_the_load_is_the_requested_one(load: float, requests: int) -> None:
    part = part_of(make_traffic(1000, 40.0, bursts=3.0), requests)
    schedule = part.at(load)
    assert recorded_rate(schedule) == pytest.approx(load * part.recorded, rel=1e-3)
    assert schedule.duration_s == pytest.approx(part.seconds(load), rel=1e-3)
    assert int(schedule.arrival_ns[0]) == 0


def test_every_load_replays_the_same_requests_just_as_bursty() -> None:
    part = part_of(make_traffic(1200, 40.0, bursts=3.5), 1200)
    slow, fast = part.at(0.5), part.at(2.0)
    assert slow.ids == fast.ids
    indices = [index_of_dispersion(s.arrival_ns, s.duration_s / 30) for s in (slow, fast)]
    assert indices[0] == pytest.approx(indices[1], rel=0.05) and indices[0] > 2


def test_a_part_is_as_bursty_as_the_whole() -> None:
    calm, bursty = make_traffic(600, 40.0, seed=1), make_traffic(2400, 40.0, seed=2, bursts=3.5)
    offset = int(calm.arrival_ns[-1]) + 25_000_000
    whole = replace(
        bursty,
        arrival_ns=np.concatenate([calm.arrival_ns, bursty.arrival_ns + offset]),
        ids=[str(k) for k in range(3000)],
        priority=np.ones(3000, np.int8),
        sessions=[None] * 3000,
        deadline_ms=np.full(3000, np.nan),
        features={},
        payloads=[None] * 3000,
    )
    part = part_of(whole, 500)
    assert len(part.traffic) == 500
    assert part.dispersion > 0.6 * part.whole, "not the calm stretch that comes first"


def test_short_traffic_is_repeated() -> None:
    part = part_of(make_traffic(100, 40.0), 400)
    assert len(part.traffic) == 400 and len(set(part.traffic.ids)) == 400


def test_a_load_that_would_be_too_short_is_replayed_several_times() -> None:
    part = part_of(make_traffic(100, 40.0), 100, shortest_s=4.0)
    assert len(part.at(0.5)) == 100, "five seconds already"
    fast = part.at(8.0)
    assert len(fast) % 100 == 0 and 4.0 <= fast.duration_s < 4.5
    assert fast.duration_s == pytest.approx(part.seconds(8.0), rel=1e-3)
    assert recorded_rate(fast) == pytest.approx(8.0 * part.recorded, rel=1e-3)
    assert fast.features["value"].tolist() == list(range(100)) * (len(fast) // 100)
    assert len(part.at(1e5)) == 20_000, "but not for ever"


def test_dispersion() -> None:
    even = np.arange(3000) * 10_000_000
    assert index_of_dispersion(even, 0.5) == pytest.approx(0.0, abs=0.05)
    assert np.isnan(index_of_dispersion(even, 10.0)), "too few windows"


def test_bursts_show_in_longer_windows() -> None:
    calm, bursty = (burstiness(make_traffic(4000, 40.0, bursts=bursts)) for bursts in (1.0, 2.5))
    assert all(0.5 < index < 1.6 for index in calm.index)
    assert bursty.index[0] < 2 and bursty.over(30) > 2 * bursty.index[0]
    assert bursty.over(1e9) == bursty.index[-1], "no longer window than was counted"


def test_nothing_to_scale() -> None:
    at_once = replace(make_traffic(3), arrival_ns=np.zeros(3, np.int64))
    with pytest.raises(InputError, match="arrive at one moment"):
        part_of(at_once, 3)


def _arriving(*nanoseconds: int) -> Traffic:
    return Traffic.plain(np.array(nanoseconds, dtype=np.int64))


def test_traffic_too_sparse_to_repeat_is_refused() -> None:
    """The user did not request repetitions, so the message is not about them."""
    with pytest.raises(InputError, match=r"^traffic: found 2 requests over 9e\+08 s, too sparse to sweep"):
        part_of(_arriving(0, 9 * 10**17), 50)


def test_traffic_too_dense_to_sweep_is_refused() -> None:
    dense = _arriving(*range(30))
    with pytest.raises(InputError, match=r"^traffic: found 1e\+09 requests a second, too dense to sweep"):
        plan_requests(recorded_rate(dense), LOADS, 1, 300.0, P99)
    assert len(part_of(dense, 60).traffic) == 60, "fewer may be requested"


def test_a_point_is_not_repeated_beyond_the_longest_schedule() -> None:
    """Repetition is at the recorded rate; at this load a point needs thousands of them."""
    part = part_of(_arriving(*range(0, 50 * 10**16, 10**16)), 50, shortest_s=4.0)
    assert len(part.at(1e9)) == 100


def test_a_point_is_never_of_one_moment() -> None:
    """Traffic from a log whose times are whole seconds."""
    part = part_of(_arriving(*np.repeat(np.arange(4) * 10**9, 100).tolist()), 400, longest_s=0.5)
    schedule = part.at(0.5)
    assert len(schedule) == part.sent(0.5) == 101
    assert schedule.duration_s == pytest.approx(2.0)


def test_requests_by_budget() -> None:
    few = plan_requests(40.0, LOADS, 9, 300.0, P99)
    some = plan_requests(40.0, LOADS, 1, 300.0, P99)
    many = plan_requests(40.0, LOADS, 1, 36_000.0, P99)
    assert few == some == 1000 < many, "fewer hold too few slow ones for a p99"
    assert plan_requests(2.0, LOADS, 1, 300.0, P99) == 90, "no point takes over 15 % of the budget"
    # The first round takes about half of the budget, and no point is longer than needed.
    rough = plan_requests(40.0, LOADS, 1, 300.0, LatencyObjective(percentile=50.0))
    assert rough / 40 * sum(1 / load for load in LOADS) <= 150
    assert many == 2000
    assert plan_requests(40.0, LOADS, 1, 36_000.0, LatencyObjective(percentile=90.0)) == 200


def test_arrivals_are_those_of_the_schedule() -> None:
    part = part_of(make_traffic(300, 50.0), 300, shortest_s=4.0)
    for load in (0.5, 1.0, 3.7):
        assert part.arrivals(load) == pytest.approx(part.at(load).arrival_ns, abs=2e3)
        assert len(part.arrivals(load)) == part.requests(load)
