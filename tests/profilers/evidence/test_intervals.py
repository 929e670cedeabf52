"""Sets of intervals, compared with counting every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latfix.profilers.evidence.intervals import Intervals

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8)


@given(known=spans, queried=spans)
def test_covered_counts_every_moment_once(known: list[tuple[int, int]], queried: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([pair[k] for pair in known], np.int64) for k in range(2))
    begin, took = (np.array([pair[k] for pair in queried], np.int64) for k in range(2))
    inside = {moment for start, length in known for moment in range(start, start + length)}
    expected = [sum(moment in inside for moment in range(start, start + length)) for start, length in queried]
    found = Intervals.merged(starts, lengths).covered(begin, begin + took)
    assert found.tolist() == expected
