"""What NVML read while batches computed on a device: clocks, and who else was there. Simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord

Simulate = Callable[..., RunRecord]
_MS = 1_000_000
#: Requests that lie in six stretches of some seconds: of fewer, a resample may hold hardly any.
_STRETCHES = tuple(range(first, first + 40) for first in range(100, 880, 130))
_HIT = [k for stretch in _STRETCHES for k in stretch]

Reading = Callable[[np.ndarray[Any, Any]], Sequence[float]]


def _with_readings(record: RunRecord, series: Mapping[str, Reading]) -> RunRecord:
    """Readings once a second, as functions of which readings lie in the stretches."""
    arrival = record.requests["arrival_ns"]
    times = np.arange(arrival[0] - 500 * _MS, arrival[-1] + 1500 * _MS, 1000 * _MS)
    inside = np.zeros(len(times), bool)
    for stretch in _STRETCHES:
        inside |= (times >= arrival[stretch[0]] - 500 * _MS) & (times <= arrival[stretch[-1]] + 500 * _MS)
    names = list(series)
    return replace(
        record,
        samples={
            "t_ns": np.concatenate([times for _ in names]),
            "series": np.array([name for name in names for _ in times], dtype=object),
            "value": np.concatenate([np.asarray(series[name](inside), dtype=np.float64) for name in names]),
        },
    )


@pytest.fixture
def slowed(simulate: Simulate) -> RunRecord:
    """A run on a device that computed a third longer for a while."""
    faults = dict.fromkeys(_HIT, ("cpu", 14.0))
    return simulate(n=900, rate=10, base=25.0, compute_faults=faults, meta={"device": "cuda:0"})


_latest: list[tuple[RunRecord, Diagnosis]] = []


def _diagnosed(record: RunRecord) -> Diagnosis:
    """Once for all that is asked of the same record in a row."""
    if not _latest or _latest[0][0] is not record:
        _latest[:] = [(record, diagnose(record, bootstrap=60))]
    return _latest[0][1]


def _causes(record: RunRecord) -> dict[str, Any]:
    diagnosis = _diagnosed(record)
    assert diagnosis.ledger.conservation_error_ns() == 0
    return {cause.cause: cause for cause in diagnosis.causes}


def _own_ms(record: RunRecord, cause: str) -> np.ndarray[Any, Any]:
    """Milliseconds of a cause on each request's own path, by the request's number."""
    ledger = _diagnosed(record).ledger
    own = np.zeros(len(record.requests["index"]))
    own[ledger.request] = ledger.own_ns[ledger.causes.index(cause)] / 1e6
    return own


def _level(inside: float, outside: float) -> Reading:
    return lambda within: np.where(within, inside, outside).tolist()


def _clock(low: float) -> Reading:
    return _level(low, 1980.0)


@pytest.mark.parametrize(("low", "owed_ms"), [(1200.0, 14.0), (1782.0, 28.5 / 9), (1960.0, 0.0), (1980.0, 0.0)])
def test_a_lower_clock_owns_what_compute_took_longer(slowed: RunRecord, low: float, owed_ms: float) -> None:
    """A tenth lower, compute takes at most a ninth longer; what is beyond that is somebody else's."""
    record = _with_readings(slowed, {"nvml.sm_clock_mhz": _clock(low), "nvml.clock_event_reasons": _level(4.0, 0.0)})
    own, found = _own_ms(record, "gpu.clocks"), _causes(record)
    assert np.median(own[_HIT]) == pytest.approx(owed_ms, rel=0.1) and np.median(np.delete(own, _HIT)) == 0
    assert ("gpu.clocks" in found) == bool(owed_ms)
    if low == 1200.0:
        words = "fell to 1200 MHz, 1980 MHz at a typical batch (NVML's reasons in the run: power cap)"
        assert found["gpu.clocks"].named and words in found["gpu.clocks"].evidence


@pytest.mark.parametrize(("counter", "owed_ms"), [("power", 14.0), ("thermal", 14.0), ("low_utilization", 0.0)])
def test_what_no_reading_of_the_clock_met_its_counters_have_seen(
    slowed: RunRecord, counter: str, owed_ms: float
) -> None:
    """Between two polls the clock was low for most of the time and back when it was read; idleness delays nobody."""
    series = {"nvml.sm_clock_mhz": _clock(1980.0), f"nvml.violation_{counter}_ns": _level(8e8, 0.0)}
    record = _with_readings(slowed, series)
    own, found = _own_ms(record, "gpu.clocks"), _causes(record)
    assert np.median(own[_HIT]) == pytest.approx(owed_ms, rel=0.1) and np.median(np.delete(own, _HIT)) == 0
    if owed_ms:
        assert "for up to 80.0 % of a second by NVML's counters" in found["gpu.clocks"].evidence


def _busy(others: float, device: str = "") -> Mapping[str, Reading]:
    return {
        f"nvml.{device}own_sm_util": _level(50.0, 50.0),
        f"nvml.{device}others_sm_util": _level(others, 0.0),
        f"nvml.{device}sm_clock_mhz": _clock(1980.0),
    }


def test_another_process_owns_what_compute_took_longer(slowed: RunRecord) -> None:
    record = _with_readings(slowed, _busy(50.0))
    contention = _causes(record)["gpu.contention"]
    assert contention.named and np.median(_own_ms(record, "gpu.contention")[_HIT]) == pytest.approx(14.0, rel=0.1)
    assert "with up to 50.0 % of it" in contention.evidence and contention.evidence_class == "modelled"
    assert "gpu.contention" not in _causes(_with_readings(slowed, _busy(3.0))), "it hardly computes"


def test_nothing_is_claimed_on_the_host_without_readings_or_by_readings_far_away(slowed: RunRecord) -> None:
    record = _with_readings(slowed, {**_busy(50.0), "nvml.sm_clock_mhz": _clock(1200.0)})
    ended = record.samples["t_ns"] < record.requests["arrival_ns"][_HIT[0]] - 6_000 * _MS
    far = replace(record, samples={name: column[ended] for name, column in record.samples.items()})
    for silent in (replace(record, meta=replace(record.meta, device="cpu")), slowed, far):
        assert not any(name.startswith("gpu.") for name in _causes(silent))


def _counters(retries: float, pieces: float, calls: float) -> Mapping[str, Reading]:
    """Counters that grow by so many at each reading in the stretch."""

    def growing(by: float) -> Reading:
        return lambda inside: np.cumsum(np.where(inside, by, 0.0)).tolist()

    return {
        "cuda.alloc_retries": growing(retries),
        "cuda.device_allocs": growing(calls),
        "cuda.device_frees": growing(calls),
        "cuda.reserved_bytes": _level(4e9, 4e9),
        "cuda.inactive_split_bytes": _level(pieces, pieces),
    }


@pytest.fixture
def stalled(simulate: Simulate) -> RunRecord:
    """A run on a device in which every third batch of a stretch stood still."""
    faults = dict.fromkeys(_HIT[::3], ("cpu", 60.0))
    return simulate(n=900, rate=10, base=25.0, compute_faults=faults, meta={"device": "cuda:0"})


def test_retries_beside_free_pieces_are_fragmentation(stalled: RunRecord) -> None:
    record = _with_readings(stalled, _counters(retries=20, pieces=2e9, calls=30))
    cause = _causes(record)["memory.fragmentation"]
    assert cause.named and np.median(_own_ms(record, "memory.fragmentation")[_HIT[::3]]) == pytest.approx(60, rel=0.1)
    assert cause.evidence_class == "modelled", "calls are counted, their prices guessed"
    assert "freed cached memory" in cause.evidence and "1.91e+03 MiB were free" in cause.evidence


def test_calls_of_the_device_without_pieces_are_the_allocators(stalled: RunRecord) -> None:
    record = _with_readings(stalled, _counters(retries=0, pieces=0.0, calls=20))
    found = _causes(record)
    assert found["memory.allocator"].named and "memory.fragmentation" not in found
    assert np.median(_own_ms(record, "memory.allocator")[_HIT[::3]]) == pytest.approx(60.0, rel=0.1)


def test_no_more_batches_than_there_were_calls(stalled: RunRecord) -> None:
    """Eighty stood still, and the device was called once in every other of some thirty seconds."""
    own = _own_ms(_with_readings(stalled, _counters(retries=0, pieces=0.0, calls=0.5)), "memory.allocator")
    assert len(_HIT[::3]) == 80 and 10 < np.count_nonzero(own > 30) < 40


@pytest.mark.parametrize("series", [_counters(retries=5, pieces=2e9, calls=5), {"nvml.sm_clock_mhz": _clock(1200.0)}])
def test_what_slowed_nothing_owns_nothing(simulate: Simulate, series: Mapping[str, Reading]) -> None:
    quiet = simulate(n=900, rate=10, base=25.0, meta={"device": "cuda:0"})
    found = _causes(_with_readings(quiet, series))
    assert not any(cause.named for name, cause in found.items() if name.startswith(("memory.", "gpu.")))


def _with_batches(record: RunRecord, calls: Mapping[int, Mapping[str, int]], *, pieces: int = 0) -> RunRecord:
    """The same counters at the end of each batch; ``calls`` by the request that a batch of one holds."""
    batches = {name: column.copy() for name, column in record.batches.items()}
    batches["device_read"][:] = 1
    batches["device_reserved_bytes"][:] = 4 << 30
    batches["device_pieces_bytes"][:] = pieces
    for request, made in calls.items():
        for name, value in made.items():
            batches[name][batches["batch_id"] == record.requests["batch_id"][request]] = value
    return replace(record, batches=batches)


def _priced(record: RunRecord, malloc: float = 100_000.0) -> RunRecord:
    """What calls cost on the idle device, nanoseconds."""
    prices = dict.fromkeys(("malloc_mib", "free", "free_mib", "sync"), 0.0)
    prices |= {"malloc": malloc, "malloc_low": 0.9 * malloc, "malloc_high": 1.1 * malloc}
    more = {
        "t_ns": np.zeros(len(prices), dtype=np.int64),
        "series": np.array([f"cost.device_{name}_ns" for name in prices], dtype=object),
        "value": np.array([*prices.values()]),
    }
    return replace(record, samples={name: np.concatenate([old, more[name]]) for name, old in record.samples.items()})


def _paged(record: RunRecord) -> RunRecord:
    """With expandable segments."""
    return replace(record, meta=record.meta.updated(device_memory={"settings": {"expandable_segments": True}}))


#: The batches that stood still.
_STALLED = _HIT[::3]


def test_each_batch_has_its_own_retries(stalled: RunRecord) -> None:
    """Of forty that stood still every second one retried: no other is charged, however long it took."""
    retried = _STALLED[::2]
    made = {k: {"alloc_retries": 1, "device_allocs": 1, "device_frees": 3} for k in retried}
    record = _with_batches(stalled, made, pieces=1 << 30)
    own = _own_ms(record, "memory.fragmentation")
    assert np.median(own[retried]) == pytest.approx(60, rel=0.1)
    assert np.count_nonzero(np.delete(own, retried)) == 0
    evidence = _causes(record)["memory.fragmentation"].evidence
    assert f"freed cached memory {len(retried)} times" in evidence and "1.02e+03 MiB were free" in evidence


def test_batches_count_where_both_are_there(stalled: RunRecord) -> None:
    """The samples say that there were calls all the time; the batches know when."""
    record = _with_batches(stalled, {_STALLED[0]: {"device_allocs": 1}})
    own = _own_ms(_with_readings(record, _counters(retries=0, pieces=0.0, calls=20)), "memory.allocator")
    assert np.flatnonzero(own > 30).tolist() == [_STALLED[0]]


def test_few_readings_of_batches_are_not_gone_by(stalled: RunRecord) -> None:
    """Workers that overlap are hardly ever read: then the samples are what there is."""
    record = _with_batches(stalled, {})
    record.batches["device_read"][::2] = 0
    record.batches["device_read"][1::4] = 0
    record = _with_readings(record, _counters(retries=0, pieces=0.0, calls=20))
    assert np.median(_own_ms(record, "memory.allocator")[_STALLED]) == pytest.approx(60.0, rel=0.1)


def test_a_batch_that_was_not_read_shares_the_next_ones_reading(stalled: RunRecord) -> None:
    """The rest after a reading: what happened meanwhile is the longest batch's of those that it covers."""
    hit = _STALLED[4]
    record = _with_batches(stalled, {hit + 1: {"device_allocs": 1}})
    record.batches["device_read"][record.batches["batch_id"] == record.requests["batch_id"][hit]] = 0
    own = _own_ms(record, "memory.allocator")
    assert np.flatnonzero(own > 30).tolist() == [hit]


def test_calls_that_cost_little_own_little(stalled: RunRecord) -> None:
    """A call for a tenth of a millisecond is no reason for sixty; what it cannot explain stays unexplained."""
    record = _priced(_with_batches(stalled, {k: {"device_allocs": 1} for k in _STALLED}))
    own = _own_ms(record, "memory.allocator")
    assert own[_STALLED].max() == pytest.approx(1.0, rel=0.01)
    assert _causes(record)["unexplained"].tail_ms > 40


def test_calls_that_cost_as_much_own_it_without_doubt(simulate: Simulate) -> None:
    """Priced at what they took, the interval is narrow; at a sixth of it, it is wide, and reaches further down."""
    hit = range(20, 900, 25)
    faults = dict.fromkeys(hit, ("cpu", 60.0))
    apart = simulate(n=900, rate=2, base=25.0, compute_faults=faults, meta={"device": "cuda:0"})
    made = {k: {"alloc_retries": 1, "device_allocs": 6, "device_frees": 3} for k in hit}
    record = _with_batches(apart, made, pieces=1 << 30)
    sure = _causes(_priced(record, malloc=10e6))["memory.fragmentation"]
    unsure = _causes(_priced(record, malloc=10e6 / 6))["memory.fragmentation"]
    assert sure.named and sure.tail_ms == pytest.approx(unsure.tail_ms, rel=0.1)
    assert unsure.ci95_ms[0] < sure.ci95_ms[0] - 5
    assert "at their cost on the idle device" in sure.evidence
    pages = _with_batches(_paged(apart), {k: {"device_allocs": 60} for k in hit})
    assert "the usual cost of such calls, which was not measured" in _causes(pages)["memory.allocator"].evidence


def test_pages_without_a_price_own_what_is_usual(stalled: RunRecord) -> None:
    """Mapping a page takes a fraction of a millisecond: it is no reason for sixty, measured or not."""
    made = {k: {"device_allocs": 1, "device_taken_bytes": 20 << 20} for k in _STALLED}
    record = _with_batches(stalled, made)
    assert _own_ms(record, "memory.allocator")[_STALLED].max() == pytest.approx(60.0, rel=0.1)
    record = _paged(record)
    assert _own_ms(record, "memory.allocator")[_STALLED].max() == pytest.approx(2.0, rel=0.01)
    assert _causes(_priced(record, malloc=300_000.0))["unexplained"].tail_ms > 40


def test_inputs_that_waited_for_memory_are_charged_too(stalled: RunRecord) -> None:
    """A segment for a larger input is taken while it is copied, before compute begins."""
    hit = _STALLED[3]
    record = _with_batches(stalled, {hit: {"device_allocs": 1}})
    row = record.batches["batch_id"] == record.requests["batch_id"][hit]
    record.batches["h2d_end_ns"][row] += 50 * _MS
    record.requests["h2d_ns"][hit] += 50 * _MS
    record.requests["compute_ns"][hit] -= 50 * _MS
    own = _own_ms(record, "memory.allocator")
    assert own[hit] == pytest.approx(60.0, rel=0.1) and np.count_nonzero(own) == 1


def test_old_records_have_no_readings_of_batches(stalled: RunRecord) -> None:
    assert not stalled.batches["device_read"].any()
    assert not {"memory.fragmentation", "memory.allocator"} & _causes(stalled).keys()


def _on_two_devices(record: RunRecord, *, slow: int) -> RunRecord:
    """As if workers on two devices had run its batches by turns; those that were hit, the one of device ``slow``."""
    worker = np.arange(len(record.batches["batch_id"])) % 2
    worker[_HIT] = slow
    settings = replace(record.meta.settings, workers=2)
    meta = replace(record.meta, worker_devices=("cuda:0", "cuda:1"), settings=settings)
    return replace(record, batches={**record.batches, "worker": worker}, meta=meta)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_batch_is_judged_by_the_clock_of_its_own_device(slowed: RunRecord, slow: int) -> None:
    """The other device's clock is low in the same stretches for one, and steady for the other."""
    record = _on_two_devices(slowed, slow=slow)
    its, others = ("nvml.sm_clock_mhz", "nvml.1.sm_clock_mhz")[:: 1 - 2 * slow]
    own = _own_ms(_with_readings(record, {its: _clock(1200.0), others: _clock(1980.0)}), "gpu.clocks")
    assert np.median(own[_HIT]) == pytest.approx(14.0, rel=0.1) and np.median(np.delete(own, _HIT)) == 0
    wrong = _with_readings(record, {its: _clock(1980.0), others: _clock(1200.0)})
    assert not _own_ms(wrong, "gpu.clocks")[_HIT].any(), "a clock of the device that did not run them"


def test_devices_of_two_kinds_are_each_compared_with_themselves(slowed: RunRecord) -> None:
    clocks = {"nvml.sm_clock_mhz": _clock(1980.0), "nvml.1.sm_clock_mhz": _level(1410.0, 1410.0)}
    assert not _own_ms(_with_readings(_on_two_devices(slowed, slow=1), clocks), "gpu.clocks").any()


def test_who_else_was_on_a_device_is_asked_of_that_device(slowed: RunRecord) -> None:
    there, elsewhere = (_with_readings(_on_two_devices(slowed, slow=slow), _busy(40.0, "1.")) for slow in (1, 0))
    assert np.median(_own_ms(there, "gpu.contention")[_HIT]) > 5.0
    assert not _own_ms(elsewhere, "gpu.contention")[_HIT].any()
