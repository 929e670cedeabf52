"""Copies, wrong dates and impossible parts of a log are noted, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latfix.arrays import Ints
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.row_checks import with_checked_rows
from tests.profilers.recordings.requests.simulated_log import simulated

MS = 1_000_000
HOUR_NS = 3_600 * 10**9


def of_rows(table: RequestTable, rows: Ints) -> RequestTable:
    return replace(
        table,
        arrival_ns=table.arrival_ns[rows],
        latency_ns=table.latency_ns[rows],
        status=table.status[rows],
        features={name: column[rows] for name, column in table.features.items()},
        parts={name: column[rows] for name, column in table.parts.items()},
    ).sorted()


def notes(table: RequestTable) -> tuple[str, ...]:
    return with_checked_rows(table).notes


@pytest.mark.parametrize("kind", ["quiet", "burst", "dependency"])
def test_a_sound_log_has_no_note(kind: str) -> None:
    assert notes(simulated(kind, 1)) == ()


def test_equal_rows_by_chance_are_no_copies() -> None:
    # 2,000 requests a second in whole milliseconds: two per time, and most latencies are 1 or 2 ms.
    rng = np.random.default_rng(1)
    n = 20_000
    arrival = np.sort(rng.integers(0, n // 2, n)) * MS
    table = RequestTable(
        arrival_ns=arrival - arrival[0], latency_ns=rng.integers(1, 4, n) * MS, status=np.zeros(n, np.int8)
    )
    assert notes(table) == ()


def test_latencies_of_nothing_but_0_are_noted() -> None:
    table = simulated("quiet", 1, n=100)
    assert notes(replace(table, latency_ns=np.zeros_like(table.latency_ns)))[0].startswith("All latencies are 0")


@pytest.mark.parametrize(("limit_ms", "unit_ns"), [(100, 1_000), (250, MS), (2_000, 10 * MS)])
def test_a_log_of_slow_requests_is_one(limit_ms: int, unit_ns: int) -> None:
    """Whatever is above the limit is there; the whole log, or one with a floor of its own, is no such log."""
    rng = np.random.default_rng(4)
    every = np.rint(limit_ms * MS * rng.lognormal(-0.8, 0.6, 20_000) / unit_ns).astype(np.int64) * unit_ns
    floor = np.rint(limit_ms * MS * (1.07 + rng.exponential(0.2, 2_000)) / unit_ns).astype(np.int64) * unit_ns
    for latency, said in ((every[every >= limit_ms * MS], True), (every, False), (floor, False)):
        arrival = np.arange(len(latency)) * 3_600 * MS
        table = RequestTable(arrival_ns=arrival, latency_ns=latency, status=np.zeros(len(latency), np.int8))
        assert (
            any(f"No latency is below {limit_ms:,} ms, and many are just above" in note for note in notes(table))
            == said
        )


def test_equal_lines_of_one_second_are_no_copies() -> None:
    # 50 requests a second, logged when they end, in whole seconds, with latencies of few different milliseconds.
    rng = np.random.default_rng(2)
    latency = rng.integers(20, 60, 4_000) * MS
    arrival = np.sort(rng.integers(0, 80, 4_000)) * 1_000 * MS - latency
    table = RequestTable(
        arrival_ns=arrival,
        latency_ns=latency,
        status=np.zeros(4_000, np.int8),
        resolution_ns=1_000 * MS,
    ).sorted()
    assert notes(table) == ()


def test_copies_are_noted() -> None:
    table = simulated("quiet", 1, n=2_000)
    twice = of_rows(table, np.concatenate([np.arange(2_000), np.arange(500, 700)]))
    assert notes(twice)[0].startswith("200 of 2,200 requests repeat another one's")
    # Requests with ids of their own are no copies.
    assert notes(replace(twice, ids=tuple(map(str, range(2_200))))) == ()


@pytest.mark.parametrize("early", [True, False])
def test_a_wrong_date_is_noted(early: bool) -> None:
    table = simulated("quiet", 1, n=500)
    arrival = table.arrival_ns.copy()
    arrival[250] += -400 * HOUR_NS if early else 400 * HOUR_NS
    moved = replace(table, arrival_ns=arrival).sorted()
    dated = replace(moved, start_unix_ns=1_700_000_000 * 10**9)
    assert "1 request arrived 16 days, 15:5" in notes(moved)[0]
    assert ("before" if early else "after") in notes(moved)[0]
    assert ("1 request (2023-11-14 22:13:20 UTC)" if early else "1 request (2023-12-01 14:1") in notes(dated)[0]


def test_a_night_between_two_days_is_no_wrong_date() -> None:
    table = simulated("quiet", 1, n=500)
    arrival = table.arrival_ns + np.where(np.arange(500) < 200, 0, 14 * HOUR_NS)
    assert notes(replace(table, arrival_ns=arrival)) == ()


def test_parts_stay_within_the_latency() -> None:
    table = simulated("dependency", 1, n=1_000)
    wrong = {
        name: np.where(np.arange(1_000) < 30, 2 * table.latency_ns, column) for name, column in table.parts.items()
    }
    checked = with_checked_rows(replace(table, parts=wrong))
    assert "db: longer than the whole latency in 30 requests of 1,000" in checked.notes[0]
    assert (checked.parts["db"] <= checked.latency_ns).all()
    assert (checked.parts["db"][30:] == table.parts["db"][30:]).all()


@pytest.mark.parametrize(("seconds", "noted"), [(1e-6, True), (1.0, False)])
def test_a_single_copy_is_noted_if_chance_does_not_make_it(seconds: float, noted: bool) -> None:
    """Of many requests in the same second with the same few latencies, some repeat each other."""
    rng = np.random.default_rng(2)
    unit = round(1e9 * seconds)
    at = np.sort(rng.integers(0, 300 * 10**9, 3000)) // unit * unit
    took = rng.integers(10**7, 2 * 10**7, 3000) // (10**6 if seconds == 1.0 else 1) * (10**6 if seconds == 1.0 else 1)
    at, took = np.append(at, at[77]), np.append(took, took[77])
    table = RequestTable(
        arrival_ns=at, latency_ns=took, status=np.zeros(len(at), np.int8), resolution_ns=unit
    ).sorted()
    notes = with_checked_rows(table).notes
    assert any("1 of 3,001 requests repeats" in note for note in notes) == noted


def test_repeated_lines_of_a_log_in_whole_seconds_are_noted() -> None:
    # Half a minute of a log with answers of many sizes is there twice: all copies count, in any order.
    rng = np.random.default_rng(4)
    latency = rng.integers(20, 60, 6_000) * MS
    table = RequestTable(
        arrival_ns=np.sort(rng.integers(0, 150, 6_000)) * 1_000 * MS - latency,
        latency_ns=latency,
        status=np.zeros(6_000, np.int8),
        features={"bytes": rng.integers(500, 4_000, 6_000).astype(np.float64)},
        resolution_ns=1_000 * MS,
    )
    twice = of_rows(table, np.concatenate([np.arange(6_000), np.arange(2_000, 2_400)]))
    assert notes(table.sorted()) == ()
    (note,) = notes(twice)
    assert note.startswith("400 of 6,400 requests repeat")
