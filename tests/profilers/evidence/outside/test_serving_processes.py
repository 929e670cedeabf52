"""Several processes behind one address, on simulated time: which one served a request, and what that explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.arrays import Bools, Ints
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.serving_processes import find_processes, served_by
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from tests.profilers.evidence.outside.test_outside_view import MS, arrivals, present, recorded, served, spent
from tests.profilers.samples import sample_columns

PIDS = (71, 72, 73)
USUAL, LONG = 4 * MS, 100 * MS


def service(
    at: Ints,
    end: Ints,
    process: Ints,
    works: Ints | None = None,
    *,
    known: Bools | None = None,
    ports: Ints | None = None,
    helper: int = 0,
    **more: Callable[[int, Ints], np.ndarray],
) -> RunRecord:
    """A run of a service whose processes read a request's work from its begin to ``works``, with an event loop each.

    :param process: ``(n,)`` which of the processes serves each request; each request of one has the same connection.
    :param known: whether the connection of each was seen; ``ports`` other ports than one for each process.
    :param helper: a process that does all the work in place of those that hold connections; -1: none is read apart.
    :param more: by series, its values in each process.
    """
    works = end if works is None else works
    ports = 1_000 + process if ports is None else ports
    times = np.arange(-300 * MS, int(end.max()) + 300 * MS, 5 * MS)
    series: dict[str, tuple[Ints, Any]] = {"server.runq_ns": (times, 0 * times)}
    series["server.cpu_ns"] = (times, spent(times, at, works))
    for pid in sorted({*PIDS, *([helper] if helper else [])}) if helper >= 0 else ():
        own = (process == PIDS.index(pid)) if pid in PIDS and not helper else np.full(len(at), pid == helper)
        cpu = spent(times, at[own], works[own])
        series |= {f"pid.{pid}.cpu_ns": (times, cpu), f"pid.{pid}.runq_ns": (times, 0 * times)}
        series |= {f"pid.{pid}.epoll": (times, 1.0 - (present(times, at[own], works[own]) > 0))}
        series |= {f"pid.{pid}.{name}": (times, values(PIDS.index(pid), times)) for name, values in more.items()}
        on = np.diff(cpu) >= MS
        series[f"pid.{pid}.thread.{pid}"] = (times[1:][on], np.diff(cpu)[on])
    first = np.unique(ports, return_index=True)[1]
    for k in first.tolist():
        if known is None or known[k]:
            series[f"connection.{ports[k]}"] = (at[k : k + 1] + MS, np.array([PIDS[process[k]]]))
    record = recorded(at, end, samples=sample_columns(series), http={"pid": 70, "server": "uvicorn", "workers": PIDS})
    rows = {**record.requests, "client_port": ports, "new_connection": np.isin(np.arange(len(at)), first).astype(int)}
    return replace(record, requests=rows)


def queued(at: Ints, took: Ints, process: Ints) -> Ints:
    """When each request ends, if each process serves one after the other."""
    end = np.zeros(len(at), np.int64)
    for k in np.unique(process):
        end[process == k] = served(at[process == k], took[process == k], 1)
    return end


def tail_ms(found: Diagnosis) -> dict[str, float]:
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause.tail_ms for cause in found.causes}


def test_a_port_that_is_used_again_belongs_to_another_connection() -> None:
    at = np.arange(6) * 100 * MS
    series = {"connection.5": (np.array([MS, 310 * MS]), np.array([71, 72])), "connection.6": (at[:0], at[:0])}
    record = recorded(at, at + MS, samples=sample_columns(series))
    ports, fresh = np.array([5, 5, 6, 5, 5, 0]), np.array([1, 0, 1, 1, 0, 0])
    record = replace(record, requests={**record.requests, "client_port": ports, "new_connection": fresh})
    assert served_by(record).tolist() == [71, 71, 0, 72, 72, 0]


def test_the_last_process_that_held_a_connection_serves_it() -> None:
    """A parent accepts it, and hands it over to one of its workers."""
    series = {"connection.5": (np.array([MS, 2 * MS]), np.array([70, 72]))}
    record = recorded(np.arange(3) * MS, np.arange(3) * MS + MS, samples=sample_columns(series))
    record = replace(record, requests={**record.requests, "client_port": np.full(3, 5)})
    assert served_by(record).tolist() == [72] * 3


def test_a_request_that_computes_in_one_of_several_event_loops_is_named() -> None:
    rng, at = np.random.default_rng(3), arrivals(40.0, n=1_200)
    process, long = rng.integers(0, 3, len(at)), rng.random(len(at)) < 0.03
    end = queued(at, USUAL + np.where(long, LONG, 0), process)
    found = tail_ms(diagnose(service(at, end, process), bootstrap=50))
    computed = (LONG - USUAL) / MS * 0.6
    assert max(found, key=lambda name: found[name]) == "service.compute" and found["service.compute"] > computed
    unseen = tail_ms(diagnose(service(at, end, process, known=np.zeros(len(at), bool)), bootstrap=50))
    assert "service.compute" not in unseen


def test_requests_wait_for_those_in_their_own_process_while_others_are_idle() -> None:
    """Two of three processes got one connection in twelve each."""
    at = arrivals(60.0, n=3_000)
    process = np.random.default_rng(5).choice(3, len(at), p=[10 / 12, 1 / 12, 1 / 12])
    took = np.random.default_rng(6).integers(9 * MS, 11 * MS, len(at))
    end = queued(at, took, process)
    found = diagnose(service(at, end, process), percentile=90, bootstrap=50)
    assert found.verdict == "traffic.burst"
    assert found.service is not None and found.service.beside_idle is not None and found.service.beside_idle > 0.9
    assert [one.pid for one in found.service.processes] == list(PIDS)
    changes = [each.change for each in found.advice if each.cause == "traffic.burst"]
    assert any("--timeout-keep-alive" in change and "while another one had none" in change for change in changes)


def test_waits_that_one_queue_for_all_processes_would_not_have_are_no_chance() -> None:
    at = arrivals(45.0, n=3_000)
    process = np.random.default_rng(5).integers(0, 3, len(at))
    end = queued(at, np.random.default_rng(6).integers(9 * MS, 11 * MS, len(at)), process)
    assert diagnose(service(at, end, process), percentile=95, bootstrap=50).verdict == "traffic.burst"


def test_a_process_without_a_connection_is_idle_all_the_time() -> None:
    at = arrivals(40.0, n=2_000)
    process, took = np.zeros(len(at), np.int64), np.random.default_rng(6).integers(9 * MS, 11 * MS, len(at))
    took[::50] = LONG
    record = service(at, queued(at, took, process), process)
    figures = diagnose(record, percentile=90, bootstrap=50).service
    assert figures is not None and (figures.unused, figures.processes[0].requests) == (2, len(at))
    assert figures.beside_idle is not None and figures.beside_idle > 0.8
    helpers = replace(record, meta=record.meta.updated(http={**record.meta.http, "workers": (72, 73)}))
    figures = diagnose(helpers, percentile=90, bootstrap=50).service
    assert figures is not None and (figures.unused, figures.processes, figures.beside_idle) == (0, (), None)


def test_another_process_s_run_queue_delay_and_stops_explain_nothing() -> None:
    """One process is stopped for 200 ms every two seconds, of which its own requests get slow."""
    at, took = arrivals(40.0, n=1_200), USUAL
    process = np.random.default_rng(5).integers(0, 3, len(at))
    stops = np.arange(1_000 * MS, int(at[-1]), 2_000 * MS)
    end = at + took
    for stop in stops:
        own = (process == 1) & (end > stop) & (at < stop + 200 * MS)
        end[own] = stop + 200 * MS + took

    def stopped(k: int, times: Ints) -> np.ndarray:
        return spent(times, stops, stops + 200 * MS) * (k == 1)

    record = service(at, end, process, at + took, stopped_ns=stopped)
    found = diagnose(record, bootstrap=50)
    assert "external.dependency" not in {cause.cause for cause in found.causes if cause.named}
    (unexplained,) = (cause for cause in found.causes if cause.cause == "unexplained")
    assert "the process was stopped for" in unexplained.evidence
    assert any("Process 72, 1 of 3 that serve, had" in note for note in found.notes)


@pytest.mark.parametrize(
    ("known", "helper", "words"),
    [(True, 0, ""), (True, -1, "are too many"), (False, 0, "is known for"), (True, 74, "such as 74, had 100 %")],
    ids=["known", "not read apart", "behind a proxy", "others work"],
)
def test_what_is_not_known_is_said(known: bool, helper: int, words: str) -> None:
    at = arrivals(40.0, n=600)
    process = np.random.default_rng(5).integers(0, 3, len(at))
    seen = np.full(len(at), True) if known else np.random.default_rng(6).random(len(at)) < 0.5
    record = service(at, at + USUAL, process, known=seen, ports=2_000 + np.arange(len(at)), helper=helper)
    processes, unknown = find_processes(record)
    assert words in unknown and processes == (() if words else PIDS)
    assert (unknown in diagnose(record, bootstrap=20).notes) == bool(words)


def test_a_call_that_blocks_one_of_several_loops_holds_up_its_own_requests() -> None:
    """Requests wait side by side; twice a second, a call in one of the loops waits itself."""
    at, rng = arrivals(120.0, n=2_000), np.random.default_rng(5)
    process, end = rng.integers(0, 3, len(at)), at + rng.integers(20 * MS, 40 * MS, len(at))
    blocks = np.arange(1_000 * MS, int(at[-1]), 500 * MS)
    for k, begin in enumerate(blocks.tolist()):
        held = (process == k % 3) & (end > begin) & (at < begin + LONG)
        end[held] = begin + LONG + rng.integers(0, 4 * MS, np.count_nonzero(held))

    def waits_for_events(k: int, times: Ints) -> np.ndarray:
        mine = blocks[k::3]
        return 1.0 - (present(times, mine, mine + LONG) > 0)

    record = service(at, end, process, at + MS, epoll=waits_for_events)
    assert diagnose(record, bootstrap=50).verdict == "service.loop"
