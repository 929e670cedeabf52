"""The fixes of batching, order and admission: when they apply, what they compute, and what verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedQueue
from latfix.queueing.serving_order import Backlog, FixedLimits, Ordering
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import admit_limit, admit_shed
from latfix.runners.fixes.batch import adaptive as batch_adaptive
from latfix.runners.fixes.batch import bucket as batch_bucket
from latfix.runners.fixes.batch import continuous as batch_continuous
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.host import workers as host_workers
from latfix.runners.fixes.schedule import memory_aware as schedule_memory_aware
from latfix.runners.fixes.schedule import priority as schedule_priority
from latfix.runners.fixes.schedule import shortest_expected as schedule_shortest_expected
from latfix.runners.fixes.shared.queue_evidence import Waits, choose_ageing_ms, learned, overtaking
from latfix.settings import RunnerSettings
from tests.runners.scheduling.simulated_runs import offer, recorded

MS = 1_000_000
FIXES: tuple[Fix, ...] = (
    batch_adaptive.FIX,
    schedule_priority.FIX,
    schedule_shortest_expected.FIX,
    schedule_memory_aware.FIX,
    admit_limit.FIX,
    admit_shed.FIX,
)
BEFORE = RunnerSettings(max_batch_size=4, batch_window_ms=20.0)


def _lengths(rng: np.random.Generator, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.where(rng.random(n) < 0.15, rng.integers(300, 500, n), rng.integers(20, 60, n)).astype(np.int64)


def _service(members: Sequence[Offered]) -> int:
    longest = max(one.length for one in members)
    return int((2.0 + 0.05 * len(members) * longest) * MS)


def _queue(settings: RunnerSettings) -> SimulatedQueue:
    ordering = Ordering(schedule=settings.schedule, ageing_ns=int(settings.ageing_ms * MS))
    return SimulatedQueue(
        service=_service,
        limits=FixedLimits(settings.max_batch_size, int(settings.batch_window_ms * MS)),
        backlog=Backlog(ordering=ordering),
    )


@pytest.fixture(scope="module")
def traffic() -> list[Offered]:
    """Classes, lengths that differ, deadlines, and a phase of overload."""
    made = offer(
        (10.0, 60.0), (5.0, 170.0), (15.0, 60.0), ranks=(0.3, 0.4, 0.3), lengths=_lengths, seed=2, deadline_ms=600.0
    )
    return [replace(one, share=one.length / 100.0) for one in made]


@pytest.fixture(scope="module")
def baseline(traffic: list[Offered]) -> RunRecord:
    record = recorded(traffic, _queue(BEFORE).run(traffic), BEFORE)
    grown = np.zeros(len(record.batches["size"]), dtype=np.int64)
    grown[:20] = 16 << 20
    record.batches["compute_resident_bytes"] = grown
    return record


def _context(record: RunRecord, settings: RunnerSettings = BEFORE) -> Context:
    undiagnosed = cast(Diagnosis, None)  # these fixes use only the record
    return Context(settings=settings, record=record, diagnosis=undiagnosed, default_collate=True, cores=2)


def test_overload_calls_for_every_fix(baseline: RunRecord) -> None:
    assert [fix.obstacle(_context(baseline)) for fix in FIXES] == [""] * len(FIXES)


def _calm(**more: Any) -> RunRecord:
    traffic = offer((20.0, 5.0), seed=3, **more)
    return recorded(traffic, _queue(BEFORE).run(traffic), replace(BEFORE, batch_window_ms=0.0))


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        (schedule_priority.FIX, "one priority"),
        (schedule_shortest_expected.FIX, "requests hardly wait"),
        (schedule_memory_aware.FIX, "alike"),
        (admit_limit.FIX, "0 of"),
        (admit_shed.FIX, "no request has a deadline"),
    ],
    ids=lambda value: value.id if isinstance(value, Fix) else None,
)
def test_a_fix_reports_why_it_does_not_apply(fix: Fix, words: str) -> None:
    assert words in fix.obstacle(_context(_calm()))


def test_reasons_have_figures(baseline: RunRecord, traffic: list[Offered]) -> None:
    single = _context(baseline, replace(BEFORE, max_batch_size=1))
    assert "one by one" in batch_adaptive.FIX.obstacle(single)
    assert "one by one" in schedule_memory_aware.FIX.obstacle(single)
    calm = _calm(ranks=(0.5, 0.5))
    assert "no class waits much longer" in schedule_priority.FIX.obstacle(_context(calm))
    late = _calm(deadline_ms=5_000.0)
    assert "only 0 of" in admit_shed.FIX.obstacle(_context(late))
    # If no request was lost, every request that a limit sheds would be a loss.
    slow = offer((10.0, 60.0), (5.0, 170.0), lengths=_lengths, seed=2)
    slow_run = recorded(slow, _queue(BEFORE).run(slow), BEFORE)
    assert float(np.percentile(slow_run.requests["latency_ns"], 99)) > 500 * MS
    assert "would be lost in addition" in admit_limit.FIX.obstacle(_context(slow_run))
    alike = [replace(one, length=50) for one in traffic]
    same = recorded(alike, _queue(BEFORE).run(alike), BEFORE)
    assert "length explains only" in schedule_shortest_expected.FIX.obstacle(_context(same))
    rng = np.random.default_rng(0)
    same.requests["bucket_length"] = same.requests["input_elements"] = rng.integers(1, 500, len(traffic))
    assert "length explains only" in schedule_shortest_expected.FIX.obstacle(_context(same))
    baseline.batches["compute_resident_bytes"][:] = 0
    assert "no more than 0 MB" in schedule_memory_aware.FIX.obstacle(_context(baseline))


def test_memory_and_continuous_batches_exclude_each_other(baseline: RunRecord) -> None:
    continuous = replace(BEFORE, batching="continuous")
    assert "continuous" in schedule_memory_aware.FIX.obstacle(_context(baseline, continuous))
    notes = {"kind": np.array(["note"], dtype=object), "detail": np.array([{"steps": True}], dtype=object)}
    steps = replace(baseline, events={**baseline.events, **notes})
    assert batch_continuous.FIX.obstacle(_context(steps)) == ""
    assert "64 MB" in batch_continuous.FIX.obstacle(_context(steps, replace(BEFORE, memory_limit_mb=64)))


def test_without_the_feature_lengths_are_those_of_the_inputs(baseline: RunRecord) -> None:
    """As in the engine: a request without the feature is ordered by its inputs."""
    column = np.full(len(baseline.traffic.ids), 7.0)
    column[3] = np.nan
    partial = replace(baseline, traffic=replace(baseline.traffic, features={"tokens": column}))
    found = batch_bucket._by_key(partial, "tokens").requests["bucket_length"]
    assert found[2] == 7 and found[3] == partial.requests["input_elements"][3] > 0


def test_places_of_continuous_batches_are_no_workers(baseline: RunRecord) -> None:
    """Eight places of one worker against sixteen of two: one more busy worker, however many places were used."""

    def run(workers: int, places: Sequence[int]) -> RunRecord:
        settings = {"batching": "continuous", "max_batch_size": 8, "workers": workers}
        batches = {**baseline.batches, "worker": np.resize(np.array(places), len(baseline.batches["worker"]))}
        return replace(baseline, meta=baseline.meta.updated(settings=settings), batches=batches)

    one, two = run(1, range(8)), run(2, (0, 1, 8))
    assert _verified(host_workers.FIX, two, one).evidence.startswith("2 workers ran")
    assert _verified(host_workers.FIX, two, one).effective
    assert not _verified(host_workers.FIX, one, one).effective


def test_values_come_from_the_record(baseline: RunRecord) -> None:
    stated = replace(baseline, meta=baseline.meta.updated(objective={"percentile": 99, "slo_ms": 250.0}))
    limits = {"batching": "adaptive", "target_ms": 250.0, "window_least_ms": 10.0, "window_most_ms": 100.0}
    assert batch_adaptive.FIX.change(_context(stated)) == limits
    computed = batch_adaptive.FIX.change(_context(baseline, replace(BEFORE, batch_window_ms=2.0)))
    own = float(np.median(baseline.requests["compute_ns"])) / MS
    assert computed["target_ms"] == pytest.approx(2 * own, rel=0.3) and computed["window_least_ms"] == 2.0
    waits = Waits.of(baseline)
    median = float(np.median(waits.wait[waits.wait > 0])) / MS
    ageing = schedule_priority.FIX.change(_context(baseline))["ageing_ms"]
    assert 0.2 * median <= ageing <= 32.1 * median


def test_the_chosen_ageing_is_near_the_best_of_those_tried(traffic: list[Offered], baseline: RunRecord) -> None:
    def p99(ageing_ms: float) -> float:
        run = _queue(replace(BEFORE, schedule="shortest", ageing_ms=ageing_ms)).run(traffic)
        return float(np.percentile(run.latency_ns(), 99))

    chosen = choose_ageing_ms(baseline, BEFORE, "shortest")
    tried = [p99(ms) for ms in (1.0, 20.0, 80.0, 320.0, 1280.0)]
    assert p99(chosen) <= 1.2 * min(tried)
    assert p99(chosen) < float(np.percentile(_queue(BEFORE).run(traffic).latency_ns(), 99)) * 1.1


def _verified(fix: Fix, run: RunRecord, without: RunRecord) -> Verified:
    return fix.verify(Applied(evidence={}, record=run, without=without))


def _applied(fix: Fix, traffic: list[Offered], baseline: RunRecord) -> RunRecord:
    settings = BEFORE.with_overrides(fix.change(_context(baseline)))
    return recorded(traffic, _queue(settings).run(traffic), settings, series={"runner.work_explained": [0.0, 0.9]})


@pytest.mark.parametrize("fix", [schedule_priority.FIX, schedule_shortest_expected.FIX], ids=lambda fix: fix.id)
def test_orders_are_verified_by_overtaking_requests(fix: Fix, traffic: list[Offered], baseline: RunRecord) -> None:
    changed = _applied(fix, traffic, baseline)
    assert _verified(fix, changed, baseline).effective
    idle = replace(baseline, meta=changed.meta)  # only the settings show it, the run does not
    refuted = _verified(fix, idle, baseline)
    assert not refuted.effective and "without" in refuted.evidence


def test_overtaking_is_counted_by_hand() -> None:
    # Order of coming 0 1 2 3, taken up: 0 at once, then 3, 2, 1. Classes: 1 is high, the others normal.
    waits = Waits(
        rank=np.array([1, 0, 1, 1]),
        length=np.array([5, 5, 9, 4]),
        elements=np.array([5, 5, 9, 4]),
        enqueued=np.array([0, 10, 20, 30]),
        taken=np.array([0, 300, 200, 100]),
        latency=np.array([1, 1, 1, 1]),
        first=np.array([True, True, False, True]),
    )
    seen = overtaking(waits)
    assert (seen.lower_first, seen.same_class, seen.shorter) == (2, 1, 1)
    # By length, a later request may be in a batch for its similar length, so request 2 is not checked.
    seen = overtaking(waits, by_length=True)
    assert (seen.lower_first, seen.same_class, seen.shorter) == (1, 1, 1)


def test_shortest_first_is_verified_with_batches_by_length() -> None:
    """Gentle fixes are tried together: overtaking by similar length must not count against the order."""
    few = np.array([10, 20, 40, 200])
    traffic = offer((3.0, 60.0), (2.0, 250.0), (10.0, 60.0), lengths=lambda rng, n: rng.choice(few, n), seed=8)
    traffic = [replace(one, share=one.length / 70.0) for one in traffic]
    baseline = recorded(traffic, _queue(BEFORE).run(traffic), BEFORE)
    settings = replace(BEFORE, schedule="shortest", ageing_ms=4.0, batch_order="length")
    queue = _queue(settings)
    queue.backlog = Backlog(ordering=Ordering(schedule="shortest", ageing_ns=4 * MS), by_length=True)
    both = recorded(traffic, queue.run(traffic), settings, series={"runner.work_explained": [0.0, 0.9]})
    plain = overtaking(Waits.of(both))
    assert plain.shorter < 0.9 * plain.same_class
    assert _verified(schedule_shortest_expected.FIX, both, baseline).effective
    # Batches by length alone do not verify it.
    queue = _queue(BEFORE)
    queue.backlog = Backlog(by_length=True)
    like = recorded(traffic, queue.run(traffic), settings)
    assert not _verified(schedule_shortest_expected.FIX, like, baseline).effective


def test_the_controller_is_verified_by_what_it_reported(baseline: RunRecord) -> None:
    fix, settings = batch_adaptive.FIX, baseline.meta.settings
    moved = {"runner.batch_limit": [4.0, 3.0, 2.0], "runner.window_ms": [10.0, 12.0]}
    still = {"runner.batch_limit": [4.0, 4.0], "runner.window_ms": [20.0, 20.0]}

    def run(series: dict[str, list[float]]) -> RunRecord:
        return replace(baseline, samples=_empty_run(series=series).samples)

    assert settings.max_batch_size == 4 and settings.batch_window_ms == 20.0
    assert "from 2 to 4" in _verified(fix, run(moved), baseline).evidence
    assert _verified(fix, run(moved), baseline).effective
    assert not _verified(fix, run(still), baseline).effective
    assert not _verified(fix, baseline, baseline).effective


@pytest.mark.parametrize(
    ("fix", "series"),
    [
        (admit_limit.FIX, {"runner.concurrency_limit": [8.0, 12.0], "runner.shed_at_limit": [0.0, 9.0]}),
        (admit_shed.FIX, {"runner.refused_by_deadline": [0.0, 9.0], "runner.dropped_by_deadline": [0.0, 0.0]}),
    ],
    ids=lambda value: value.id if isinstance(value, Fix) else None,
)
def test_shed_requests_are_compared_with_requests_lost_before(
    fix: Fix, series: dict[str, list[float]], traffic: list[Offered], baseline: RunRecord
) -> None:
    settings = BEFORE.with_overrides(fix.change(_context(baseline)))
    run = _queue(BEFORE)
    run.admission = lambda _now, one, _inside: one.arrival_ns % 10 > 0
    shedding = recorded(traffic, run.run(traffic), settings, series=series)
    found = _verified(fix, shedding, baseline)
    counts = shedding.counts()
    total = sum(counts.values())
    assert 0 < counts["shed"] <= total - counts["ok"] < total == len(traffic)
    assert found.effective
    assert f"{counts['shed']} of {total} requests" in found.evidence and "without: 0 of" in found.evidence
    nothing = recorded(traffic, _queue(BEFORE).run(traffic), settings, series=series)
    assert not _verified(fix, nothing, baseline).effective
    assert not _verified(fix, baseline, baseline).effective, "there was no such policy"


def test_memory_is_verified_by_actual_batches(traffic: list[Offered], baseline: RunRecord) -> None:
    fix = schedule_memory_aware.FIX
    change = fix.change(_context(baseline))
    assert change["schedule"] == "work_per_byte" and change["memory_limit_mb"] >= 1 and change["ageing_ms"] > 0
    settings = BEFORE.with_overrides(change)
    each = 20 * (16 << 20) / float(baseline.batches["padded_elements"].mean())
    limited = [replace(one, memory=int(each * one.length)) for one in traffic]
    queue = _queue(BEFORE)
    queue.backlog = Backlog(memory_limit=settings.memory_limit_mb << 20)
    run = queue.run(limited)
    series = {"runner.bytes_per_element": [0.0, each]}
    changed = recorded(limited, run, settings, series=series)
    assert _verified(fix, changed, baseline).effective
    unmeasured = recorded(limited, run, settings, series={"runner.bytes_per_element": [0.0, 0.0]})
    assert "could not be measured" in _verified(fix, unmeasured, baseline).evidence
    unlimited = recorded(limited, _queue(BEFORE).run(limited), settings, series=series)
    assert not _verified(fix, unlimited, baseline).effective


def test_estimates_from_a_record_match_its_service(baseline: RunRecord) -> None:
    estimate = learned(baseline)
    assert estimate.line.explained > 0.5
    one = Offered(arrival_ns=0, length=400)
    assert estimate.batch_compute_ns(1, 400) == pytest.approx(_service([one]), rel=0.3)


def _empty_run(**more: Any) -> RunRecord:
    nothing = np.zeros(0, dtype=np.int64)
    return recorded([], Simulated(nothing, nothing, nothing), BEFORE, **more)


def test_a_run_without_requests_hinders_nothing() -> None:
    empty = _context(_empty_run())
    assert all(fix.obstacle(empty) for fix in FIXES)
