"""Requests for which a thread of a service behind an address computes long, on simulated time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latfix.arrays import Bools, Ints
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.serving_threads import find_serving_threads
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import (
    MS,
    arrivals,
    present,
    recorded,
    served,
    spent,
)
from tests.profilers.samples import sample_columns

N, USUAL, LONG = 800, 4 * MS, 300 * MS
EACH = np.arange(N)
SOME: Bools = np.random.default_rng(7).random(N) < 0.03


def read(thread: Ints, start: Ints, stop: Ints, until: int, **more: Callable[[Ints], np.ndarray]) -> Columns:
    """Readings every 5 ms of threads that compute from ``start`` to ``stop``, and nothing else unless it is given."""
    times = np.arange(-300 * MS, until + 300 * MS, 5 * MS)
    series = {"server.cpu_ns": (times, spent(times, start, stop)), "server.runq_ns": (times, 0 * times)}
    series |= {f"server.{name}": (times, values(times)) for name, values in more.items()}
    for number in np.unique(thread):
        own = thread == number
        ran = np.diff(spent(times, start[own], stop[own]))
        on = ran >= MS
        series[f"server.thread.{number}"] = (times[1:][on], ran[on])
    return sample_columns(series)


def lanes(at: Ints, end: Ints) -> Ints:
    """The lowest free number for each request while it is there."""
    free, lane = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    for k in np.argsort(at, kind="stable").tolist():
        lane[k] = np.flatnonzero(free <= at[k])[0]
        free[lane[k]] = end[k]
    return lane


def shares(found: Diagnosis) -> dict[str, float]:
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause.tail_share for cause in found.causes}


def test_a_request_whose_own_thread_computes_long_is_named() -> None:
    at = arrivals(15.0, n=N)
    end = at + np.where(SOME, LONG, 0) + USUAL
    found = diagnose(recorded(at, end, samples=read(lanes(at, end), at, end, int(end.max()))), bootstrap=50)
    assert found.verdict == "service.compute" and shares(found)["service.compute"] > 0.9
    cause = next(cause for cause in found.causes if cause.cause == "service.compute")
    assert cause.requests == np.count_nonzero(SOME) and "CPU time of the thread that served it" in cause.evidence


def test_it_is_found_among_many_short_requests_of_other_threads() -> None:
    """As many are answered meanwhile as would explain its time, if its own thread had served them."""
    at, usual = arrivals(120.0, n=N), 8 * MS
    end = at + np.where(SOME, LONG // 3, 0) + usual
    computed = find_serving_threads(read(np.arange(N) % 40, at, end, int(end.max())), at, end, end).computed
    assert np.mean(computed[SOME] > LONG // 4) > 0.9 and not computed[~SOME].any()


def test_a_thread_that_serves_one_after_the_other_computes_for_each_of_them() -> None:
    """Of 20 requests on the same connection, 20 ms apart, the first and the third compute long."""
    long = np.isin(np.arange(N) % 20, (0, 2))
    took = np.where(long, LONG, 0) + USUAL
    at = np.cumsum(np.concatenate([[0], (took + 20 * MS)[:-1]]) + np.where(np.arange(N) % 20, 0, 500 * MS))
    computed = find_serving_threads(
        read(0 * at, at, at + took, int(at[-1] + LONG)), at, at + took, at + took
    ).computed
    assert np.array_equal(computed > 0, long) and computed[long] == pytest.approx(LONG, rel=0.05)


@pytest.mark.parametrize("computes_first", [True, False])
def test_of_a_request_that_computes_and_waits_only_the_computation_counts(computes_first: bool) -> None:
    at = arrivals(15.0, n=N)
    end = at + np.where(SOME, LONG, 0) + USUAL
    half = np.where(SOME, LONG // 2, 0)
    start, stop = (at, end - half) if computes_first else (at + half, end)
    found = shares(
        diagnose(recorded(at, end, samples=read(lanes(at, end), start, stop, int(end.max()))), bootstrap=50)
    )
    assert found["service.compute"] == pytest.approx(0.5, abs=0.1)
    assert found["external.dependency"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("turn", [100 * MS, 10 * MS], ids=["at_a_stretch", "in_turns"])
def test_requests_that_sleep_while_another_thread_computes_do_not_compute(turn: int) -> None:
    """A background thread computes for 100 ms every second, whatever requests there are."""
    at = arrivals(15.0, n=N)
    end = at + np.where(SOME, LONG, 0) + USUAL
    parts = np.arange(100 * MS // turn) * (turn + 10 * MS)
    jobs = (np.arange(500 * MS, int(end.max()), 1_000 * MS)[:, None] + parts).reshape(-1)
    thread = np.concatenate([lanes(at, end) + 1, 0 * jobs])
    start, stop = np.concatenate([at, jobs]), np.concatenate([at + USUAL, jobs + turn])
    watched = read(thread, start, stop, int(end.max()))
    threads = find_serving_threads(watched, at, end, end)
    assert threads.known and threads.background == ("server.thread.0",) and not threads.computed.any()
    found = diagnose(recorded(at, end, samples=watched), bootstrap=50)
    assert found.verdict == "external.dependency" and "service.compute" not in shares(found)


def test_work_that_follows_the_input_is_its_size() -> None:
    at, size = arrivals(15.0, n=N), np.random.default_rng(3).integers(1, 40, N)
    size[SOME] *= 8
    end = at + size * MS
    record = recorded(at, end, samples=read(lanes(at, end), at, end, int(end.max())), features={"tokens": size})
    found = shares(diagnose(record, bootstrap=50))
    assert found["input.size"] > 0.9 and found.get("service.compute", 0.0) < 0.05


def test_in_an_event_loop_only_the_request_that_computes_is_charged_with_it() -> None:
    """The others wait for it in the same thread, also while it computes for two one after the other."""
    at = arrivals(15.0, n=N)
    twice = np.flatnonzero(SOME)[:-1:2]
    at[twice + 1] = at[twice] + 20 * MS  # a request comes while one computes, and computes then
    long = SOME.copy()
    long[twice + 1] = True
    at, long = np.sort(at), long[np.argsort(at, kind="stable")]
    work = np.where(long, LONG, 0) + USUAL
    end = served(at, work, 1)
    # Answers follow the work by up to 8 ms, in turn, so that the loop's queue does not show.
    loop = read(0 * at, end - work, end, int(end.max()), epoll=lambda times: 1 - present(times, end - work, end))
    end = np.maximum.accumulate(end + np.random.default_rng(5).integers(0, 8 * MS, N))
    computed = find_serving_threads(loop, at, end, end).computed
    assert np.array_equal(computed > 0, long)
    assert computed[long] == pytest.approx(LONG, rel=0.1)
    found = diagnose(recorded(at, end, samples=loop), bootstrap=50)
    ledger, waited = found.ledger, end - at - work
    for cause, spent_ns in (("service.compute", np.where(long, LONG, 0)), ("service.loop", waited)):
        claimed = ledger.own_ns[ledger.causes.index(cause)]
        assert claimed[spent_ns > 50 * MS].sum() == pytest.approx(spent_ns[spent_ns > 50 * MS].sum(), rel=0.15), cause


def test_another_thread_that_only_waits_for_events_is_no_second_loop() -> None:
    """Requests come while one computes, and the loop answers each of them when its work is done."""
    at = arrivals(15.0, n=N)
    work = np.where(SOME, LONG, 0) + USUAL
    end = served(at, work, 1)
    loop = read(0 * at, end - work, end, int(end.max()), epoll=lambda times: 2 - present(times, end - work, end))
    assert np.array_equal(find_serving_threads(loop, at, end, end).computed > 0, SOME)


def test_among_several_loops_no_request_is_charged() -> None:
    """Each second request is served by another loop, and waits there for those that came before."""
    at, end = arrivals(60.0, n=N), np.zeros(N, np.int64)
    work = np.where(SOME, LONG, 0) + USUAL
    for first in (0, 1):
        end[first::2] = served(at[first::2], work[first::2], 1)
    loops = read(EACH % 2, end - work, end, int(end.max()), epoll=lambda times: 2 - present(times, end - work, end))
    threads = find_serving_threads(loops, at, end, end)
    assert not threads.known and not threads.computed.any()


def test_a_request_that_comes_while_the_loop_computes_for_none_is_not_charged() -> None:
    """A timer of the loop computes for 300 ms; requests come 20 ms after it began, or much later."""
    jobs = np.arange(200) * 1_000 * MS
    came, alone = jobs + 20 * MS, jobs + 700 * MS
    at = np.sort(np.concatenate([came, alone]))
    end = np.maximum(at, np.where(np.isin(at, came), at - 20 * MS + LONG, at)) + USUAL
    start, stop = np.concatenate([jobs, end - USUAL]), np.concatenate([jobs + LONG, end])
    loop = read(0 * start, start, stop, int(end.max()), epoll=lambda times: 1 - present(times, start, stop))
    assert not find_serving_threads(loop, at, end, end).computed.any()


def test_in_an_event_loop_a_request_that_waits_before_it_computes_is_charged_too() -> None:
    """Each waits 20 ms for a dependency, so that its work begins long after it came."""
    at = arrivals(15.0, n=N)
    ready = at + 20 * MS
    work = np.where(SOME, LONG, 0) + USUAL
    end = served(ready, work, 1)
    loop = read(0 * at, end - work, end, int(end.max()), epoll=lambda times: 1 - present(times, end - work, end))
    assert np.array_equal(find_serving_threads(loop, at, end, end).computed > 0, SOME)


@pytest.mark.parametrize(("rate", "waits"), [(15.0, 0), (40.0, 20 * MS), (60.0, 4 * MS), (60.0, 0), (150.0, 0)])
def test_a_timer_that_computes_in_a_loop_is_charged_to_no_request(rate: float, waits: int) -> None:
    """Every second or so it computes for 150 ms; requests that come meanwhile are answered right after it.

    Others may have been answered right before it, some of which wait before they compute.
    """
    at = arrivals(rate, n=N)
    timer = np.cumsum(np.random.default_rng(3).integers(600 * MS, 1_100 * MS, int(at[-1]) // (850 * MS)))
    both = np.concatenate([at + waits, timer])
    work = np.repeat([2 * MS if waits else MS, 150 * MS], [N, len(timer)])
    order = np.argsort(both, kind="stable")
    end = np.empty(len(both), np.int64)
    end[order] = served(both[order], work[order], 1)
    loop = read(0 * both, end - work, end, int(end.max()), epoll=lambda times: 1 - present(times, end - work, end))
    assert not find_serving_threads(loop, at, end[:N], end[:N]).computed.any()


def test_a_burst_that_a_loop_answers_at_once_is_no_long_request() -> None:
    """Ten requests come at once, and are answered together after the work of all of them."""
    alone, bursts = np.arange(300) * 200 * MS, np.repeat(np.arange(30) * 2_000 * MS + 100 * MS, 10)
    at = np.sort(np.concatenate([alone, bursts]))
    many = np.where(np.isin(at, bursts), 10, 1)
    end = at + many * USUAL
    start, stop = np.unique(at), np.unique(end)
    loop = read(0 * start, start, stop, int(end.max()), epoll=lambda times: 1 - present(times, start, stop))
    computed = find_serving_threads(loop, at, end, end).computed
    assert computed.max() <= USUAL
    assert "service.compute" not in shares(diagnose(recorded(at, end, samples=loop), bootstrap=50))


def test_threads_that_work_for_one_request_side_by_side_count_once() -> None:
    at = np.arange(N) * 1_000 * MS
    computes = at + np.where(SOME, LONG, 0) + USUAL
    end = computes + 2 * LONG
    pool = read(np.repeat([0, 1], N), np.tile(at, 2), np.tile(computes, 2), int(end.max()))
    computed = find_serving_threads(pool, at, end, end).computed
    assert computed[SOME] == pytest.approx(LONG, rel=0.1)


def test_a_request_that_computes_is_not_charged_with_the_wait_of_another_for_the_interpreter() -> None:
    """Every tenth request comes while one computes, and has the interpreter's lock for half of the time."""
    at = np.arange(N // 2) * 700 * MS
    other = at[::4] + 100 * MS
    end, late = at + USUAL, other + 60 * MS
    end[::4] += LONG
    everyone, ends = np.concatenate([at, other]), np.concatenate([end, late])
    thread = np.concatenate([0 * at, 0 * other + 1])
    watched = read(
        thread,
        everyone,
        np.concatenate([end, other + 5 * MS]),
        int(end.max()),
        futex_python=lambda times: present(times, other + 5 * MS, late),
    )
    found = diagnose(recorded(np.sort(everyone), ends[np.argsort(everyone)], samples=watched), bootstrap=50)
    ledger, order = found.ledger, np.argsort(everyone)
    computes = np.isin(everyone[order], at[::4])
    waits = np.isin(everyone[order], other)
    for cause, rows, expected in (("service.compute", computes, LONG), ("python.gil", waits, 55 * MS)):
        claimed = ledger.own_ns[ledger.causes.index(cause)]
        assert claimed[rows].mean() == pytest.approx(expected, rel=0.15), cause
        assert claimed[~rows].sum() < 0.05 * claimed[rows].sum(), cause


def test_a_thread_that_serves_many_requests_without_a_pause_is_no_background_job() -> None:
    """It computes for all that are there, in steps, and for half of them longer."""
    at = np.arange(N) * 10 * MS + np.arange(N) // 100 * 2_000 * MS
    end = at + np.where(np.arange(N) % 2, 30, 200) * MS
    busy = at[::100]
    threads = find_serving_threads(read(0 * busy, busy, busy + 1_100 * MS, int(end.max())), at, end, end)
    assert threads.known and not threads.background and not threads.computed.any()


@pytest.mark.parametrize("lock", [False, True])
def test_a_thread_that_serves_no_request_is_named_where_others_wait_for_its_core_or_lock(lock: bool) -> None:
    """It computes for 400 ms every two seconds, and each request that comes meanwhile waits for 60 ms."""
    at = arrivals(15.0, n=N)
    jobs = np.arange(1_000 * MS, int(at[-1]), 2_000 * MS)
    met = (at % (2_000 * MS) >= 1_000 * MS) & (at % (2_000 * MS) < 1_300 * MS)
    end = at + USUAL + np.where(met, 60 * MS, 0)
    thread = np.concatenate([lanes(at, end) + 1, 0 * jobs])
    start, stop = np.concatenate([end - USUAL, jobs]), np.concatenate([end, jobs + 400 * MS])
    waits = {"futex_python": lambda times: present(times, at, end - USUAL)} if lock else {}
    watched = read(thread, start, stop, int(end.max()), **waits)
    if not lock:
        times = np.unique(watched["t_ns"])
        seconds = np.arange(0, int(end.max()) + 1_000 * MS, 1_000 * MS)
        others = {"other.all.spent_ns": (seconds, 0 * seconds), "latfix.spent_ns": (seconds, 0 * seconds)}
        runq = watched["series"] == "server.runq_ns"
        watched["value"][runq] = spent(times, at, end - USUAL)
        watched = {name: np.concatenate([watched[name], more]) for name, more in sample_columns(others).items()}
    found = diagnose(recorded(at, end, samples=watched), bootstrap=50)
    name = "python.gil" if lock else "host.contention"
    assert found.verdict == name
    cause = next(cause for cause in found.causes if cause.cause == name)
    assert "threads of the service that serve no request" in cause.evidence
