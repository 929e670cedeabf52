"""Times in which a service behind an address answered no request, on simulated time: prefill, collections, others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.standstills import find_standstills
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import EVENT_FIELDS, Columns
from tests.profilers.evidence.outside.test_outside_view import MS, N, arrivals, held_up, present, recorded, spent
from tests.profilers.samples import sample_columns

Series = tuple[np.ndarray, np.ndarray]
_COLLECTIONS = 'metrics.python_gc_collections_total{generation="2"}'


def streams(long: np.ndarray, stalls: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, Columns]:
    """Streams of 40 parts, 10 ms apart; all stall for 200 ms from certain times on, and long prompts take as long.

    :returns: the first bytes, the last bytes and the events.
    """
    n = len(at)
    first, end = np.zeros(n, np.int64), np.zeros(n, np.int64)
    gaps: list[list[int]] = []
    for k in range(n):
        t, parts = int(at[k]) + (200 * MS if long[k] else 5 * MS), []
        for _ in range(40):
            inside = stalls[(stalls <= t) & (t < stalls + 200 * MS)]
            t = int(inside[0]) + 200 * MS + 100 * k if len(inside) else t
            parts.append(t)
            t += 10 * MS
        first[k], end[k] = parts[0], parts[-1]
        gaps.append((np.diff(parts) // 1000).tolist())
    events = {name: np.zeros(n, np.int64) for name in EVENT_FIELDS}
    events |= {"t_ns": first, "duration_ns": end - first, "request": np.arange(n)}
    details = np.empty(n, dtype=object)
    details[:] = [{"gaps_us": each} for each in gaps]
    return first, end, {**events, "kind": np.full(n, "stream", dtype=object), "detail": details}


def streamed(at: np.ndarray, first: np.ndarray, end: np.ndarray, **parts: Any) -> RunRecord:
    record = recorded(at, end, **parts)
    record.requests["compute_ns"] = first - at
    record.requests["finish_ns"] = end - first
    record.requests["chunks"] += 40
    return record


@pytest.mark.parametrize("prefills", [True, False])
def test_standstills_by_prefill_and_others(prefills: bool) -> None:
    at = arrivals(20.0, n=400)
    long = (np.arange(400) % 25 == 7) & prefills
    stalls = at[long] if prefills else np.arange(1_003, 19_000, 1_250) * MS
    first, end, events = streams(long, stalls, at)
    still = find_standstills(at, first, end, np.arange(400), events)
    assert len(still.everyone) >= 10
    assert (len(still.prefill) >= 10) is prefills
    assert still.newcomers.any() == prefills


def parts_of(found: Diagnosis) -> dict[str, float]:
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause.tail_share for cause in found.causes}


@pytest.mark.parametrize("watched", [True, False])
def test_a_prefill_is_its_own_request_s_input_and_the_others_batch(watched: bool) -> None:
    """The process is idle meanwhile, as behind a device. Long prompts take as long where no others are served."""
    at = np.sort(np.concatenate([arrivals(8.0, n=900), np.arange(1, 12) * 10_000 * MS + 5_000 * MS]))
    long = np.arange(len(at)) % 60 == 7
    first, end, events = streams(long, at[long], at)
    more = {"samples": idle(end)} if watched else {}
    found = diagnose(
        streamed(at, first, end, events=events, features={"input_tokens": np.where(long, 600, 10)}, **more),
        percentile=90.0,
        bootstrap=50,
    )
    by_cause = parts_of(found)
    assert by_cause["batching.size"] > 0.3
    assert by_cause["batching.size"] + by_cause["input.size"] > 0.85
    assert by_cause.get("external.dependency", 0.0) < 0.05
    own = found.ledger.own_ns[found.ledger.causes.index("input.size")]
    assert float(np.median(own[long])) > 150 * MS
    assert any(cause.named for cause in found.causes if cause.cause == "batching.size")


def test_pauses_of_a_service_that_does_not_stream_are_no_prefill() -> None:
    """Each ends with the answer of a request that came at its start."""
    at = np.sort(np.concatenate([arrivals(30.0, n=600), np.arange(1, 19) * 1_000 * MS]))
    stops = np.arange(1, 19) * 1_000 * MS
    end = at + 10 * MS
    for stop in stops:
        end = np.where((end > stop) & (at < stop + 200 * MS), stop + 200 * MS + (end - stop) // 50, end)
    found = parts_of(diagnose(recorded(at, end), bootstrap=50))
    assert found.get("batching.size", 0.0) == 0.0
    assert found["unexplained"] > 0.9


def test_streams_of_one_part_each_stand_still_as_plain_answers_do() -> None:
    at = arrivals(100.0)
    end, stops = held_up(at, np.full(N, 10 * MS))
    _, _, events = streams(np.zeros(N, dtype=bool), at[:0], at)
    for detail in events["detail"]:
        detail["gaps_us"] = []
    still = find_standstills(at, end, end, np.arange(N), {**events, "t_ns": end})
    assert len(still.everyone) > len(stops) / 2


def idle(end: np.ndarray, **more: Series) -> Columns:
    """Counters of a process that never runs."""
    return readings(end, np.zeros(0, np.int64), more)


def readings(end: np.ndarray, stops: np.ndarray, more: Mapping[str, Series]) -> Columns:
    """Counters of a process that computes on one thread for 150 ms from certain times on, and hardly otherwise."""
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    zero = np.zeros(len(times))
    series = {"server.cpu_ns": (times, spent(times, stops, stops + 150 * MS)), "server.runq_ns": (times, zero)}
    return sample_columns(series | dict(more))


def scraped(stops: np.ndarray, end: np.ndarray, extra: int = 0) -> Series:
    """A counter of collections, read once a second: one for each standstill, and others that stop nothing."""
    times = np.arange(0, int(end.max()) + 1_000 * MS, 1_000 * MS)
    return times, np.searchsorted(stops, times) + extra * np.arange(len(times)).astype(float)


@pytest.mark.parametrize(
    ("waiters", "counted", "cause"),
    [
        (True, None, "python.gil"),  # it keeps the interpreter's lock, for whatever it does
        (True, 0, "python.gc"),
        (False, 0, "python.gc"),
        (True, 5, "python.gil"),  # far more collections than standstills say nothing
        (False, None, "unexplained"),
    ],
)
def test_one_thread_that_computes_while_all_requests_stand_still(
    waiters: bool, counted: int | None, cause: str
) -> None:
    at = arrivals(100.0)
    end, stops = held_up(at, np.full(N, 10 * MS))
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    held = present(times, stops, stops + 150 * MS) > 0
    more: dict[str, Series] = {}
    if waiters:  # they wake up every 5 ms, so few readings show them
        more["server.futex_python"] = (times, (held & (np.arange(len(times)) % 6 == 0)).astype(float))
    if counted is not None:
        more[_COLLECTIONS] = scraped(stops, end, counted)
    found = diagnose(recorded(at, end, samples=readings(end, stops, more)), bootstrap=50)
    by_cause = parts_of(found)
    assert max(by_cause, key=lambda name: by_cause[name]) == cause
    assert by_cause[cause] > 0.8
    told = next(one.evidence for one in found.causes if one.cause == cause)
    assert ("one of its threads computed" in told) if cause == "unexplained" else ("one thread" in told)


def test_an_idle_process_keeps_no_lock() -> None:
    at = arrivals(100.0)
    end, stops = held_up(at, np.full(N, 10 * MS))
    counters = idle(end, **{_COLLECTIONS: scraped(stops, end)})
    found = parts_of(diagnose(recorded(at, end, samples=counters), bootstrap=50))
    assert found.get("python.gc", 0.0) == 0.0 and found.get("python.gil", 0.0) == 0.0
    assert found["unexplained"] > 0.9
