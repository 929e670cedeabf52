"""Waits for the interpreter lock belong to what its holder was doing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from tests.profilers.samples import add_samples
from tests.profilers.simulated_runs import simulate

Ints = npt.NDArray[np.int64]

MS = 1_000_000
HELD_MS = 30.0


def pairs(n: int = 400) -> tuple[npt.NDArray[np.float64], Ints]:
    """Arrivals two by two, 60 ms apart, and the first of every tenth pair: it holds the lock, the second waits."""
    first = np.arange(0, n, 2)
    arrivals = np.repeat(first * 30.0, 2) + np.tile([0.0, 0.05], n // 2)
    return arrivals, first[10::10]


def held(kind: str, *, probe_ms: float = 5.0, preempted: bool = False) -> RunRecord:
    """Two prepare threads and two workers; in every tenth pair the first's prepare is struck and has the lock.

    The second's prepare is blocked for as long, with a voluntary switch each switch interval, and the probe waits.
    """
    arrivals, holders = pairs()
    faults = {int(k): (kind, HELD_MS) for k in holders} | {int(k) + 1: ("blocked", HELD_MS) for k in holders}
    record = simulate(
        n=len(arrivals), arrivals_ms=arrivals, prepare_threads=2, workers=2, prepare_faults=faults, noise=0.02
    )
    rows = record.requests
    rows["prepare_vcsw"][holders + 1] = 1 + int(HELD_MS / 5)
    # The process's CPU time during the wait: the holder's time on a core.
    rows["prepare_process_cpu_ns"][:] = rows["prepare_cpu_ns"]
    rows["prepare_process_cpu_ns"][holders + 1] += rows["prepare_cpu_ns"][holders]
    begun = rows["arrival_ns"][holders]
    times = np.arange(0, int(rows["arrival_ns"].max()) + 500 * MS, 20 * MS, dtype=np.int64)
    waits = np.full(len(times), 0.03 * MS)
    for start in begun:
        waits[(times > start - 20 * MS) & (times < start + HELD_MS * MS)] = probe_ms * MS
    series: dict[str, Any] = {"gil.wait_ns": (times, waits), "gil.switch_interval_ns": (times[:1], np.array([5e6]))}
    if preempted:
        grown = np.cumsum(np.where(waits > MS, 20.0 * MS, 0.0))
        series["thread.latfix-prepare-0.runq_ns"] = (times, grown)
    return add_samples(record, series)


def shares(diagnosis: Diagnosis) -> dict[str, float]:
    return {cause.cause: cause.tail_share for cause in diagnosis.causes}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("faults", "memory.page_faults"), ("runq", "host.contention"), ("cpu", "host.slowdown")],
)
def test_a_wait_for_the_lock_belongs_to_what_its_holder_did(kind: str, cause: str) -> None:
    diagnosis = diagnose(held(kind, preempted=kind == "runq"))
    assert diagnosis.verdict == cause
    assert shares(diagnosis)[cause] > 0.85
    assert shares(diagnosis).get("python.gil", 0.0) < 0.15
    assert shares(diagnosis).get("external.dependency", 0.0) < 0.1
    assert diagnosis.ledger.conservation_error_ns() == 0
    found = next(each for each in diagnosis.causes if each.cause == cause)
    if kind != "runq":  # half of the struck requests only waited
        assert found.propagated_ms > 0.3 * found.own_ms


def test_the_holder_s_ordinary_work_is_contention_for_the_lock() -> None:
    # GIVEN the same waits, and a holder whose long work is what its input needs
    arrivals, holders = pairs()
    record = held("cpu")
    record.requests["input_elements"][holders] = record.requests["input_length"][holders] = 3100
    lengths = np.random.default_rng(3).integers(80, 120, len(arrivals))
    plain = np.setdiff1d(np.arange(len(arrivals)), holders)
    record.requests["input_elements"][plain] = record.requests["input_length"][plain] = lengths[plain]
    record.requests["prepare_cpu_ns"][plain] += (lengths[plain] - 100) * 10_000
    ledger = diagnose(record).ledger
    gil, slow = (ledger.causes.index(name) for name in ("python.gil", "host.slowdown"))
    waited = np.isin(ledger.request, holders + 1)
    assert ledger.own_ns[gil][waited].mean() > 0.8 * HELD_MS * MS
    assert ledger.propagated_ns[slow][waited].mean() < 0.1 * HELD_MS * MS


def test_a_lock_without_a_known_holder_is_the_closure_error() -> None:
    # GIVEN waits for the lock while no unit of the service ran, but another thread of the process did
    record = held("blocked")
    _, holders = pairs()
    rows = record.requests
    rows["prepare_vcsw"][holders] = rows["prepare_vcsw"][holders + 1]
    for chosen in (holders, holders + 1):
        rows["prepare_process_cpu_ns"][chosen] = rows["prepare_cpu_ns"][chosen] + int(HELD_MS * MS)
    diagnosis = diagnose(record)
    assert diagnosis.verdict == "python.gil"
    assert diagnosis.lock_closure_ms < 0.1 * HELD_MS
    for chosen in (holders, holders + 1):  # now that thread was not on a core either
        rows["prepare_process_cpu_ns"][chosen] = rows["prepare_cpu_ns"][chosen] + int(HELD_MS / 3 * MS)
    assert diagnose(record).ledger.conservation_error_ns() == 0


def test_chunks_blame_the_same_holders() -> None:
    record = held("faults")
    whole = diagnose(record)
    pieces = diagnose(record, scale=Scale(limit=0, chunk=100, stretches=4, stretch=90, listed=400))
    assert pieces.pieces is not None and pieces.pieces > 1
    assert pieces.verdict == whole.verdict
    for cause, share in shares(whole).items():
        if share > 0.05:
            assert shares(pieces)[cause] == pytest.approx(share, abs=0.05)
