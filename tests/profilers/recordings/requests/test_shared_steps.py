"""Streams of one engine, whose step takes 10 ms and something for each stream, or for a while."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.recordings.requests.request_table import Gaps, RequestTable
from latfix.profilers.recordings.requests.shared_steps import SharedSteps, shared_steps
from tests.profilers.recordings.requests.test_request_accounts import diagnosed

MS = 1_000_000


def engine(each_ms: float, swing: float = 0.0, jitter_ms: float = 0.2) -> tuple[RequestTable, list[list[int]]]:
    """A recording of streams, and how many were in each step of each stream.

    :param each_ms: for each stream in a step; ``swing`` by which share all steps are longer or shorter for a while.
    """
    rng, n = np.random.default_rng(2), 300
    arrival = np.cumsum(rng.exponential(350.0, n))
    left = rng.integers(20, 120, n)
    tokens: list[list[float]] = [[] for _ in range(n)]
    together: list[list[int]] = [[] for _ in range(n)]
    now, came, running = 0.0, 0, list[int]()
    while came < n or running:
        new = came < n and arrival[came] <= now
        if not running and not new:
            now = float(arrival[came])
            new = True
        step = 10.0 * (1 + swing * np.sin(now / 3_000)) + each_ms * len(running) + 20 * new
        now += step * float(rng.lognormal(0, 0.02))
        for stream in running:
            tokens[stream].append(now)
            together[stream].append(len(running))
        running = [stream for stream in running if len(tokens[stream]) <= left[stream]]
        if new:
            tokens[came].append(now)
            running.append(came)
            came += 1
    seen = [np.sort(np.array(each) + rng.uniform(0, jitter_ms, len(each))) for each in tokens]
    row = np.repeat(np.arange(n), [len(each) - 1 for each in seen])
    start = np.concatenate([each[:-1] for each in seen]) * MS
    length = np.concatenate([np.diff(each) for each in seen]) * MS
    gaps = Gaps(row=row, start_ns=start.astype(np.int64), length_ns=length.astype(np.int64))
    first, ended = (np.array([each[k] * MS for each in seen]).astype(np.int64) for k in (0, -1))
    at = np.rint(arrival * MS).astype(np.int64)
    table = RequestTable(
        arrival_ns=at,
        latency_ns=ended - at,
        status=np.zeros(n, np.int8),
        first_ns=first - at,
        features={"output_tokens": left.astype(np.float64)},
        gaps=gaps,
    )
    return table, together


def found_in(table: RequestTable) -> SharedSteps | None:
    assert table.gaps is not None and table.first_ns is not None
    begun, ended = table.arrival_ns + table.first_ns, table.arrival_ns + table.latency_ns
    return shared_steps(table.gaps, begun, ended, float(np.median(table.gaps.length_ns)))


@pytest.mark.parametrize("each_ms", [1.0, 3.0])
def test_what_further_streams_add_to_a_step_is_found(each_ms: float) -> None:
    table, together = engine(each_ms)
    found = found_in(table)
    assert found is not None and found.each_ns == pytest.approx(each_ms * MS, rel=0.1)
    lost = np.array([each_ms * MS * sum(each - found.usual for each in steps) for steps in together])
    assert np.abs(found.lost_ns - lost).mean() < 0.1 * np.abs(lost).mean()


@pytest.mark.parametrize("swing", [0.0, 0.6])
def test_a_server_that_is_slow_for_a_while_has_more_streams_too(swing: float) -> None:
    assert found_in(engine(0.0, swing)[0]) is None


def test_it_is_listed_and_leaves_little_unexplained() -> None:
    listed = {cause.cause: cause for cause in diagnosed(engine(2.0)[0]).causes}
    assert listed["batching.size"].named and "open stream adds 1.9" in listed["batching.size"].evidence
    assert listed["unexplained"].tail_share < 0.2
