"""Sets of intervals, compared with counting every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latfix.profilers.evidence.intervals import Intervals, Overlaps

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8)


@given(known=spans, queried=spans)
def test_covered_counts_every_moment_once(known: list[tuple[int, int]], queried: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([pair[k] for pair in known], np.int64) for k in range(2))
    begin, took = (np.array([pair[k] for pair in queried], np.int64) for k in range(2))
    inside = {moment for start, length in known for moment in range(start, start + length)}
    expected = [sum(moment in inside for moment in range(start, start + length)) for start, length in queried]
    found = Intervals.merged(starts, lengths).covered(begin, begin + took)
    assert found.tolist() == expected


@given(known=spans, begin=st.integers(0, 80), length=st.integers(0, 30))
def test_no_span_that_touches_an_interval_is_left_out(known: list[tuple[int, int]], begin: int, length: int) -> None:
    start, took = (np.array([pair[k] for pair in known], np.int64) for k in range(2))
    near = Overlaps(start, start + took).near(begin, begin + length)
    touch = (start <= begin + length) & (start + took >= begin)
    assert near[touch[near]].tolist() == np.flatnonzero(touch).tolist()


def test_spans_far_from_an_interval_are_not_looked_at() -> None:
    start = np.random.default_rng(1).permutation(1_000) * 10
    assert start[Overlaps(start, start + 25).near(5_000, 5_010)].tolist() == sorted(
        (at for at in start.tolist() if 4_975 <= at <= 5_010), key=start.tolist().index
    )
