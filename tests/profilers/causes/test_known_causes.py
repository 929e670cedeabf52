"""Injected causes are found, in the right place, with their victims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.reports.answer import diagnosis_answer
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.dispatch_lag import is_on_time
from latfix.run_record.run_record import RunRecord
from tests.profilers.samples import add_samples
from tests.profilers.simulated_runs import simulate

MS = 1_000_000


def some(kind: str, ms: float, n: int = 600, count: int = 12) -> dict[int, tuple[str, float]]:
    chosen = np.random.default_rng(7).choice(np.arange(20, n), count, replace=False)
    return {int(k): (kind, ms) for k in chosen}


def entry(diagnosis: Diagnosis, cause: str) -> tuple[float, float, float]:
    found = [(c.tail_ms, c.own_ms, c.propagated_ms) for c in diagnosis.causes if c.cause == cause]
    return found[0] if found else (0.0, 0.0, 0.0)


def collect(record: RunRecord, at: npt.NDArray[np.int64], ms: int) -> RunRecord:
    """The record with collections in an unknown thread."""
    events = {name: np.full(len(at), -1) for name in record.events}
    known = {"t_ns": at, "duration_ns": np.full(len(at), ms * 1_000_000), "thread": np.full(len(at), 4242)}
    words = {"kind": np.full(len(at), "gc", object), "detail": np.full(len(at), None, object)}
    return replace(record, events=events | known | words)


@pytest.fixture(scope="module")
def healthy() -> Diagnosis:
    """A quiet stream without faults."""
    return diagnose(simulate(rate=20))


def check_sums(diagnosis: Diagnosis) -> None:
    assert diagnosis.ledger.conservation_error_ns() == 0
    assert sum(c.tail_ms for c in diagnosis.causes) == pytest.approx(diagnosis.excess_ms, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("unit", "kind", "expected"),
    [
        ("compute", "gc", "python.gc"),
        ("compute", "gc_elsewhere", "python.gc"),
        ("compute", "runq", "host.contention"),
        ("compute", "throttle", "host.throttle"),
        ("compute", "faults", "memory.page_faults"),
        ("compute", "compile", "cold.compile"),
        ("compute", "cpu", "host.slowdown"),
        ("compute", "denormals", "numerics.denormals"),
        ("prepare", "denormals", "numerics.denormals"),
        ("prepare", "gc", "python.gc"),
        ("prepare", "compile", "cold.compile"),
        ("prepare", "runq", "host.contention"),
        ("prepare", "span", "external.dependency"),
        ("prepare", "blocked", "external.dependency"),
        ("prepare", "faults", "memory.page_faults"),
    ],
)
@pytest.mark.parametrize("ms", [25.0, 150.0])
def test_top_cause(unit: str, kind: str, expected: str, ms: float) -> None:
    # GIVEN a quiet stream at a quarter of capacity with two per cent of requests hit
    record = simulate(n=400, rate=20, **{f"{unit}_faults": some(kind, ms, 400, 8)})
    # WHEN
    diagnosis = diagnose(record, bootstrap=60)
    # THEN
    assert diagnosis.verdict == expected
    assert diagnosis.causes[0].cause == expected and diagnosis.causes[0].named
    if kind == "throttle":
        assert entry(diagnosis, "host.throttle")[0] > 10 * abs(entry(diagnosis, "host.contention")[0])
    check_sums(diagnosis)


def test_own_time_is_what_was_injected() -> None:
    faults = some("gc", 60.0)
    ledger = diagnose(simulate(rate=20, compute_faults=faults)).ledger
    own = ledger.own_ns[ledger.causes.index("python.gc")] / 1e6
    hit = np.isin(ledger.request, list(faults))
    assert own[hit] == pytest.approx(60.0, abs=0.01)
    assert own[~hit] == pytest.approx(0.0, abs=0.01)


def test_victims_time_goes_to_the_culprits_cause() -> None:
    # GIVEN evenly spaced requests, so that traffic alone makes none wait
    arrivals = np.arange(600) * 25.0
    record = simulate(arrivals_ms=arrivals, compute_faults={100: ("gc", 120.0), 300: ("runq", 120.0)})
    ledger = diagnose(record).ledger
    gc, contention = ledger.causes.index("python.gc"), ledger.causes.index("host.contention")
    waits = record.requests["queue_ns"]
    behind_gc, behind_contention = (np.arange(first, first + 7) for first in (101, 301))
    # THEN waits behind the collection belong to it, and none to traffic or to the other fault
    assert waits[behind_gc].min() > 1_000_000
    assert np.allclose(ledger.propagated_ns[gc][behind_gc], waits[behind_gc], rtol=0.02, atol=200_000)
    owed, waited = ledger.propagated_ns[contention][behind_contention], waits[behind_contention]
    assert np.allclose(owed, waited, rtol=0.02, atol=200_000)
    assert np.abs(ledger.propagated_ns[contention][behind_gc]).max() == 0
    for traffic in ("traffic.burst", "traffic.overload"):
        assert np.abs(ledger.own_ns[ledger.causes.index(traffic)]).max() == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch": 8, "window": 3.0},
        {"workers": 2},
        {"prepare_threads": 3},
        {"workers": 2, "max_batch": 4},
        {"name_threads": False},
    ],
)
def test_blame_reaches_victims_under_every_policy(settings: dict[str, Any]) -> None:
    rate = 40.0 * settings.get("workers", 1)
    faults = some("gc", 150.0, 1200, 16)
    diagnosis = diagnose(simulate(n=1200, rate=rate, compute_faults=faults, **settings), bootstrap=60)
    assert diagnosis.verdict == "python.gc"
    assert abs(diagnosis.unexplained_ms) < 0.1 * diagnosis.excess_ms
    check_sums(diagnosis)


@pytest.mark.parametrize("unit", ["prepare", "compute"])
@pytest.mark.parametrize(("places", "words"), [((10, 590), "12 of 24 in the second half"), ((10, 290), "")])
def test_new_shapes_that_keep_coming_are_mentioned(unit: str, places: tuple[int, int], words: str) -> None:
    """24 first uses of a shape, all through the run or in its first half only."""
    first = np.linspace(*places, 24).astype(int)
    record = simulate(rate=20, **{f"{unit}_faults": dict.fromkeys(first.tolist(), ("cpu", 60.0))})
    record.batches["first_shape"][record.requests["batch_id"][first]] = 1
    diagnosis = diagnose(record, bootstrap=60)
    evidence = next(each.evidence for each in diagnosis.causes if each.cause == "cold.start")
    assert diagnosis.verdict == "cold.start"
    assert (f"new shapes kept coming, {words}" in evidence) if words else ("kept coming" not in evidence)


@pytest.mark.parametrize("always", [True, False])
def test_a_shape_that_is_slow_whenever_it_comes_is_not_cold(always: bool) -> None:
    """Ten rare shapes come three times each; they are slow each time, or only the first time."""
    lengths = np.random.default_rng(4).integers(40, 60, 600) * 2
    places = np.linspace(30, 570, 30).astype(int)
    lengths[places] = 91 + 2 * (np.arange(30) % 10)
    faults = {int(at): ("cpu", 33.0 if k < 10 else 30.0) for k, at in enumerate(places) if always or k < 10}
    record = simulate(rate=20, lengths=lengths, compute_faults=faults)
    record.batches["first_shape"][record.requests["batch_id"][places[:10]]] = 1
    ledger = diagnose(record, bootstrap=10).ledger
    found_ms = ledger.own_ns[ledger.causes.index("cold.start")].sum() / 1e6
    assert found_ms < 60 if always else found_ms > 300


def test_cold_start(healthy: Diagnosis) -> None:
    diagnosis = diagnose(simulate(rate=20, cold=400.0))
    assert diagnosis.verdict == "cold.start"
    assert any("warm-up" in note for note in diagnosis.notes)
    assert healthy.verdict != "cold.start"


@pytest.mark.parametrize(("batches", "advised"), [(0, True), (60, False)])
def test_a_warm_up_is_advised_where_there_was_none(batches: int, advised: bool) -> None:
    record = simulate(rate=20, cold=400.0)
    warm = replace(record, meta=record.meta.updated(warmup={"batches": batches, "shapes": 6, "seconds": 1.7}))
    notes = diagnose(warm, bootstrap=50).notes
    assert any("warmup_requests = 10 in workload.toml excludes it" in note for note in notes) is advised


def test_a_live_record_whose_older_parts_are_gone_begins_with_no_first_use() -> None:
    record = simulate(rate=20, compute_faults={0: ("cpu", 400.0)})
    both = [diagnose(each, bootstrap=60) for each in (record, replace(record, begins=False))]
    first, later = ({cause.cause for cause in found.causes} for found in both)
    assert "cold.start" in first and "cold.start" not in later


@pytest.mark.parametrize("harmless", [0.1, 1.0])
def test_denormals_that_cost_nothing_are_no_cause(harmless: float) -> None:
    """A slow core hits units with and without denormals; if all have some, their cost is unknown."""
    chosen = np.random.default_rng(3).random(600) < harmless
    met = dict.fromkeys(np.flatnonzero(chosen).tolist(), ("denormals", 0.0))
    slow = {k: ("denormals" if k in met else "cpu", 40.0) for k in some("cpu", 40.0)}
    diagnosis = diagnose(simulate(rate=20, compute_faults=met | slow), bootstrap=60)
    assert diagnosis.verdict == "host.slowdown"
    assert entry(diagnosis, "numerics.denormals") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("gave_up", [True, False])
def test_batches_that_run_uncompiled_for_good(gave_up: bool) -> None:
    """Shapes from before the limit have a compiled version; later ones are slow every time."""
    lengths = np.full(900, 100)
    lengths[500::20] = 110
    slow = dict.fromkeys(np.flatnonzero(lengths == 110).tolist(), ("cpu", 40.0))
    record = simulate(n=900, rate=20, lengths=lengths, compute_faults=slow | {30: ("cpu", 40.0)})
    times = np.arange(0, int(record.requests["arrival_ns"][-1]), 500_000_000)
    hits = (times > record.requests["arrival_ns"][450]) * float(gave_up)
    diagnosis = diagnose(add_samples(record, {"compile.limit_hits": (times, hits)}), bootstrap=60)
    assert (diagnosis.verdict == "cold.compile") == gave_up
    if gave_up:
        assert entry(diagnosis, "cold.compile")[0] > 0.8 * diagnosis.excess_ms
        assert "20 batches of shapes that came later ran uncompiled" in diagnosis.causes[0].evidence


@pytest.mark.parametrize(("unit", "cause"), [("prepare", "external.dependency"), ("compute", "unexplained")])
@pytest.mark.parametrize(
    ("waits_ms", "words"),
    [
        ((500.2, 1001.0, 500.4, 1500.9, 1000.5), "up to 3 sleeps of 0.50 s"),
        ((40.2, 40.1, 40.3, 40.1), "are one sleep of 40.1 ms, or a timeout"),
        ((41.0, 88.0, 57.0, 130.0, 71.0, 103.0, 64.0), ""),
    ],
)
def test_sleeps_of_one_length_are_reported(unit: str, cause: str, waits_ms: tuple[float, ...], words: str) -> None:
    faults = {k: ("blocked", waits_ms[at % len(waits_ms)]) for at, k in enumerate(some("blocked", 1.0))}
    diagnosis = diagnose(simulate(rate=5, **{f"{unit}_faults": faults}), bootstrap=20)
    evidence = next(c.evidence for c in diagnosis.causes if c.cause == cause)
    assert words in evidence
    assert ("sleep" in evidence) == bool(words)


@pytest.mark.parametrize("read", [pytest.param(True, id="own"), pytest.param(False, id="inherited")])
def test_a_core_lost_before_the_counters_of_compute_are_read_is_contention(read: bool) -> None:
    # GIVEN a delay in the counters of compute that came after its end; those of finish are read or not
    record = simulate(compute_faults=some("runq", 60.0))
    rows, batches = ({name: column.copy() for name, column in of.items()} for of in (record.requests, record.batches))
    struck = batches["compute_runq_ns"] > 50_000_000
    for name in ("compute_end_ns", "d2h_end_ns"):
        batches[name][struck] -= 60_000_000
    members = struck[np.searchsorted(batches["batch_id"], rows["batch_id"])]
    rows["compute_ns"][members] -= 60_000_000
    rows["finish_ns"][members] += 60_000_000
    rows["finish_wait_ns"][members & (rows["finish_wait_ns"] > 0)] += 60_000_000
    rows["finish_cpu_ns"] *= read
    diagnosis = diagnose(replace(record, requests=rows, batches=batches))
    assert diagnosis.verdict == "host.contention"
    assert entry(diagnosis, "external.dependency")[0] < 0.01 * diagnosis.excess_ms


@pytest.mark.parametrize("threads", [1, 2])
def test_unlisted_slowdown_is_unexplained(threads: int) -> None:
    # GIVEN blocked time in compute, which no probe accounts for, with or without a thread pool
    meta = {"torch_threads": threads}
    diagnosis = diagnose(simulate(rate=20, compute_faults=some("blocked", 60.0), meta=meta))
    assert diagnosis.verdict == "inconclusive"
    assert entry(diagnosis, "unexplained")[0] > 0.8 * diagnosis.excess_ms
    assert entry(diagnosis, "host.slowdown")[0] < 0.01 * diagnosis.excess_ms
    assert not next(c for c in diagnosis.causes if c.cause == "unexplained").named


def test_heavy_inputs_are_input_size_and_no_fault() -> None:
    lengths = np.minimum(np.exp(np.random.default_rng(3).normal(4.0, 1.0, 800)), 3000).astype(np.int64)
    diagnosis = diagnose(simulate(n=800, rate=6, lengths=lengths))
    assert diagnosis.verdict == "input.size"
    total, own, _ = entry(diagnosis, "input.size")
    assert total > 0.75 * diagnosis.excess_ms and own > 0
    model = diagnosis.models["compute"]
    assert model["accepted"] and model["r2"] > 0.9


def test_padding() -> None:
    lengths = np.where(np.random.default_rng(5).random(1500) < 0.04, 2500, 60).astype(np.int64)
    record = simulate(n=1500, rate=60, lengths=lengths, max_batch=8, window=20.0)
    diagnosis = diagnose(record)
    padding = entry(diagnosis, "batching.padding")[0]
    assert diagnosis.verdict == "batching.padding"
    assert padding > entry(diagnosis, "input.size")[0]
    # WHEN the same inputs are never batched THEN nothing is padding
    assert entry(diagnose(simulate(n=1500, rate=6, lengths=lengths)), "batching.padding")[0] == 0


def test_long_window() -> None:
    diagnosis = diagnose(simulate(rate=20, max_batch=8, window=60.0))
    assert diagnosis.verdict == "batching.window"
    assert diagnosis.causes[0].whatif_ms["p50"] < 0.6 * diagnosis.latency_ms["p50"]
    assert entry(diagnose(simulate(rate=20, max_batch=8)), "batching.window") == (0.0, 0.0, 0.0)


def test_burst_and_overload() -> None:
    lulls = np.arange(0, 60000, 150.0)
    arrivals = np.sort(np.concatenate([lulls, np.repeat(np.arange(5000, 60000, 10000.0), 30)]))
    burst = diagnose(simulate(n=len(arrivals), arrivals_ms=arrivals, workers=2, max_batch=3))
    assert any("(2 workers, batches of up to 3)" in c.evidence for c in burst.causes if c.cause == "traffic.burst")
    assert diagnose(simulate(n=len(arrivals), arrivals_ms=arrivals)).verdict == "traffic.burst"
    assert diagnose(simulate(rate=140)).verdict == "traffic.overload"


def test_priority() -> None:
    priority = np.random.default_rng(2).choice([0, 2], 800).astype(np.int8)
    record = simulate(n=800, rate=85, priority=priority)
    diagnosis = diagnose(record)
    assert diagnosis.verdict == "traffic.priority"
    ledger = diagnosis.ledger
    overtaken = ledger.own_ns[ledger.causes.index("traffic.priority")]
    assert overtaken[priority == 2].mean() > 0 > overtaken[priority == 0].mean()
    assert entry(diagnose(simulate(n=800, rate=85)), "traffic.priority") == (0.0, 0.0, 0.0)


def test_settings_that_were_not_in_effect_are_noted() -> None:
    record = simulate(rate=20)
    ignored = replace(
        record, meta=replace(record.meta, setup_notes=("overlap needs a GPU: not in effect on the CPU",))
    )
    assert "overlap needs a GPU: not in effect on the CPU." in diagnose(ignored, bootstrap=20).notes


def test_late_dispatch_is_the_observers(healthy: Diagnosis) -> None:
    late = {int(k): 60.0 for k in np.random.default_rng(1).choice(600, 30, replace=False)}
    diagnosis = diagnose(simulate(rate=20, dispatch=late))
    assert diagnosis.verdict == "observer"
    assert not diagnosis.trustworthy
    assert "too slow" in diagnosis.notes[0]
    assert healthy.trustworthy


def test_a_throttled_thread_may_look_blocked() -> None:
    """Newer kernels dequeue throttled threads; the cgroup's counter shows what stopped them."""
    faults = some("blocked", 60.0)
    record = simulate(rate=20, prepare_faults=faults)
    assert entry(diagnose(record), "external.dependency")[0] > 0
    rows = record.requests
    times, values, total = [0], [0.0], 0.0
    for index in sorted(faults):
        start = int(rows["arrival_ns"][index] + rows["dispatch_ns"][index] + rows["prepare_wait_ns"][index])
        total += 60e6
        times += [start, start + int(rows["prepare_ns"][index])]
        values += [values[-1], total]
    throttled = diagnose(add_samples(record, {"cgroup.throttled_ns": (np.array(times), np.array(values))}))
    assert throttled.verdict == "host.throttle"
    assert entry(throttled, "host.throttle")[0] > 10 * abs(entry(throttled, "external.dependency")[0])


@pytest.mark.parametrize("ms", [450.0, 6.0])
def test_the_slowest_requests_are_explained_at_any_percentile(ms: float) -> None:
    """Three of 600 requests do not affect p99's cause, but are mentioned if they are far slower."""
    struck = dict.fromkeys((150, 300, 450), ("blocked", ms))
    diagnosis = diagnose(simulate(arrivals_ms=np.arange(600) * 500.0, prepare_faults=struck), bootstrap=20)
    largest = diagnosis.largest
    assert largest is not None and largest.requests == 10
    assert largest.most_ms == diagnosis.latency_ms["max"] > ms
    assert next(iter(largest.causes_ms)) == "external.dependency"
    assert sum(largest.causes_ms.values()) == pytest.approx(largest.excess_ms)
    words = [line.words for line in diagnosis_answer(diagnosis).lines if line.label == "slowest"]
    assert [text.startswith("the 10 slowest took") and "external.dependency is" in text for text in words] == (
        [True] if ms > 100 else []
    )


@pytest.mark.parametrize("ms", [0.0, 50.0])
def test_a_throttled_neighbor_is_reported(ms: float) -> None:
    """Waits of 60 ms, during 50 ms of which another control group was throttled."""
    faults = some("blocked", 60.0)
    record = simulate(rate=5, prepare_faults=faults)
    rows = record.requests
    starts = (rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_wait_ns"])[sorted(faults)]
    times = np.sort(np.concatenate([starts, starts + 60 * MS]))
    grown = np.repeat(np.arange(len(starts) + 1), 2)[1:-1] * ms * MS
    found = diagnose(add_samples(record, {"neighbor.throttled_ns.cache": (times, grown)}), bootstrap=20)
    assert found.verdict == "external.dependency"
    assert ("the control group cache was throttled" in found.causes[0].evidence) == bool(ms)


def test_two_causes_at_once() -> None:
    gc, contention = some("gc", 80.0, 600, 8), {k + 1: v for k, v in some("runq", 80.0, 600, 16).items()}
    diagnosis = diagnose(simulate(rate=15, compute_faults=contention | gc), percentile=95)
    assert {diagnosis.causes[0].cause, diagnosis.causes[1].cause} == {"python.gc", "host.contention"}


def test_a_collection_elsewhere_costs_nothing_without_waits() -> None:
    # GIVEN collections in another thread while compute ran on without the interpreter lock
    record = simulate(rate=20)
    record = collect(record, record.batches["h2d_end_ns"][:200] + 1_000_000, 5)
    assert entry(diagnose(record), "python.gc")[0] == pytest.approx(0.0, abs=0.05)


def test_what_if_predicts_the_run_without_the_cause() -> None:
    faulty = diagnose(simulate(n=1500, rate=30, compute_faults=some("gc", 80.0, 1500, 30)), bootstrap=20)
    healthy = diagnose(simulate(n=1500, rate=30), bootstrap=20)
    predicted = next(c for c in faulty.causes if c.cause == "python.gc").whatif_ms["p99"]
    assert faulty.latency_ms["p99"] > 2 * healthy.latency_ms["p99"]
    assert predicted == pytest.approx(healthy.latency_ms["p99"], rel=0.1)


def test_the_sentence_has_percentile_share_and_cause() -> None:
    diagnosis = diagnose(simulate(rate=40, compute_faults=some("gc", 100.0)))
    assert diagnosis.sentence.startswith("p99 is ")
    assert "garbage collector" in diagnosis.sentence
    assert f"{100 * diagnosis.causes[0].tail_share:.0f} % of the excess" in diagnosis.sentence


def test_lag_that_a_collection_made_is_the_collections() -> None:
    # GIVEN requests taken in late while a collection in a prepare thread held the interpreter lock
    late = {int(k): 60.0 for k in np.random.default_rng(1).choice(600, 30, replace=False)}
    record = simulate(rate=20, intake=late)
    # THEN the replay is not the cause, and its percentiles are valid
    diagnosis = diagnose(collect(record, record.requests["arrival_ns"][sorted(late)], 60))
    assert diagnosis.verdict == "python.gc"
    assert diagnosis.trustworthy
    # AND requests that were sent late are the replay's, whatever the service did at the time
    record = simulate(rate=20, dispatch=late)
    diagnosis = diagnose(collect(record, record.requests["arrival_ns"][sorted(late)], 60))
    assert diagnosis.verdict == "observer"
    assert not diagnosis.trustworthy and diagnosis.trustworthy == is_on_time(record)


def test_requests_that_were_taken_in_late_are_the_services() -> None:
    """Late intake is never the replay's, with or without a known reason."""
    late = {int(k): 60.0 for k in np.random.default_rng(1).choice(600, 30, replace=False)}
    record = simulate(rate=20, intake=late)
    unknown = diagnose(record)
    record.requests["intake_runq_ns"][:] = record.requests["intake_ns"]
    contended = diagnose(record)
    assert entry(unknown, "unexplained")[0] > 20 and contended.verdict == "host.contention"
    for diagnosis in (unknown, contended):
        assert diagnosis.trustworthy and "observer" not in {cause.cause for cause in diagnosis.causes}
        assert diagnosis.stages_ms["prepare"]["tail"] > 20
        ledger = diagnosis.ledger
        total = ledger.reference_ns + ledger.own_ns.sum(axis=0) + ledger.propagated_ns.sum(axis=0)
        assert (total == ledger.latency_ns).all()


def test_steal_of_all_cores_costs_a_thread_its_own_share() -> None:
    # GIVEN four cores that the hypervisor took for a third of the time in which a few units were under way
    rng = np.random.default_rng(2)
    struck = {int(k): ("cpu", 20.0) for k in rng.choice(np.arange(20, 600), 12, replace=False)}
    record = simulate(compute_faults=struck)
    rows = record.requests
    times = np.arange(0, int(rows["arrival_ns"].max()) + 500 * MS, 20 * MS, dtype=np.int64)
    stolen, busy = np.zeros(len(times)), np.full(len(times), 80.0 * MS)
    for k in struck:
        begun, end = rows["arrival_ns"][k], rows["arrival_ns"][k] + rows["latency_ns"][k]
        stolen[(times > begun) & (times < end + 20 * MS)] = 80.0 * MS / 3
    series = {"host.steal_ns": (times, np.cumsum(stolen)), "host.cpu_busy_ns": (times, np.cumsum(busy))}
    ledger = diagnose(add_samples(record, series)).ledger
    steal = ledger.own_ns[ledger.causes.index("host.steal")][np.isin(ledger.request, list(struck))]
    # THEN it owns a third of their 30 ms on a core, not the sum over all cores
    assert np.median(steal) == pytest.approx(10.0 * MS, rel=0.25)


def test_a_unit_that_was_never_switched_away_from_stood_still_with_the_machine() -> None:
    chosen = dict.fromkeys(range(30, 600, 50), ("blocked", 30.0))
    record = simulate(prepare_faults=chosen)
    record.requests["prepare_vcsw"][:] = 1
    assert diagnose(record).verdict == "external.dependency"
    record.requests["prepare_vcsw"][list(chosen)] = 0
    found = diagnose(record)
    assert found.verdict == found.causes[0].cause == "host.steal"
    assert "; 12 times a thread that waited for nothing stood still, for up to 3" in found.causes[0].evidence


def test_a_page_that_seems_to_cost_more_than_any_has_the_calibrated_price() -> None:
    # GIVEN units that fault heavily and are slow for a reason of their own
    chosen = dict.fromkeys(range(30, 600, 40), ("cpu", 30.0))
    record = simulate(compute_faults=chosen)
    record.batches["compute_minflt"][record.requests["batch_id"][list(chosen)]] = 2_000
    diagnosis = diagnose(record)
    faults = next(each for each in diagnosis.causes if each.cause == "memory.page_faults")
    assert diagnosis.verdict == "host.slowdown" and "500 ns each" in faults.evidence
    assert faults.tail_share < 0.1


@pytest.mark.parametrize(("kind", "verdict"), [("gc", "python.gc"), ("blocked", "inconclusive")])
def test_a_worker_that_requests_join_between_steps_is_one_thread(kind: str, verdict: str) -> None:
    """The batches' column counts each slot as a worker; the first use of a slot is not cold."""
    struck = dict.fromkeys(range(205, 400, 13), (kind, 60.0))
    record = simulate(n=400, arrivals_ms=np.arange(400) * 150.0, workers=4, compute_faults=struck)
    record.events["thread"][:] = 9000
    record.batches["worker"][:205] = 0
    settings = {"batching": "continuous", "max_batch_size": 4, "workers": 1}
    meta = record.meta.updated(settings=settings, threads={"worker": [9000]})
    found = diagnose(replace(record, meta=meta), percentile=95, bootstrap=60)
    assert found.verdict == verdict
    assert entry(found, "cold.start")[0] < 0.1
    assert entry(found, "python.gc" if kind == "gc" else "unexplained")[0] > 0.9 * found.excess_ms


@pytest.mark.parametrize("earlier", [True, False])
def test_a_quota_that_ran_out_before_a_batch_did_not_hold_it_up(earlier: bool) -> None:
    """The worker reads the counter only after waits for a core: its growth may be much older."""
    struck = some("runq", 40.0)
    record = simulate(rate=10, compute_faults=struck)
    batches = record.batches
    hit = np.isin(record.requests["index"], sorted(struck))
    rows = np.searchsorted(batches["batch_id"], record.requests["batch_id"][hit])
    batches["throttled_ns"][rows] = 40 * MS
    times = np.arange(0, int(batches["finish_end_ns"][-1]) + 100 * MS, 100 * MS)
    when = batches["h2d_end_ns"][rows] - (300 * MS if earlier else 0)
    total = 40 * MS * np.searchsorted(np.sort(when), times - 20 * MS)
    found = diagnose(add_samples(record, {"cgroup.throttled_ns": (times, total)}), bootstrap=20)
    assert found.verdict == ("host.contention" if earlier else "host.throttle")
