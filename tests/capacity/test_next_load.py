"""The search for loads, on a simulated service: it finds what is known, and stops where nothing is to find."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from latfix.capacity.max_load import LargestLoad, largest_load
from latfix.capacity.measured_load import Cell, LoadPoint, cell_of, load_point, run_spread, with_spread
from latfix.capacity.next_load import ceiling, is_far, propose
from latfix.capacity.objective import Target
from latfix.run_record.run_record import RunRecord
from latfix.traffic.schedule import Traffic

MakeTraffic = Callable[..., Traffic]
Simulate = Callable[..., RunRecord]
GRID = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
RECORDED = 50.0


class Searched:
    """Runs the search over a simulated M/M/1 whose service takes ``each`` seconds on average."""

    def __init__(
        self, make_traffic: MakeTraffic, simulate: Simulate, target: Target, *, each: float, n: int, seed: int = 0
    ) -> None:
        self._make, self._simulate = make_traffic, simulate
        self._each, self._n, self._seed = each, n, seed
        self.target = target
        self.points: dict[float, list[LoadPoint]] = {}
        self.asked: list[tuple[float, str]] = []

    def replay(self, load: float) -> None:
        run = len(self.asked) + 1000 * self._seed
        traffic = self._make(self._n, RECORDED * load, seed=run)
        record = self._simulate(traffic, each=self._each, noise=1.0, seed=run + 500_000)
        self.points.setdefault(load, []).append(load_point(record))

    def cells(self) -> list[Cell]:
        plain = [cell_of(load, points, self.target) for load, points in sorted(self.points.items())]
        return with_spread(plain, run_spread(plain), self.target)

    def run(self, most: int) -> LargestLoad | None:
        for load in GRID:
            if load <= ceiling(self.cells(), self.target):
                self.replay(load)
                self.asked.append((load, "grid"))
        while len(self.asked) < most:
            proposal = propose(self.cells(), self.target, grid=GRID)
            if proposal is None:
                break
            self.replay(proposal.load)
            self.asked.append((proposal.load, proposal.kind))
        return largest_load(self.cells(), self.target)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_closes_in_on_the_truth(seed: int, make_traffic: MakeTraffic, simulate: Simulate) -> None:
    # M/M/1 with a service rate of 100: p90 = ln 10 / (100 - rate) reaches 60 ms at a rate of 61.6.
    target = Target(percentile=90.0, limit=0.06)
    truth = 100 - math.log(10) / 0.06
    search = Searched(make_traffic, simulate, target, each=0.01, n=2500, seed=seed)
    answer = search.run(most=44)
    assert answer is not None and answer.rps is not None
    assert answer.rps == pytest.approx(truth, rel=0.1)
    assert answer.lo is not None and answer.hi is not None
    assert answer.lo < 1.05 * truth and answer.hi > 0.95 * truth
    assert answer.hi / answer.lo < 1.35
    assert len(search.asked) < 44, "it stops by itself"


def test_it_goes_up_where_every_load_asked_for_is_borne(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    search = Searched(make_traffic, simulate, Target(percentile=90.0, limit=0.06), each=0.002, n=1500)
    answer = search.run(most=26)
    # A service rate of 500 bears 461.6 a second, six times the highest load asked for.
    assert answer is not None and answer.lo is not None
    assert 380 < answer.lo < 480


def test_it_goes_down_where_no_load_asked_for_is_borne(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    search = Searched(make_traffic, simulate, Target(percentile=90.0, limit=0.35), each=0.1, n=1500)
    answer = search.run(most=26)
    # A service rate of 10: 3.4 a second.
    assert answer is not None and answer.lo is not None and answer.hi is not None
    assert answer.lo < 3.6 < 12.5 and answer.hi > 3.2


def test_loads_past_saturation_are_left_out(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    search = Searched(make_traffic, simulate, Target(percentile=90.0, limit=0.06), each=0.03, n=800)
    search.run(most=20)
    # 33 a second at most: a load of 0.75 is past it, so that 1, 1.25 and 1.5 are never replayed.
    assert max(load for load, _ in search.asked) <= 0.76


def test_without_an_objective_the_knee_is_closed_in(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    search = Searched(make_traffic, simulate, Target(percentile=90.0), each=0.01, n=3000)
    assert search.run(most=20) is None
    kinds = {kind for _, kind in search.asked}
    assert kinds <= {"grid", "knee", "repeat"} and "repeat" in kinds
    assert len(search.asked) < 20, "it stops by itself"
    loads = sorted(search.points)
    best = max(search.cells(), key=lambda cell: cell.power)
    at = loads.index(best.load)
    assert all(loads[k + 1] / loads[k] < 1.35 for k in range(max(at - 1, 0), min(at + 1, len(loads) - 1)))


def test_a_load_that_the_data_cannot_decide_is_replayed_again(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    search = Searched(make_traffic, simulate, Target(percentile=99.0, limit=0.12), each=0.01, n=400)
    search.run(most=30)
    assert max(len(points) for points in search.points.values()) >= 2
    assert max(len(points) for points in search.points.values()) <= 4


def test_far_beyond_the_limit_is_past_what_is_of_interest(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    point = load_point(simulate(make_traffic(400, 50.0), each=0.01))
    middle = float(np.median(point.latency))
    near, far = (cell_of(1.0, [point], Target(percentile=50.0, limit=middle / k)) for k in (2, 8))
    assert not is_far(near, Target(percentile=50.0, limit=middle / 2))
    assert is_far(far, Target(percentile=50.0, limit=middle / 8))
    assert ceiling([far], Target(percentile=50.0, limit=middle / 8)) == 1.0
    assert ceiling([near], Target(percentile=50.0, limit=middle / 2)) == math.inf
