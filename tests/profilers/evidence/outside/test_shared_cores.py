"""Requests that share a process's cores, on simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.profilers.queue_inference import shared_log
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.shared_cores import find_shared_cores
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import MS, arrivals, present, recorded, samples

STEP = MS // 10


def with_bursts(rate: float = 20.0, n: int = 600, burst: int = 25) -> np.ndarray:
    """Independent arrivals, and every two seconds many within a few milliseconds."""
    at = arrivals(rate, n=n)
    bursts = [moment + np.arange(burst) * MS // 5 for moment in range(2_000 * MS, int(at[-1]), 2_000 * MS)]
    return np.sort(np.concatenate([at, *bursts]))


def computed(
    at: np.ndarray, work: np.ndarray, cores: float, *, order: str = "shared", taken: np.ndarray | None = None
) -> tuple[np.ndarray, Columns]:
    """Ends of requests that a process serves with so many cores, and the kernel's counters of its threads.

    :param order: ``shared``, all at once on threads of their own; ``random``, one after the other in an event loop.
    :param taken: share of the cores that others take, as a function of the second.
    """
    came_at, left, end, now = at.tolist(), work.astype(float).tolist(), np.zeros(len(at), np.int64), 0
    there: list[int] = []
    chosen, rng = -1, np.random.default_rng(5)
    cpu, runq, times = [0.0], [0.0], [0]
    came = 0
    while came < len(at) or there:
        while came < len(at) and came_at[came] <= now:
            there.append(came)
            came += 1
        usable = cores * (1.0 if taken is None else 1.0 - taken[min(now // (1000 * MS), len(taken) - 1)])
        if order == "random":
            if there and chosen not in there:
                chosen = there[int(rng.integers(len(there)))]
            served = [chosen] if there else []
        else:
            served = there
        share = min(usable / len(served), 1.0) * STEP if served else 0.0
        for k in list(served):
            left[k] -= share
            if left[k] <= 0:
                end[k] = now + STEP
                there.remove(k)
        cpu.append(cpu[-1] + share * len(served))
        runq.append(runq[-1] + (STEP - share) * len(served))
        now += STEP
        times.append(now)
    every = slice(0, None, 5 * MS // STEP)
    at_ns = np.array(times)[every]
    counters = {"cpu_ns": np.array(cpu)[every], "runq_ns": np.array(runq)[every]}
    return end, samples(at_ns, **counters, cores=np.full(len(at_ns), cores))


def parts(found: Diagnosis) -> dict[str, float]:
    assert found.ledger.conservation_error_ns() == 0
    return {cause.cause: cause.tail_share for cause in found.causes}


@pytest.mark.parametrize(("order", "cores"), [("shared", 1.0), ("shared", 2.0), ("random", 1.0)])
def test_a_burst_is_named_however_the_requests_share_the_process(order: str, cores: float) -> None:
    at = with_bursts()
    end, counters = computed(at, np.full(len(at), 3 * MS), cores, order=order)
    found = diagnose(recorded(at, end, samples=counters), bootstrap=50)
    assert found.verdict == "traffic.burst"
    assert parts(found)["traffic.burst"] > 0.75
    assert any("waited for the work of others" in cause.evidence for cause in found.causes)
    unwatched = diagnose(recorded(at, end), bootstrap=50)
    assert unwatched.verdict in ("traffic.burst", "inconclusive")


def test_a_loop_computes_for_one_request_at_once_also_if_bursts_are_too_short_to_show_it() -> None:
    """Two cores are allowed, and each burst lasts for one reading."""
    at = with_bursts(burst=4)
    end, counters = computed(at, np.full(len(at), MS), 1.0, order="random")
    times = np.unique(counters["t_ns"])
    allowed = samples(times, cores=np.full(len(times), 2.0))
    loop = samples(times, epoll=1.0 * (present(times, at, end) == 0))

    def found(*more: Columns) -> float:
        kept = counters["series"] != "server.cores"
        parts = ({name: column[kept] for name, column in counters.items()}, allowed, *more)
        watched = {name: np.concatenate([part[name] for part in parts]) for name in counters}
        return find_shared_cores(watched, at, end).cores

    assert (found(loop), found()) == (1.0, 2.0)


@pytest.mark.parametrize("cores", [1, 2])
def test_answers_alone_show_that_requests_share_cores(cores: int) -> None:
    at, latency = shared_log("lognormal, 0.5", "0.4 and a burst", cores, seed=41)
    found = diagnose(recorded(at, at + latency), bootstrap=50)
    burst = found.causes[0]
    assert burst.cause == "traffic.burst" and burst.tail_share > 0.6
    assert f"as if requests shared {cores}." in burst.evidence or f"shared {cores - 1}.9" in burst.evidence
    assert any("how requests slow each other down" in note for note in found.notes)
    # There is only one burst, so it is not certain; but independent arrivals would not have waited that long.
    assert "may be a burst of arrivals above capacity" in found.sentence and "by chance" not in found.sentence


def test_cores_that_others_took_are_told_from_the_burst() -> None:
    """Half of the time others have three quarters of the core, and requests come at all times."""
    at = with_bursts()
    taken = np.tile([0.75, 0.75, 0.0, 0.0], 20)
    end, counters = computed(at, np.full(len(at), 3 * MS), 1.0, order="random", taken=taken)
    found = parts(diagnose(recorded(at, end, samples=counters), bootstrap=50))
    assert found["host.contention"] > 0.5
    assert found["traffic.burst"] > 0.1
    assert abs(found.get("unexplained", 0.0)) < 0.2


def test_a_request_that_computes_long_is_no_burst() -> None:
    """One in forty needs twenty times the work. Others wait for it, but not because of their arrivals."""
    at = arrivals(40.0, n=1_000)
    work = np.where(np.arange(len(at)) % 40 == 7, 60 * MS, 3 * MS)
    end, counters = computed(at, work, 1.0)
    found = parts(diagnose(recorded(at, end, samples=counters), bootstrap=50))
    assert found.get("traffic.burst", 0.0) < 0.1


def test_requests_that_wait_elsewhere_while_others_compute_are_no_burst() -> None:
    """Each computes for 2 ms and waits for 20 to 60 ms for something else, as many at once as there are."""
    at = arrivals(60.0, n=1_000)
    end, _ = computed(at, np.full(len(at), 2 * MS), 2.0)
    slept = end + (np.random.default_rng(3).uniform(20, 60, len(at)) * MS).astype(np.int64)
    _, counters = computed(at, np.full(len(at), 2 * MS), 2.0)
    found = parts(diagnose(recorded(at, slept, samples=counters), bootstrap=50))
    assert found.get("traffic.burst", 0.0) < 0.05


@pytest.mark.parametrize("processes", [1, 2])
def test_short_requests_that_meet_by_chance_share_an_interpreter(processes: int) -> None:
    """Too few at once, and too short for the readings, to see that no more than one runs."""
    at = arrivals(15.0, n=600)
    end, counters = computed(at, np.full(len(at), 5 * MS), 1.0)
    times = counters["t_ns"][counters["series"] == "server.cpu_ns"]
    series = {name: counters["value"][counters["series"] == f"server.{name}"] for name in ("cpu_ns", "runq_ns")}
    several = np.maximum(present(times, at, end) - 1, 0)
    watched = samples(
        times, **series, futex_python=several, processes=np.full(len(times), processes), cores=np.full(len(times), 2)
    )
    found = diagnose(recorded(at, end, samples=watched), bootstrap=50)
    waits = parts(found)
    if processes == 1:
        assert found.verdict == "steady" and waits["traffic.burst"] > 2 * waits.get("python.gil", 0.0)
    assert find_shared_cores(watched, at, end).cores == processes


def test_what_a_process_can_do_at_once_is_measured() -> None:
    at = with_bursts()
    end, counters = computed(at, np.full(len(at), 3 * MS), 1.0, order="random")
    shared = find_shared_cores(counters, at, end)
    assert shared.cores == pytest.approx(1.0, abs=0.1)
    assert shared.work_ns == pytest.approx(3 * MS, rel=0.1)
    waits = end - at - 3 * MS
    inferred = shared.others.grown(at, end)
    assert inferred.sum() == pytest.approx(waits.sum(), rel=0.1)
