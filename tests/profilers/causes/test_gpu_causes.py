"""Causes from NVML readings and allocator counters: clocks, other processes, memory calls. Simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from tests.profilers.causes.diagnosed import causes_of, own_ms
from tests.profilers.samples import add_samples, sample_columns
from tests.profilers.simulated_runs import simulate

_MS = 1_000_000
#: Requests in six stretches of some seconds; with fewer stretches, a resample may contain hardly any.
_STRETCHES = tuple(range(first, first + 40) for first in range(100, 880, 130))
_HIT = [k for stretch in _STRETCHES for k in stretch]

Reading = Callable[[np.ndarray[Any, Any]], Sequence[float]]


def _with_readings(record: RunRecord, series: Mapping[str, Reading]) -> RunRecord:
    """Readings once a second, as functions of the mask of readings within the stretches."""
    arrival = record.requests["arrival_ns"]
    times = np.arange(arrival[0] - 500 * _MS, arrival[-1] + 1500 * _MS, 1000 * _MS)
    inside = np.zeros(len(times), bool)
    for stretch in _STRETCHES:
        inside |= (times >= arrival[stretch[0]] - 500 * _MS) & (times <= arrival[stretch[-1]] + 500 * _MS)
    readings = {name: (times, np.asarray(reading(inside), dtype=np.float64)) for name, reading in series.items()}
    return replace(record, samples=sample_columns(readings))


@pytest.fixture(scope="module")
def slowed() -> RunRecord:
    """A run on a device that computed a third longer for a while."""
    faults = dict.fromkeys(_HIT, ("cpu", 14.0))
    return simulate(n=900, rate=10, base=25.0, compute_faults=faults, meta={"device": "cuda:0"})


def _level(inside: float, outside: float) -> Reading:
    return lambda within: np.where(within, inside, outside).tolist()


def _clock(low: float) -> Reading:
    return _level(low, 1980.0)


@pytest.mark.parametrize(("low", "owed_ms"), [(1200.0, 14.0), (1782.0, 28.5 / 9), (1960.0, 0.0), (1980.0, 0.0)])
def test_a_lower_clock_owns_the_extra_compute(slowed: RunRecord, low: float, owed_ms: float) -> None:
    """At a clock lower by a tenth, compute takes at most a ninth longer; the rest has another cause."""
    record = _with_readings(slowed, {"nvml.sm_clock_mhz": _clock(low), "nvml.clock_event_reasons": _level(4.0, 0.0)})
    own, found = own_ms(record, "gpu.clocks"), causes_of(record)
    assert np.median(own[_HIT]) == pytest.approx(owed_ms, rel=0.1) and np.median(np.delete(own, _HIT)) == 0
    assert ("gpu.clocks" in found) == bool(owed_ms)
    if low == 1200.0:
        words = "fell to 1200 MHz, 1980 MHz at a typical batch (NVML's reasons in the run: power cap)"
        assert found["gpu.clocks"].named and words in found["gpu.clocks"].evidence


@pytest.mark.parametrize(("counter", "owed_ms"), [("power", 14.0), ("thermal", 14.0), ("low_utilization", 0.0)])
def test_counters_cover_the_time_between_readings_of_the_clock(
    slowed: RunRecord, counter: str, owed_ms: float
) -> None:
    """The clock was low between two polls, but normal when it was read; a low clock while idle delays nothing."""
    series = {"nvml.sm_clock_mhz": _clock(1980.0), f"nvml.violation_{counter}_ns": _level(8e8, 0.0)}
    record = _with_readings(slowed, series)
    own, found = own_ms(record, "gpu.clocks"), causes_of(record)
    assert np.median(own[_HIT]) == pytest.approx(owed_ms, rel=0.1) and np.median(np.delete(own, _HIT)) == 0
    if owed_ms:
        assert "for up to 80.0 % of a second by NVML's counters" in found["gpu.clocks"].evidence


def _busy(others: float, device: str = "") -> Mapping[str, Reading]:
    return {
        f"nvml.{device}own_sm_util": _level(50.0, 50.0),
        f"nvml.{device}others_sm_util": _level(others, 0.0),
        f"nvml.{device}sm_clock_mhz": _clock(1980.0),
    }


def test_another_process_owns_the_extra_compute(slowed: RunRecord) -> None:
    record = _with_readings(slowed, _busy(50.0))
    contention = causes_of(record)["gpu.contention"]
    assert contention.named and np.median(own_ms(record, "gpu.contention")[_HIT]) == pytest.approx(14.0, rel=0.1)
    assert "with up to 50.0 % of it" in contention.evidence and contention.evidence_class == "modelled"
    assert "gpu.contention" not in causes_of(_with_readings(slowed, _busy(3.0))), "the other process hardly computes"


def test_nothing_is_claimed_on_the_cpu_or_without_readings_nearby(slowed: RunRecord) -> None:
    record = _with_readings(slowed, {**_busy(50.0), "nvml.sm_clock_mhz": _clock(1200.0)})
    ended = record.samples["t_ns"] < record.requests["arrival_ns"][_HIT[0]] - 6_000 * _MS
    far = replace(record, samples={name: column[ended] for name, column in record.samples.items()})
    for silent in (replace(record, meta=replace(record.meta, device="cpu")), slowed, far):
        assert not any(name.startswith("gpu.") for name in causes_of(silent))


def _counters(retries: float, pieces: float, calls: float) -> Mapping[str, Reading]:
    """Counters with this growth at each reading within a stretch."""

    def growing(by: float) -> Reading:
        return lambda inside: np.cumsum(np.where(inside, by, 0.0)).tolist()

    return {
        "cuda.alloc_retries": growing(retries),
        "cuda.device_allocs": growing(calls),
        "cuda.device_frees": growing(calls),
        "cuda.reserved_bytes": _level(4e9, 4e9),
        "cuda.inactive_split_bytes": _level(pieces, pieces),
    }


@pytest.fixture(scope="module")
def stalled() -> RunRecord:
    """A run on a device in which every third batch of a stretch stood still."""
    faults = dict.fromkeys(_HIT[::3], ("cpu", 60.0))
    return simulate(n=900, rate=10, base=25.0, compute_faults=faults, meta={"device": "cuda:0"})


def test_retries_with_free_pieces_are_fragmentation(stalled: RunRecord) -> None:
    record = _with_readings(stalled, _counters(retries=20, pieces=2e9, calls=30))
    cause = causes_of(record)["memory.fragmentation"]
    assert cause.named and np.median(own_ms(record, "memory.fragmentation")[_HIT[::3]]) == pytest.approx(60, rel=0.1)
    assert cause.evidence_class == "modelled", "calls are counted, their costs modelled"
    assert "freed cached memory" in cause.evidence and "1.91e+03 MiB were free" in cause.evidence


def test_calls_of_the_device_without_pieces_are_the_allocators(stalled: RunRecord) -> None:
    record = _with_readings(stalled, _counters(retries=0, pieces=0.0, calls=20))
    found = causes_of(record)
    assert found["memory.allocator"].named and "memory.fragmentation" not in found
    assert np.median(own_ms(record, "memory.allocator")[_HIT[::3]]) == pytest.approx(60.0, rel=0.1)


def test_no_more_batches_than_there_were_calls(stalled: RunRecord) -> None:
    """80 batches stood still, but the device was called only in every other of about thirty seconds."""
    own = own_ms(_with_readings(stalled, _counters(retries=0, pieces=0.0, calls=0.5)), "memory.allocator")
    assert len(_HIT[::3]) == 80 and 10 < np.count_nonzero(own > 30) < 40


@pytest.mark.parametrize("series", [_counters(retries=5, pieces=2e9, calls=5), {"nvml.sm_clock_mhz": _clock(1200.0)}])
def test_readings_without_a_slowdown_claim_nothing(series: Mapping[str, Reading]) -> None:
    quiet = simulate(n=900, rate=10, base=25.0, meta={"device": "cuda:0"})
    found = causes_of(_with_readings(quiet, series))
    assert not any(cause.named for name, cause in found.items() if name.startswith(("memory.", "gpu.")))


def _with_batches(record: RunRecord, calls: Mapping[int, Mapping[str, int]], *, pieces: int = 0) -> RunRecord:
    """The same counters at the end of each batch; ``calls`` by the only request of the batch."""
    batches = {name: column.copy() for name, column in record.batches.items()}
    batches["device_read"][:] = 1
    batches["device_reserved_bytes"][:] = 4 << 30
    batches["device_pieces_bytes"][:] = pieces
    for request, made in calls.items():
        for name, value in made.items():
            batches[name][batches["batch_id"] == record.requests["batch_id"][request]] = value
    return replace(record, batches=batches)


def _priced(record: RunRecord, malloc: float = 100_000.0) -> RunRecord:
    """With costs of calls on the idle device, nanoseconds."""
    prices = dict.fromkeys(("malloc_mib", "free", "free_mib", "sync"), 0.0)
    prices |= {"malloc": malloc, "malloc_low": 0.9 * malloc, "malloc_high": 1.1 * malloc}
    begin = np.zeros(1, np.int64)
    return add_samples(record, {f"cost.device_{name}_ns": (begin, np.array([ns])) for name, ns in prices.items()})


def _paged(record: RunRecord) -> RunRecord:
    """With expandable segments."""
    return replace(record, meta=record.meta.updated(device_memory={"settings": {"expandable_segments": True}}))


#: The batches that stood still.
_STALLED = _HIT[::3]


def test_each_batch_has_its_own_retries(stalled: RunRecord) -> None:
    """Every second stalled batch retried: no other batch gets a part, however long it took."""
    retried = _STALLED[::2]
    made = {k: {"alloc_retries": 1, "device_allocs": 1, "device_frees": 3} for k in retried}
    record = _with_batches(stalled, made, pieces=1 << 30)
    own = own_ms(record, "memory.fragmentation")
    assert np.median(own[retried]) == pytest.approx(60, rel=0.1)
    assert np.count_nonzero(np.delete(own, retried)) == 0
    evidence = causes_of(record)["memory.fragmentation"].evidence
    assert f"freed cached memory {len(retried)} times" in evidence and "1.02e+03 MiB were free" in evidence


def test_readings_by_batch_take_precedence_over_samples(stalled: RunRecord) -> None:
    """Samples show calls all the time; readings by batch show which batch made them."""
    record = _with_batches(stalled, {_STALLED[0]: {"device_allocs": 1}})
    own = own_ms(_with_readings(record, _counters(retries=0, pieces=0.0, calls=20)), "memory.allocator")
    assert np.flatnonzero(own > 30).tolist() == [_STALLED[0]]


def test_samples_are_used_if_few_batches_were_read(stalled: RunRecord) -> None:
    """Overlapping workers are hardly ever read by batch."""
    record = _with_batches(stalled, {})
    record.batches["device_read"][::2] = 0
    record.batches["device_read"][1::4] = 0
    record = _with_readings(record, _counters(retries=0, pieces=0.0, calls=20))
    assert np.median(own_ms(record, "memory.allocator")[_STALLED]) == pytest.approx(60.0, rel=0.1)


def test_an_unread_batch_shares_the_next_reading(stalled: RunRecord) -> None:
    """A reading's calls belong to the longest of the batches that it covers."""
    hit = _STALLED[4]
    record = _with_batches(stalled, {hit + 1: {"device_allocs": 1}})
    record.batches["device_read"][record.batches["batch_id"] == record.requests["batch_id"][hit]] = 0
    own = own_ms(record, "memory.allocator")
    assert np.flatnonzero(own > 30).tolist() == [hit]


def test_calls_that_cost_little_own_little(stalled: RunRecord) -> None:
    """A call that costs 0.1 ms does not explain 60 ms; the rest stays unexplained."""
    record = _priced(_with_batches(stalled, {k: {"device_allocs": 1} for k in _STALLED}))
    own = own_ms(record, "memory.allocator")
    assert own[_STALLED].max() == pytest.approx(1.0, rel=0.01)
    assert causes_of(record)["unexplained"].tail_ms > 40


def test_expensive_calls_have_narrow_intervals() -> None:
    """At their full price the interval is narrow; at a sixth of it, it is wide and reaches further down."""
    hit = range(20, 900, 25)
    faults = dict.fromkeys(hit, ("cpu", 60.0))
    apart = simulate(n=900, rate=2, base=25.0, compute_faults=faults, meta={"device": "cuda:0"})
    made = {k: {"alloc_retries": 1, "device_allocs": 6, "device_frees": 3} for k in hit}
    record = _with_batches(apart, made, pieces=1 << 30)
    sure = causes_of(_priced(record, malloc=10e6))["memory.fragmentation"]
    unsure = causes_of(_priced(record, malloc=10e6 / 6))["memory.fragmentation"]
    assert sure.named and sure.tail_ms == pytest.approx(unsure.tail_ms, rel=0.1)
    assert unsure.ci95_ms[0] < sure.ci95_ms[0] - 5
    assert "at their cost on the idle device" in sure.evidence
    pages = _with_batches(_paged(apart), {k: {"device_allocs": 60} for k in hit})
    assert "the usual cost of such calls, which was not measured" in causes_of(pages)["memory.allocator"].evidence


def test_pages_without_a_price_have_the_usual_one(stalled: RunRecord) -> None:
    """Mapping a page takes a fraction of a millisecond and does not explain 60 ms, at any price."""
    made = {k: {"device_allocs": 1, "device_taken_bytes": 20 << 20} for k in _STALLED}
    record = _with_batches(stalled, made)
    assert own_ms(record, "memory.allocator")[_STALLED].max() == pytest.approx(60.0, rel=0.1)
    record = _paged(record)
    assert own_ms(record, "memory.allocator")[_STALLED].max() == pytest.approx(2.0, rel=0.01)
    assert causes_of(_priced(record, malloc=300_000.0))["unexplained"].tail_ms > 40


def test_waits_for_memory_while_copying_inputs_count_too(stalled: RunRecord) -> None:
    """A segment for a larger input is taken while it is copied, before compute begins."""
    hit = _STALLED[3]
    record = _with_batches(stalled, {hit: {"device_allocs": 1}})
    row = record.batches["batch_id"] == record.requests["batch_id"][hit]
    record.batches["h2d_end_ns"][row] += 50 * _MS
    moved = np.where(np.arange(len(record.requests["index"])) == hit, 50 * _MS, 0)
    rows = record.requests
    rows = {**rows, "h2d_ns": rows["h2d_ns"] + moved, "compute_ns": rows["compute_ns"] - moved}
    record = replace(record, requests=rows)
    own = own_ms(record, "memory.allocator")
    assert own[hit] == pytest.approx(60.0, rel=0.1) and np.count_nonzero(own) == 1


def test_old_records_have_no_readings_of_batches(stalled: RunRecord) -> None:
    assert not stalled.batches["device_read"].any()
    assert not {"memory.fragmentation", "memory.allocator"} & causes_of(stalled).keys()


def _on_two_devices(record: RunRecord, *, slow: int) -> RunRecord:
    """As if workers on two devices had run the batches in turns; device ``slow`` ran those that were hit."""
    worker = np.arange(len(record.batches["batch_id"])) % 2
    worker[_HIT] = slow
    settings = replace(record.meta.settings, workers=2)
    meta = replace(record.meta, worker_devices=("cuda:0", "cuda:1"), settings=settings)
    return replace(record, batches={**record.batches, "worker": worker}, meta=meta)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_batch_is_judged_by_the_clock_of_its_own_device(slowed: RunRecord, slow: int) -> None:
    """Only the clock of the device that ran the slow batches counts."""
    record = _on_two_devices(slowed, slow=slow)
    its, others = ("nvml.sm_clock_mhz", "nvml.1.sm_clock_mhz")[:: 1 - 2 * slow]
    own = own_ms(_with_readings(record, {its: _clock(1200.0), others: _clock(1980.0)}), "gpu.clocks")
    assert np.median(own[_HIT]) == pytest.approx(14.0, rel=0.1) and np.median(np.delete(own, _HIT)) == 0
    wrong = _with_readings(record, {its: _clock(1980.0), others: _clock(1200.0)})
    assert not own_ms(wrong, "gpu.clocks")[_HIT].any(), "the clock of the other device"


def test_devices_of_two_kinds_are_each_compared_with_themselves(slowed: RunRecord) -> None:
    clocks = {"nvml.sm_clock_mhz": _clock(1980.0), "nvml.1.sm_clock_mhz": _level(1410.0, 1410.0)}
    assert not own_ms(_with_readings(_on_two_devices(slowed, slow=1), clocks), "gpu.clocks").any()


def test_contention_is_judged_by_the_batchs_own_device(slowed: RunRecord) -> None:
    there, elsewhere = (_with_readings(_on_two_devices(slowed, slow=slow), _busy(40.0, "1.")) for slow in (1, 0))
    assert np.median(own_ms(there, "gpu.contention")[_HIT]) > 5.0
    assert not own_ms(elsewhere, "gpu.contention")[_HIT].any()
