"""The interpreter lock and the allocator: named with complete evidence, not with a part of it missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from latfix.profilers.calibration.microbenchmarks import flat
from latfix.profilers.causes.cause import Left
from latfix.profilers.causes.python.gil_waits import descheduled_ns, held_ns
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.run_settings import _relative_error
from latfix.profilers.evidence.units import gather
from latfix.results.diagnosis import CauseSummary, Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.statistics.distributions import normal_quantile
from tests.profilers.samples import add_samples
from tests.profilers.simulated_runs import simulate

Chosen = npt.NDArray[np.int64]

MS = 1_000_000
MIB = 1 << 20
PAGE = 4096
STRUCK_MS = 25.0


def struck(record: RunRecord) -> Chosen:
    return np.array(sorted(faults("", len(record.requests["index"]))))


def faults(kind: str, n: int = 600) -> dict[int, tuple[str, float]]:
    chosen = np.random.default_rng(7).choice(np.arange(20, n), 12, replace=False)
    return {int(k): (kind, STRUCK_MS) for k in chosen}


def probe(record: RunRecord, wait_ms: float, *, holder: str = "") -> RunRecord:
    """Readings every 20 ms: ``wait_ms`` while a struck unit runs, almost zero otherwise."""
    rows = record.requests
    end = int(rows["arrival_ns"].max()) + 1_000 * MS
    times = np.arange(0, end, 20 * MS, dtype=np.int64)
    waits = np.full(len(times), 0.05 * MS)
    for k in struck(record):
        finished = rows["arrival_ns"][k] + rows["latency_ns"][k]
        waits[(times > rows["arrival_ns"][k] - 20 * MS) & (times < finished)] = wait_ms * MS
    series = {"gil.wait_ns": (times, waits), "gil.switch_interval_ns": (times[:1], np.array([5.0 * MS]))}
    if holder:
        series[f"thread.{holder}.cpu_ns"] = (times, np.cumsum(np.where(waits > MS, 18.0 * MS, 0.0)))
        for busy in ("MainThread", "latfix-worker-0"):  # all the time, so not because of the lock
            series[f"thread.{busy}.cpu_ns"] = (times, np.cumsum(np.full(len(times), 19.0 * MS)))
    return add_samples(record, series)


def waiting(record: RunRecord, part: str, *, switches: int, others_ms: float) -> RunRecord:
    """Struck units with this many switches, while the rest of the process ran for ``others_ms``."""
    rows, batches = dict(record.requests), dict(record.batches)
    source = rows if part == "prepare" else batches
    cpu = "process_cpu_ns" if part == "compute" else f"{part}_process_cpu_ns"
    chosen = struck(record) if part == "prepare" else rows["batch_id"][struck(record)]
    for name in (cpu, f"{part}_vcsw"):
        source[name] = source[name].copy()
    source[cpu] = source[f"{part}_cpu_ns"].copy()
    source[cpu][chosen] += int(others_ms * MS)
    source[f"{part}_vcsw"][chosen] = switches
    return replace(record, requests=rows, batches=batches)


def own(diagnosis: Diagnosis, cause: str) -> float:
    return next((summary.own_ms for summary in diagnosis.causes if summary.cause == cause), 0.0)


def own_of_struck_ms(diagnosis: Diagnosis, cause: str, record: RunRecord) -> float:
    """Mean own time of a cause in struck requests."""
    ledger = diagnosis.ledger
    rows = np.isin(ledger.request, struck(record))
    return float(ledger.own_ns[ledger.causes.index(cause), rows].mean()) / MS


def found(diagnosis: Diagnosis, cause: str) -> CauseSummary:
    return next(summary for summary in diagnosis.causes if summary.cause == cause)


@pytest.mark.parametrize("part", ["prepare", "compute"])
def test_waits_for_the_lock_while_another_thread_runs(part: str) -> None:
    record = simulate(**{f"{part}_faults": faults("blocked")})
    record = probe(waiting(record, part, switches=6, others_ms=STRUCK_MS), 5.0, holder="indexer")
    diagnosis = diagnose(record)
    assert diagnosis.verdict == "python.gil"
    assert own_of_struck_ms(diagnosis, "python.gil", record) == pytest.approx(STRUCK_MS, rel=0.1)
    sentence = found(diagnosis, "python.gil").evidence
    assert "thread 'indexer'" in sentence and "MainThread" not in sentence and "a worker" not in sentence
    assert diagnosis.ledger.conservation_error_ns() == 0


@pytest.mark.parametrize(
    ("switches", "others_ms", "wait_ms"),
    [
        pytest.param(1, STRUCK_MS, 0.1, id="a long sleep in a busy process"),
        pytest.param(25, STRUCK_MS, 0.15, id="many short sleeps and a free lock"),
        pytest.param(6, 0.2, 5.0, id="no other thread runs"),
        pytest.param(6, STRUCK_MS, None, id="no probe"),
    ],
)
def test_waits_that_are_not_for_the_lock_are_outside(switches: int, others_ms: float, wait_ms: float | None) -> None:
    record = waiting(simulate(prepare_faults=faults("blocked")), "prepare", switches=switches, others_ms=others_ms)
    diagnosis = diagnose(record if wait_ms is None else probe(record, wait_ms))
    assert diagnosis.verdict == "external.dependency"
    assert own(diagnosis, "python.gil") <= (0.05 * STRUCK_MS if others_ms < 1 else 0)


def test_a_lock_in_the_model_stays_unexplained() -> None:
    record = simulate(compute_faults=faults("blocked"))
    diagnosis = diagnose(probe(waiting(record, "compute", switches=1, others_ms=0.1), 0.05))
    assert own(diagnosis, "python.gil") == 0
    assert own_of_struck_ms(diagnosis, "unexplained", record) == pytest.approx(STRUCK_MS, rel=0.1)


def test_a_collection_in_another_thread_is_the_collectors() -> None:
    record = simulate(prepare_faults=faults("gc_elsewhere"))
    diagnosis = diagnose(probe(waiting(record, "prepare", switches=6, others_ms=STRUCK_MS), 5.0))
    assert diagnosis.verdict == "python.gc"
    assert own(diagnosis, "python.gil") < 0.1 * STRUCK_MS


def grown(record: RunRecord, **bytes_: int) -> RunRecord:
    """Changes of the process's memory in the struck batches' compute; ``free_bytes`` in all batches."""
    rows, batches = record.requests, dict(record.batches)
    chosen = rows["batch_id"][struck(record)]
    for name, value in bytes_.items():
        column = batches[f"compute_{name}"].copy()
        column[slice(None) if name == "free_bytes" else chosen] = value
        batches[f"compute_{name}"] = column
    return replace(record, batches=batches)


def faulted_bytes() -> int:
    """The simulator's faults cost 0.5 µs each."""
    return int(STRUCK_MS * MS / 500) * PAGE


def heap(record: RunRecord, free: float, *, all_along: bool = False, arena: float = 0.0) -> RunRecord:
    """A sampled heap with ``free`` bytes in its arenas, from half a second into the run on.

    :param arena: growth of the arenas per sample in bytes; without it, they are twice as large as the free memory.
    """
    times = np.arange(0, int(record.requests["arrival_ns"].max()), 500 * MS, dtype=np.int64)
    level = np.where(all_along | (times >= 500 * MS), free, 1.0 * MIB)
    arenas = np.arange(len(times)) * arena if arena else 2 * level
    return add_samples(record, {"malloc.free_bytes": (times, level), "malloc.arena_bytes": (times, arenas)})


def priced(record: RunRecord, **costs: float) -> RunRecord:
    once = np.zeros(1, np.int64)
    return add_samples(record, {f"cost.{name}": (once, np.array([value])) for name, value in costs.items()})


def test_faults_on_memory_by_which_the_heap_grew_are_the_allocators() -> None:
    size = faulted_bytes()
    record = grown(simulate(compute_faults=faults("faults")), arena_bytes=size, used_bytes=size, free_bytes=2 * MIB)
    diagnosis = diagnose(heap(record, 2 * MIB))
    assert diagnosis.verdict == "memory.allocator"
    assert own_of_struck_ms(diagnosis, "memory.allocator", record) == pytest.approx(STRUCK_MS, rel=0.1)
    assert f"{size / MIB:.3g} MiB" in found(diagnosis, "memory.allocator").evidence
    assert own(diagnosis, "memory.page_faults") < 0.1 * own(diagnosis, "memory.allocator")


@pytest.mark.parametrize(
    ("sizes", "sampled", "verdict"),
    [
        pytest.param({"used": 1, "resident": 1, "free": 2}, None, "memory.allocator", id="given back before"),
        pytest.param({"arena": 1, "used": 1, "free": 3}, "always", "memory.allocator", id="free all along"),
        pytest.param({"blocks": 1, "used": 1, "free": 3}, "later", "memory.allocator", id="a block of its own"),
        pytest.param({"mapped": 1, "resident": 1, "free": 0.1}, None, "memory.page_faults", id="outside of the heap"),
    ],
)
def test_faults_belong_to_what_the_heap_did(sizes: dict[str, float], sampled: str | None, verdict: str) -> None:
    """``sizes`` in multiples of the faulted bytes; memory mapped outside the heap may be reused."""
    size = faulted_bytes()
    record = grown(
        simulate(compute_faults=faults("faults")), **{f"{name}_bytes": int(n * size) for name, n in sizes.items()}
    )
    if sampled:
        record = heap(record, 3.0 * size, all_along=sampled == "always")
    diagnosis = diagnose(record)
    assert diagnosis.verdict == verdict
    assert own(diagnosis, "memory.fragmentation") == 0
    if verdict == "memory.page_faults":
        assert own(diagnosis, "memory.allocator") == 0


def test_growth_of_a_quarter_of_the_faults_is_half_of_each() -> None:
    # A fresh page may fault twice: where it is read before it is written.
    size = faulted_bytes() // 4
    record = grown(simulate(compute_faults=faults("faults")), blocks_bytes=size, used_bytes=size, free_bytes=2 * MIB)
    diagnosis = diagnose(record)
    for cause in ("memory.allocator", "memory.page_faults"):
        assert own_of_struck_ms(diagnosis, cause, record) == pytest.approx(STRUCK_MS / 2, rel=0.1)


@pytest.mark.parametrize("read", [True, False])
def test_growth_despite_free_memory_is_fragmentation(read: bool) -> None:
    """Also with samples only, if the heap has too many free chunks to be read for each unit."""
    size = faulted_bytes()
    record = simulate(compute_faults=faults("faults"))
    if read:
        record = grown(record, arena_bytes=size, used_bytes=size, free_bytes=3 * size)
        record = heap(record, 3.0 * size)
    else:
        record = heap(grown(record, mapped_bytes=size), 3.0 * size, arena=float(size))
    diagnosis = diagnose(record)
    assert diagnosis.verdict == "memory.fragmentation"
    assert own_of_struck_ms(diagnosis, "memory.fragmentation", record) > 0.9 * STRUCK_MS
    assert own(diagnosis, "memory.allocator") == 0
    assert diagnosis.ledger.conservation_error_ns() == 0


def test_giving_memory_back_has_the_calibrated_price() -> None:
    record = simulate(compute_faults=faults("cpu"))
    size = 100 * MIB
    record = grown(record, arena_bytes=-size, used_bytes=-size, resident_bytes=-size, free_bytes=MIB)
    assert diagnose(priced(record, unmapping_mib_ns=STRUCK_MS * MS / 100)).verdict == "memory.allocator"
    assert diagnose(priced(record, unmapping_mib_ns=1_000.0)).verdict == "host.slowdown"


def test_the_price_of_a_fault_has_its_interval() -> None:
    record = simulate(compute_faults=faults("faults"))
    assert "calibrated here)" in found(diagnose(record), "memory.page_faults").evidence
    record = priced(record, minor_fault_low_ns=480.0, minor_fault_high_ns=620.0)
    assert "calibrated here: 480 to 620 ns)" in found(diagnose(record), "memory.page_faults").evidence


def test_the_interval_of_a_calibrated_cost_holds_the_price_of_a_run() -> None:
    """Rounds and the run's price are draws of one distribution; of 95 % intervals, 92 to 98 % hold it."""
    rng = np.random.default_rng(17)
    for draws in (rng.normal(500, 25, (2000, 10)), rng.lognormal(6.2, 0.1, (2000, 10))):
        held = 0
        for *rounds, price in draws.tolist():
            cost = flat({"minor_fault": rounds})
            error = _relative_error(cost, "minor_fault") * cost["minor_fault_ns"]
            held += abs(price - cost["minor_fault_ns"]) <= normal_quantile(0.95) * error
        assert 0.92 <= held / 2000 <= 0.98


def test_the_spread_of_a_calibration_becomes_the_interval_of_its_cause() -> None:
    # GIVEN page faults of one length in every tenth request, and a price whose 80 % interval is 10 % either side
    struck = dict.fromkeys(range(25, 600, 10), ("faults", STRUCK_MS))
    record = simulate(noise=0.0, arrivals_ms=np.arange(600) * 100.0, compute_faults=struck)
    prices = {"minor_fault_ns": 500.0, "minor_fault_low_ns": 450.0, "minor_fault_high_ns": 550.0}
    spread = replace(record, meta=record.meta.updated(calibration=prices))
    exact = found(diagnose(record, percentile=95, bootstrap=1000), "memory.page_faults")
    draws = [
        found(diagnose(spread, percentile=95, bootstrap=1000, seed=seed), "memory.page_faults") for seed in range(6)
    ]
    # THEN all slow requests are alike, so that the price is most of the uncertainty
    of_price = 2 * 0.1 * draws[0].tail_ms * normal_quantile(0.95) / normal_quantile(0.8)
    assert np.ptp(exact.ci95_ms) < 0.5 * of_price
    width = np.mean([np.ptp(each.ci95_ms) for each in draws])
    assert width == pytest.approx(np.hypot(of_price, np.ptp(exact.ci95_ms)), rel=0.15)


def test_a_lock_holder_without_a_core_is_an_indirect_wait_for_a_core() -> None:
    record = simulate(prepare_faults=faults("blocked"))
    record = probe(waiting(record, "prepare", switches=8, others_ms=10.0), 5.0)
    times = np.arange(0, int(record.requests["arrival_ns"].max()), 500 * MS, dtype=np.int64)
    alone = gather(record)
    waits = add_samples(record, {"thread.indexer.runq_ns": (times, np.arange(len(times)) * 200.0 * MS)})
    ours = add_samples(record, {"thread.latfix-sampler.runq_ns": (times, np.arange(len(times)) * 200.0 * MS)})
    contended = gather(waits)
    rows = struck(record)
    assert held_ns(contended, Left(contended), "prepare")[rows] == pytest.approx(10.0 * MS, rel=0.05)
    assert descheduled_ns(contended, Left(contended), "prepare")[rows] == pytest.approx(15.0 * MS, rel=0.05)
    assert not descheduled_ns(alone, Left(alone), "prepare").any(), "no thread lacked a core"
    evidence = gather(ours)
    assert not descheduled_ns(evidence, Left(evidence), "prepare").any(), "latfix's own threads hold no lock"
