"""What NVML read while batches computed on a device: clocks, and who else was there. Simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.diagnosis import Diagnosis
from latfix.profilers.attribution import diagnose
from latfix.record import RunRecord

Simulate = Callable[..., RunRecord]
_MS = 1_000_000
#: Requests that lie in three stretches of some seconds.
_STRETCHES = (range(150, 190), range(420, 460), range(700, 740))
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


def _causes(record: RunRecord) -> dict[str, Any]:
    diagnosis: Diagnosis = diagnose(record, bootstrap=60)
    assert diagnosis.ledger.conservation_error_ns() == 0
    return {cause.cause: cause for cause in diagnosis.causes}


def _own_ms(record: RunRecord, cause: str) -> np.ndarray[Any, Any]:
    """Milliseconds of a cause on each request's own path, by the request's number."""
    ledger = diagnose(record, bootstrap=20).ledger
    own = np.zeros(len(record.requests["index"]))
    own[ledger.request] = ledger.own_ns[ledger.causes.index(cause)] / 1e6
    return own


def _clock(low: float) -> Reading:
    return lambda inside: np.where(inside, low, 1980.0).tolist()


def test_a_lower_clock_owns_what_compute_took_longer(slowed: RunRecord) -> None:
    record = _with_readings(
        slowed,
        {
            "nvml.sm_clock_mhz": _clock(1200.0),
            "nvml.clock_event_reasons": lambda inside: np.where(inside, 4.0, 0.0).tolist(),
        },
    )
    found = _causes(record)
    clocks = found["gpu.clocks"]
    own = _own_ms(record, "gpu.clocks")
    assert clocks.named and np.median(own[_HIT]) == pytest.approx(14.0, rel=0.1)
    assert np.median(np.delete(own, _HIT)) == 0
    assert "fell to 1200 MHz, 1980 MHz at a typical batch (NVML's reasons in the run: power cap)" in clocks.evidence


def test_no_more_than_the_clock_can_owe(slowed: RunRecord) -> None:
    """A tenth lower, compute takes at most a ninth longer; what is beyond that is somebody else's."""
    own = _own_ms(_with_readings(slowed, {"nvml.sm_clock_mhz": _clock(1782.0)}), "gpu.clocks")
    assert np.median(own[_HIT]) == pytest.approx(28.5 / 9, rel=0.1)


@pytest.mark.parametrize("low", [1980.0, 1960.0])
def test_a_steady_clock_owns_nothing(slowed: RunRecord, low: float) -> None:
    assert "gpu.clocks" not in _causes(_with_readings(slowed, {"nvml.sm_clock_mhz": _clock(low)}))


def test_a_lower_clock_that_slows_nothing_owns_nothing(simulate: Simulate) -> None:
    quiet = simulate(n=900, rate=10, base=25.0, meta={"device": "cuda:0"})
    found = _causes(_with_readings(quiet, {"nvml.sm_clock_mhz": _clock(1200.0)}))
    assert "gpu.clocks" not in found or not found["gpu.clocks"].named


def _busy(others: float) -> Mapping[str, Reading]:
    return {
        "nvml.own_sm_util": lambda inside: np.full(len(inside), 50.0).tolist(),
        "nvml.others_sm_util": lambda inside: np.where(inside, others, 0.0).tolist(),
        "nvml.sm_clock_mhz": _clock(1980.0),
    }


def test_another_process_owns_what_compute_took_longer(slowed: RunRecord) -> None:
    record = _with_readings(slowed, _busy(50.0))
    contention = _causes(record)["gpu.contention"]
    assert contention.named and np.median(_own_ms(record, "gpu.contention")[_HIT]) == pytest.approx(14.0, rel=0.1)
    assert "with up to 50.0 % of it" in contention.evidence


def test_another_process_that_hardly_computes_owns_nothing(slowed: RunRecord) -> None:
    assert "gpu.contention" not in _causes(_with_readings(slowed, _busy(3.0)))


def test_a_run_on_the_host_has_no_gpu_causes(slowed: RunRecord) -> None:
    record = _with_readings(slowed, {**_busy(50.0), "nvml.sm_clock_mhz": _clock(1200.0)})
    found = _causes(replace(record, meta={**record.meta, "device": "cpu"}))
    assert not any(name.startswith("gpu.") for name in found)


def test_without_readings_nothing_is_claimed(slowed: RunRecord) -> None:
    assert not any(name.startswith("gpu.") for name in _causes(slowed))


def test_readings_that_are_far_away_say_nothing(slowed: RunRecord) -> None:
    record = _with_readings(slowed, {"nvml.sm_clock_mhz": _clock(1200.0)})
    ended = record.samples["t_ns"] < record.requests["arrival_ns"][_HIT[0]] - 6_000 * _MS
    samples = {name: column[ended] for name, column in record.samples.items()}
    assert "gpu.clocks" not in _causes(replace(record, samples=samples))


def _counters(retries: float, pieces: float, calls: float) -> Mapping[str, Reading]:
    """Counters that grow by so many at each reading in the stretch."""

    def growing(by: float) -> Reading:
        return lambda inside: np.cumsum(np.where(inside, by, 0.0)).tolist()

    return {
        "cuda.alloc_retries": growing(retries),
        "cuda.device_allocs": growing(calls),
        "cuda.device_frees": growing(calls),
        "cuda.reserved_bytes": lambda inside: np.full(len(inside), 4e9).tolist(),
        "cuda.inactive_split_bytes": lambda inside: np.full(len(inside), pieces).tolist(),
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
    assert "gave cached memory back" in cause.evidence and "1.91e+03 MiB lay free" in cause.evidence


def test_calls_of_the_device_without_pieces_are_the_allocators(stalled: RunRecord) -> None:
    record = _with_readings(stalled, _counters(retries=0, pieces=0.0, calls=20))
    found = _causes(record)
    assert found["memory.allocator"].named and "memory.fragmentation" not in found
    assert np.median(_own_ms(record, "memory.allocator")[_HIT[::3]]) == pytest.approx(60.0, rel=0.1)


def test_no_more_batches_than_there_were_calls(stalled: RunRecord) -> None:
    """Forty stood still, and the device was called once in each of some fifteen seconds."""
    own = _own_ms(_with_readings(stalled, _counters(retries=0, pieces=0.0, calls=0.5)), "memory.allocator")
    assert len(_HIT[::3]) == 40 and 5 < np.count_nonzero(own > 30) < 20


def test_calls_while_nothing_was_slow_own_nothing(simulate: Simulate) -> None:
    quiet = simulate(n=900, rate=10, base=25.0, meta={"device": "cuda:0"})
    found = _causes(_with_readings(quiet, _counters(retries=5, pieces=2e9, calls=5)))
    assert not any(cause.named for name, cause in found.items() if name.startswith("memory."))


def _on_two_devices(record: RunRecord, *, slow: int) -> RunRecord:
    """As if workers on two devices had run its batches by turns; those that were hit, the one of device ``slow``."""
    worker = np.arange(len(record.batches["batch_id"])) % 2
    worker[_HIT] = slow
    settings = {**record.meta["settings"], "workers": 2}
    meta = {**record.meta, "worker_devices": ["cuda:0", "cuda:1"], "settings": settings}
    return replace(record, batches={**record.batches, "worker": worker}, meta=meta)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_batch_is_judged_by_the_clock_of_its_own_device(slowed: RunRecord, slow: int) -> None:
    """The other device's clock is low in the same stretches for one, and steady for the other."""
    series = {0: "nvml.sm_clock_mhz", 1: "nvml.1.sm_clock_mhz"}
    record = _with_readings(
        _on_two_devices(slowed, slow=slow), {series[slow]: _clock(1200.0), series[1 - slow]: _clock(1980.0)}
    )
    own = _own_ms(record, "gpu.clocks")
    assert np.median(own[_HIT]) == pytest.approx(14.0, rel=0.1)
    assert np.median(np.delete(own, _HIT)) == 0
    wrong = _with_readings(
        _on_two_devices(slowed, slow=slow), {series[slow]: _clock(1980.0), series[1 - slow]: _clock(1200.0)}
    )
    assert not _own_ms(wrong, "gpu.clocks")[_HIT].any(), "a clock of the device that did not run them"


def test_devices_of_two_kinds_are_each_compared_with_themselves(slowed: RunRecord) -> None:
    record = _with_readings(
        _on_two_devices(slowed, slow=1),
        {
            "nvml.sm_clock_mhz": lambda inside: np.full(len(inside), 1980.0).tolist(),
            "nvml.1.sm_clock_mhz": lambda inside: np.full(len(inside), 1410.0).tolist(),
        },
    )
    assert not _own_ms(record, "gpu.clocks").any()


def test_who_else_was_on_a_device_is_asked_of_that_device(slowed: RunRecord) -> None:
    shares: dict[str, Reading] = {
        "nvml.1.own_sm_util": lambda inside: np.full(len(inside), 50.0).tolist(),
        "nvml.1.others_sm_util": lambda inside: np.where(inside, 40.0, 0.0).tolist(),
    }
    there, elsewhere = (_with_readings(_on_two_devices(slowed, slow=slow), shares) for slow in (1, 0))
    assert np.median(_own_ms(there, "gpu.contention")[_HIT]) > 5.0
    assert not _own_ms(elsewhere, "gpu.contention")[_HIT].any()
