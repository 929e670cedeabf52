"""The traffic in parts: all of it, in order, none empty, as long as the budget allows."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.runners.gate.paired_rounds import WANTED_ROUNDS, cut, part_seconds
from latfix.traffic.schedule import Traffic


def traffic(seconds: float, rate: float = 50.0, gap: tuple[float, float] = (0, 0)) -> Traffic:
    arrivals = np.arange(0, seconds, 1 / rate)
    arrivals = arrivals[(arrivals < gap[0]) | (arrivals >= gap[1])]
    return Traffic.plain((arrivals * 1e9).astype(np.int64))


@pytest.mark.parametrize("seconds", [1.0, 3.0, 7.0, 100.0])
def test_parts_are_the_whole_in_order(seconds: float) -> None:
    whole = traffic(10.0)
    parts = cut(whole, seconds)
    assert [name for part in parts for name in part.ids] == whole.ids
    assert len(parts) == max(int(9.98 / seconds), 1)
    assert all(part.duration_s <= max(seconds * 2, 10 / len(parts)) for part in parts)


def test_a_part_without_a_request_is_left_out() -> None:
    parts = cut(traffic(10.0, gap=(2, 5)), 0.99)
    assert len(parts) == 7 and all(len(part) for part in parts)


def test_a_budget_holds_the_rounds_that_are_wanted() -> None:
    seconds = part_seconds(traffic(60.0), 300.0, 3.0)
    assert WANTED_ROUNDS * 2 * (seconds + 3.0) == pytest.approx(300)


def test_a_short_budget_still_shows_some_requests() -> None:
    assert part_seconds(traffic(60.0, rate=2.0), 30.0, 3.0) == pytest.approx(15, rel=0.05)
    assert part_seconds(traffic(1.0), 300.0, 3.0) == pytest.approx(1, rel=0.05)
