"""Page faults and throttling of a service behind an address, on simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.service_process import COLLECTIONS
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import MS, N, arrivals, recorded, services, spent
from tests.profilers.samples import sample_columns

RARELY = 250 * MS


def shares(found: Diagnosis) -> dict[str, float]:
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause.tail_share for cause in found.causes}


def watched(at: np.ndarray, end: np.ndarray, idle: np.ndarray, **rare: np.ndarray) -> Columns:
    """A process that runs during each request, except for its last ``idle`` nanoseconds, and rarely read counters.

    :param rare: by series, what each request adds to it.
    """
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    series = {"server.cpu_ns": (times, spent(times, at, end - idle)), "server.runq_ns": (times, np.zeros(len(times)))}
    seldom = np.arange(0, int(end.max()) + RARELY, RARELY)
    order = np.argsort(end)
    for name, added in rare.items():
        total = np.concatenate([[0.0], np.cumsum(added[order])])
        series[f"server.{name}"] = (seldom, total[np.searchsorted(end[order], seldom, side="right")])
    return sample_columns(series)


@pytest.mark.parametrize(
    ("faults", "told", "cause"),
    [(True, True, "memory.page_faults"), (False, True, "external.dependency"), (True, False, "external.dependency")],
)
def test_waits_for_memory_from_a_disk_are_page_faults_where_the_kernel_counts_them(
    faults: bool, told: bool, cause: str
) -> None:
    """Without major faults, the disk is read by the service itself."""
    at, slow = arrivals(10.0), np.random.default_rng(5).random(N) < 0.03
    idle = np.where(slow, 150 * MS, 0)
    end = at + services() + idle
    counters = watched(at, end, idle, majflt=slow * 30.0 * faults, disk_ns=idle * float(told))
    found = diagnose(recorded(at, end, samples=counters), bootstrap=50)
    assert found.verdict == cause
    assert shares(found)[cause] > 0.8
    if cause == "memory.page_faults":
        assert "waited" in next(one.evidence for one in found.causes if one.cause == cause)


def test_a_disk_explains_no_more_than_its_time() -> None:
    """Idle for 150 ms each, of which 15 ms were waits for a disk."""
    at, slow = arrivals(10.0), np.random.default_rng(5).random(N) < 0.03
    idle = np.where(slow, 150 * MS, 0)
    end = at + services() + idle
    found = shares(
        diagnose(
            recorded(at, end, samples=watched(at, end, idle, majflt=slow * 3.0, disk_ns=idle * 0.1)), bootstrap=50
        )
    )
    assert found["memory.page_faults"] == pytest.approx(0.1, abs=0.03)
    assert found["external.dependency"] > 0.75


def test_minor_faults_have_a_price() -> None:
    """100,000 faults of 500 ns in each slow request, of which the process computes for 50 ms longer."""
    at, slow = arrivals(10.0), np.random.default_rng(5).random(N) < 0.03
    end = at + services() + np.where(slow, 50 * MS, 0)
    counters = watched(at, end, np.zeros(N, np.int64), minflt=slow * 100_000.0)
    found = diagnose(recorded(at, end, samples=counters), bootstrap=50)
    assert found.verdict == "memory.page_faults"
    none = diagnose(
        recorded(at, end, samples=watched(at, end, np.zeros(N, np.int64), minflt=slow * 0.0)), bootstrap=50
    )
    assert "memory.page_faults" not in {cause.cause for cause in none.causes if cause.tail_ms > 0.1}


@pytest.mark.parametrize("runnable", [True, False])
def test_a_quota_that_ran_out_is_throttling(runnable: bool) -> None:
    """For 80 ms of every second. Older kernels count throttled threads as runnable, newer ones as asleep."""
    at = arrivals(40.0)
    second, length = 1_000 * MS, 80 * MS
    stops = np.arange(0, int(at[-1]) + second, second)
    hit = at % second < length
    end = at + services() + np.where(hit, length - at % second, 0)
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    throttled = spent(times, stops, stops + length)
    stopped = spent(times, at[hit], (at + length - at % second)[hit])
    series = {
        "server.cpu_ns": (times, spent(times, np.where(hit, at + length - at % second, at), end)),
        "server.runq_ns": (times, stopped if runnable else np.zeros(len(times))),
        "server.throttled_ns": (times, throttled),
    }
    found = diagnose(recorded(at, end, samples=sample_columns(series)), bootstrap=50)
    assert found.verdict == "host.throttle"
    assert shares(found)["host.throttle"] > 0.7
    without = {name: values for name, values in series.items() if name != "server.throttled_ns"}
    other = shares(diagnose(recorded(at, end, samples=sample_columns(without)), bootstrap=50))
    assert other.get("host.throttle", 0.0) == 0.0


def test_a_diagnosis_says_which_causes_it_could_see() -> None:
    """More is recorded from one to the next: nothing of the process, its time, its faults, and its collections."""
    at = arrivals(10.0)
    end, idle = at + services(), np.zeros(N, np.int64)
    counters = watched(at, end, idle, minflt=np.ones(N))
    names = counters["series"]
    collected = sample_columns({COLLECTIONS[0]: (np.arange(0, int(end.max()), 250 * MS),) * 2})
    seen = [
        set(diagnose(recorded(at, end, samples=samples), bootstrap=50).seen)
        for samples in (
            {name: column[:0] for name, column in counters.items()},
            {name: column[names != "server.minflt"] for name, column in counters.items()},
            counters,
            {name: np.concatenate([column, collected[name]]) for name, column in counters.items()},
        )
    ]
    assert {"input.size", "network.connect", "drift.unknown", "unexplained"} <= seen[0]
    assert seen[1] - seen[0] >= {"host.contention", "python.gil", "service.loop", "external.dependency"}
    assert seen[2] - seen[1] == {"memory.page_faults"} and seen[3] - seen[2] == {"python.gc"}
    never = {"batching.padding", "batching.size", "cold.compile", "gpu.clocks", "service.queue", "host.throttle"}
    assert not never & seen[3]
