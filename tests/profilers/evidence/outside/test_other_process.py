"""A watched process that does not accept the requests itself: behind a proxy, or another one by mistake."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.schema import Columns
from tests.profilers.evidence.outside.test_outside_view import MS, N, arrivals, recorded, samples, served, spent

WORK = 4 * MS


def watched(end: np.ndarray, works: bool) -> Columns:
    """A process that computes at the end of each request; or does so at other times."""
    times = np.arange(-300 * MS, int(end.max()) + 50 * MS, 5 * MS)
    begun = end - WORK if works else np.sort(np.random.default_rng(9).integers(0, int(end.max()), N))
    return samples(times, cpu_ns=spent(times, begun, begun + WORK), runq_ns=np.zeros(len(times)))


def behind(at: np.ndarray, end: np.ndarray, *, works: bool, accepts: bool | None = False) -> Diagnosis:
    http = {"pid": 7, "program": "node", "accepts": accepts, "listening": {"99": "nginx"}}
    return diagnose(recorded(at, end, samples=watched(end, works), http=http), bootstrap=50)


def dependency(found: Diagnosis) -> float:
    assert found.ledger.conservation_error_ns() == 0
    return next((cause.tail_ms for cause in found.causes if cause.cause == "external.dependency"), 0.0)


@pytest.mark.parametrize(
    ("works", "accepts", "named", "words"),
    [
        (True, None, True, ""),
        (True, False, True, "its own queue is not seen"),
        (False, False, False, "--pid is wrong"),
    ],
    ids=["of the service", "behind a proxy", "of something else"],
)
def test_idle_time_of_a_process_that_does_not_serve_says_nothing(
    works: bool, accepts: bool | None, named: bool, words: str
) -> None:
    at = arrivals(20.0)
    end = at + WORK + np.where(np.random.default_rng(3).random(N) < 0.02, 150 * MS, MS)
    found = behind(at, end, works=works, accepts=accepts)
    assert (dependency(found) > 100) == named
    assert any("7 (node) does not listen" in note and words in note for note in found.notes) == bool(words)


def test_waits_in_a_proxy_s_queues_are_no_dependency() -> None:
    """It has a queue for each of two services, and picks one at random."""
    at = np.sort(np.concatenate([arrivals(15.0), np.repeat(np.arange(1, 50) * 2_000 * MS, 12)]))
    rng, end = np.random.default_rng(5), np.zeros(len(at), np.int64)
    took, picked = rng.integers(10 * MS, 40 * MS, len(at)), rng.random(len(at)) < 0.5
    for one in (picked, ~picked):
        end[one] = served(at[one], took[one], 1)
    assert dependency(behind(at, end, works=True, accepts=None)) > 50
    assert dependency(behind(at, end, works=True)) == 0


@pytest.mark.parametrize("pool", [True, False])
def test_waits_of_requests_that_hardly_ever_come_alone_may_be_for_a_place_in_a_pool(pool: bool) -> None:
    """Two processes with two connections each to something that takes 30 ms; or one request in ten waits alone."""
    rng, at = np.random.default_rng(5), arrivals(40.0)
    end = at + 30 * MS + np.where(rng.random(N) < 0.1, 30 * MS, 0)
    picked = rng.random(N) < 0.5
    for one in (picked, ~picked) if pool else ():
        end[one] = served(at[one], np.full(np.count_nonzero(one), 30 * MS), 2)
    found = diagnose(recorded(at, end, samples=watched(end, works=True)), bootstrap=50)
    (cause,) = (cause for cause in found.causes if cause.cause == "external.dependency")
    assert cause.tail_ms > 15 and ("place in a pool" in cause.evidence) == pool
