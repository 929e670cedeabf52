"""Cuts of a record, contents of a chunk, and carried-over backlogs."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.arrays import Ints
from latfix.cause_catalogue import CATALOGUE
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.chunk_ledgers import carry_over, rebased, wait_shares
from latfix.profilers.chunked.record_chunks import Chunk, Cutter, WholeRecord, before_first_idle, joined
from latfix.results.diagnosis import Ledger
from tests.profilers.simulated_runs import simulate

_IDS = tuple(cause.id for cause in CAUSES)


def _cut(arrival: Ints, end: Ints, batch: Ints, size: int, at_once: int) -> list[Chunk]:
    cutter = Cutter(size)
    for first in range(0, len(arrival), at_once):
        part = slice(first, first + at_once)
        cutter.add(arrival[part], end[part], batch[part])
    return cutter.chunks()


@pytest.mark.parametrize("at_once", [7, 64, 1_000])
def test_cuts_lie_where_every_earlier_request_had_ended(at_once: int) -> None:
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.integers(1, 30, 1_000))
    end = arrival + rng.integers(1, 40, 1_000)
    chunks = _cut(arrival, end, np.arange(1_000), 60, at_once)
    assert [chunk.first for chunk in chunks[1:]] == [chunk.last for chunk in chunks[:-1]]
    assert (chunks[0].first, chunks[-1].last) == (0, 1_000)
    for chunk in chunks[1:]:
        assert not chunk.busy
        assert end[: chunk.first].max() == chunk.reach_ns <= arrival[chunk.first]
    assert all(60 <= chunk.last - chunk.first <= 120 for chunk in chunks[:-1])


@pytest.mark.parametrize("at_once", [7, 64, 1_000])
def test_a_service_that_is_never_idle_is_cut_between_batches(at_once: int) -> None:
    arrival = np.arange(1_000)
    end = arrival + 50 + arrival  # the backlog grows
    chunks = _cut(arrival, end, arrival // 4, 100, at_once)
    assert len(chunks) >= 5
    for chunk in chunks[1:]:
        assert chunk.busy
        assert chunk.first % 4 == 0
        assert chunk.reach_ns == end[chunk.first - 1]
    assert all(100 <= chunk.last - chunk.first <= 200 for chunk in chunks[:-1])


def test_requests_before_the_first_idle_moment() -> None:
    record = simulate(n=50, arrivals_ms=np.arange(50) * 20.0)
    end = record.requests["arrival_ns"] + record.requests["latency_ns"]
    assert not before_first_idle(Chunk(first=0, last=50, reach_ns=0, busy=False), record).any()
    late = int(record.requests["arrival_ns"][20]) - 1
    held = before_first_idle(Chunk(first=0, last=50, reach_ns=late, busy=True), record)
    assert held[:20].all()
    assert not held[20:].any()
    never = before_first_idle(Chunk(first=0, last=50, reach_ns=int(end.max()) + 1, busy=True), record)
    assert never.all()


def test_a_stretch_holds_what_belongs_to_it() -> None:
    record = simulate(n=300, max_batch=4, rate=200.0, compute_faults={40: ("gc", 20.0), 250: ("gc", 20.0)})
    part = WholeRecord(record).stretch(100, 200)
    assert part.first_index == 100
    assert part.traffic.ids == record.traffic.ids[100:200]
    np.testing.assert_array_equal(part.requests["index"], np.arange(100, 200))
    assert set(part.batches["batch_id"]) == set(part.requests["batch_id"])
    assert not len(part.events["t_ns"])
    assert len(WholeRecord(record).stretch(200, 300).events["t_ns"]) == 1
    assert WholeRecord(record).event_totals()["gc"][0] == 2


def test_joined_stretches_are_renumbered() -> None:
    faults = dict.fromkeys((10, 60, 150), ("gc", 20.0))
    record = simulate(n=300, max_batch=4, rate=200.0, compute_faults=faults)
    record.events["request"][:] = sorted(faults)  # each names the request whose batch it struck
    source = WholeRecord(record)
    both = joined([source.stretch(0, 40), source.stretch(120, 200)])
    np.testing.assert_array_equal(both.requests["index"], np.arange(120))
    assert both.traffic.ids == record.traffic.ids[:40] + record.traffic.ids[120:200]
    assert np.all(np.diff(both.batches["batch_id"]) > 0)
    np.testing.assert_array_equal(both.requests["arrival_ns"][40:], record.requests["arrival_ns"][120:200])
    named = both.events["request"][both.events["request"] >= 0]
    assert [both.traffic.ids[k] for k in named] == ["r10", "r150"]


def _ledger(n: int) -> Ledger:
    rng = np.random.default_rng(1)
    own = rng.integers(0, 1_000, (len(_IDS), n))
    propagated = rng.integers(0, 1_000, (len(_IDS), n))
    return Ledger(
        request=np.arange(n),
        latency_ns=own.sum(axis=0) + propagated.sum(axis=0) + 77,
        reference_ns=77,
        causes=_IDS,
        own_ns=own,
        propagated_ns=propagated,
        classes=tuple(CATALOGUE[cause].evidence_class for cause in _IDS),
    )


def test_carried_over_waits_move_from_unexplained_to_the_backlogs_causes() -> None:
    ledger = _ledger(10)
    closure = np.arange(10) * 1_001 - 2_000
    early = np.arange(10) < 7
    shares = np.zeros(len(_IDS))
    gc, overload = _IDS.index("python.gc"), _IDS.index("traffic.overload")
    shares[[gc, overload]] = 0.25, 0.75
    carried = carry_over(ledger, closure, early, shares)
    assert carried.conservation_error_ns() == 0
    moved = np.where(early, np.maximum(closure, 0), 0)
    np.testing.assert_array_equal(ledger.own_ns[-1] - carried.own_ns[-1], moved)
    np.testing.assert_array_equal(carried.propagated_ns[gc] - ledger.propagated_ns[gc], moved // 4)
    np.testing.assert_array_equal(carried.own_ns[overload] - ledger.own_ns[overload], moved - moved // 4)


def test_shares_are_those_of_the_last_requests_waits() -> None:
    ledger = _ledger(400)
    shares = wait_shares(ledger)
    assert shares.sum() == pytest.approx(1.0)
    gc = _IDS.index("python.gc")
    waits = ledger.propagated_ns[:, -256:].sum() + sum(
        ledger.own_ns[_IDS.index(cause), -256:].sum()
        for cause in ("traffic.burst", "traffic.overload", "traffic.priority")
    )
    assert shares[gc] == pytest.approx(ledger.propagated_ns[gc, -256:].sum() / waits)
    moved = rebased(_ledger(5), 100)
    assert moved.reference_ns == 100 and moved.conservation_error_ns() == 0
