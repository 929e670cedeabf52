"""Takers of cores, on samples made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.causes.host.core_takers import (
    OPERATORS,
    STOLEN,
    UNSEEN,
    WORKERS,
    Taker,
    core_takers,
    describe_takers,
    disturbance,
    disturbed_replays,
    last_takers,
)
from latfix.profilers.diagnose import diagnose
from latfix.profilers.probes.neighbor_watch import ALL_SERIES
from latfix.run_record.schema import Columns
from tests.profilers.samples import sample_columns
from tests.profilers.simulated_runs import simulate

S = 1_000_000_000
Rows = list[tuple[float, str, float]]


def samples(rows: Rows) -> Columns:
    """Columns of times in seconds, series, and seconds on a core."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for at, name, value in rows:
        times, values = series.setdefault(name, ([], []))
        times.append(at * S)
        values.append(value * S)
    return sample_columns({name: (np.array(times), np.array(values)) for name, (times, values) in series.items()})


def spent(name: str, *seconds: float) -> Rows:
    """A series of other processes: zero at the start, then one value per second."""
    first = [(0.0, name, 0.0)] if name == "other.all.spent_ns" else []
    return [*first, *((k + 1.0, name, value) for k, value in enumerate(seconds))]


def counter(name: str, *seconds: float) -> Rows:
    """A counter with this growth per second."""
    return [(float(k), name, float(sum(seconds[:k]))) for k in range(len(seconds) + 1)]


#: Four seconds on two cores: a hog in the third, the service's worker and its operators all along.
HOG = [
    *spent("other.all.spent_ns", 0, 0, 1.2, 0),
    *((t, name, v) for t, name, v in spent("other.77.stress.spent_ns", 0, 0, 1.2, 0) if v),
    *spent("latfix.spent_ns", 0, 0, 0, 0),
    *counter("thread.latfix-worker-0.cpu_ns", 0.5, 0.5, 0.5, 0.5),
    *counter("thread.latfix-worker-0.runq_ns", 0, 0, 0.4, 0),
    *counter("thread.native.cpu_ns", 0.1, 0.1, 0.1, 0.1),
    *counter("process.cpu_ns", 0.6, 0.6, 0.6, 0.6),
    *counter("host.cpu_busy_ns", 0.6, 0.6, 1.8, 0.6),
]


def by_name(found: tuple[Taker, ...]) -> dict[str, float]:
    return {taker.name: round(taker.cores, 3) for taker in found if taker.cores > 1e-6}


def test_takers_are_weighted_by_time() -> None:
    whole = by_name(core_takers(samples(HOG)))
    assert whole == {WORKERS: 0.5, "stress (process 77)": 0.3, OPERATORS: 0.1}
    at = np.array([int(2.5 * S)])
    then = core_takers(samples(HOG), at, np.array([1]))
    assert by_name(then) == {"stress (process 77)": 1.2, WORKERS: 0.5, OPERATORS: 0.1}
    assert describe_takers(then, but=(WORKERS,)) == "stress (process 77), 1.2 cores"


def test_processes_of_one_name_are_one_taker() -> None:
    rows = [*spent("other.all.spent_ns", 1.0), (1.0, "other.5.cc1.spent_ns", 0.5), (1.0, "other.6.cc1.spent_ns", 0.5)]
    assert by_name(core_takers(samples(rows))) == {"cc1 (2 processes)": 1.0}


def test_a_process_that_uses_little_but_keeps_a_core_for_long_is_named() -> None:
    """A kernel's thread of 0.4 % of a core in turns of 2 ms makes one request in a hundred wait."""
    rows = [*spent("other.all.spent_ns", 0.01, 0.01), *spent("other.7.kdamond.spent_ns", 0.004, 0.004)]
    brief = core_takers(samples(rows))
    assert describe_takers(brief) == "no process that is visible from here"
    rows += [(1.0, "other.7.kdamond.turn_ns", 0.002), (2.0, "other.7.kdamond.turn_ns", 0.002)]
    long = core_takers(samples(rows))
    assert describe_takers(long, turns=True) == "kdamond (process 7), 0.0040 cores in turns of 2.00 ms"
    assert describe_takers(long) == describe_takers(brief), "it explains waits, not a busy machine"
    assert by_name(long) == by_name(brief)
    beside = core_takers(samples([*HOG, (3.0, "other.77.stress.turn_ns", 0.003)]))
    assert "turns" not in describe_takers(beside, turns=True)


def test_between_pieces_of_a_run_nothing_was_read() -> None:
    """The sample of a large run: ten seconds of its begin and of its end, with a hog on one core all along."""
    at = [float(t) for t in (*range(11), *range(110, 121))]
    rows = [(t, "other.all.spent_ns", float(t > 0)) for t in at] + [(t, "host.cpu_busy_ns", t) for t in at]
    rows += [(t, "other.77.stress.spent_ns", 1.0) for t in at[1:]]
    assert by_name(core_takers(samples(rows))) == {"stress (process 77)": 1.0}


def test_readings_are_not_searched_for_each_process() -> None:
    """Beside a build, hundreds come and go."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    rows = spent("other.all.spent_ns", *np.ones(300))
    rows += [(k + 1.0, f"other.{k}.cc1.spent_ns", 1.0) for k in range(300)]
    named: Rows = [(at, Name(name), value) for at, name, value in rows]
    found = samples(named)
    compared = 0
    assert by_name(core_takers(found)) == {"cc1 (300 processes)": 1.0}
    assert compared < 10 * len(rows)


def test_invisible_takers() -> None:
    busy = [*spent("other.all.spent_ns", 0.1, 0.1), *counter("host.cpu_busy_ns", 1.5, 1.5)]
    assert by_name(core_takers(samples(busy)))[UNSEEN] == pytest.approx(1.4)
    stolen = [*busy, *counter("host.steal_ns", 1.0, 1.0)]
    assert by_name(core_takers(samples(stolen))) == {STOLEN: 1.0, UNSEEN: 0.4}
    none = core_takers(samples([*spent("other.all.spent_ns", 0, 0), *counter("process.cpu_ns", 0.01, 0.01)]))
    assert describe_takers(none) == ""
    little = core_takers(samples([*spent("other.all.spent_ns", 0, 0), *counter("thread.native.cpu_ns", 0.01, 0.01)]))
    assert describe_takers(little) == "no process that is visible from here"
    assert core_takers(samples(counter("host.cpu_busy_ns", 2, 2))) == (), "not watched"


def test_a_run_is_disturbed_where_others_computed_and_the_service_waited() -> None:
    assert disturbance(samples(HOG)) == (
        "others used 0.30 cores (stress (process 77), 0.30 cores), and the service's threads waited for a core for "
        "14 % of the time that they could have run"
    )
    free = [row for row in HOG if row[1] != "thread.latfix-worker-0.runq_ns"]
    assert disturbance(samples(free)) == "", "it had a core all the time"
    alone = [row for row in HOG if not row[1].startswith(("other.77", "host."))]
    assert disturbance(samples(alone)) == "", "it was the service itself"


def test_several_replays_say_how_many_were_disturbed() -> None:
    assert disturbed_replays([]) == disturbed_replays(["", ""]) == ""
    assert disturbed_replays(["a hog"]) == "a hog"
    assert disturbed_replays(["", "a hog", "another"]) == "2 of 3 replays; in the first of them a hog"


def test_the_last_readings_of_a_watch_name_the_neighbors_of_that_time() -> None:
    hog = [(1 * S, ALL_SERIES, 0.0), (2 * S, ALL_SERIES, 1.2 * S), (2 * S, "other.77.stress.spent_ns", 1.2 * S)]
    assert last_takers(hog) == "others used 1.2 cores (stress (process 77), 1.2 cores)"
    assert last_takers([]) == "", "none can be seen"
    assert last_takers([*hog, (4 * S, ALL_SERIES, 0.2 * S)]) == "", "a tenth of a core, after the hog"


def test_the_culprit_is_named() -> None:
    # GIVEN requests that wait for a core in the tenth second, when another process has both
    hit = dict.fromkeys(range(190, 200), ("runq", 60.0))
    record = simulate(rate=20, compute_faults=hit)
    rows: Rows = spent("other.all.spent_ns", *(2.0 if k in (8, 9, 10) else 0.0 for k in range(30)))
    rows += [(k + 1.0, "other.77.stress.spent_ns", 2.0) for k in (8, 9, 10)]
    # WHEN
    found = diagnose(replace(record, samples=samples(rows)), bootstrap=40)
    # THEN
    cause = next(each for each in found.causes if each.cause == "host.contention")
    assert cause.culprit == "stress (process 77), 2.0 cores"
    assert "meanwhile the cores went to stress (process 77), 2.0 cores" in cause.evidence
    assert not any(each.culprit for each in diagnose(record, bootstrap=40).causes), "not watched"
