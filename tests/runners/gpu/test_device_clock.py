"""The device's clock on the host's: simulated clocks that are shifted, drift, and are never read together."""

from __future__ import annotations

import random

import pytest

from latfix.runners.gpu.device_clock import DeviceClock, Offset

_S = 1_000_000_000


class _Event:
    """An event at a time of the device, in single precision like the driver's."""

    def __init__(self, at: float) -> None:
        self.at = at

    def record(self, stream: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: _Event) -> float:
        import numpy as np

        return float(np.float32(round((end_event.at - self.at) / 500) * 500 / 1e6))


def _placed(drift: float, *, batches: int = 400, gap_s: float = 0.05, seed: int = 1) -> list[tuple[int, int]]:
    """Errors of the placed events and the reported slack in nanoseconds, by batch."""
    rng = random.Random(seed)
    clock, found = DeviceClock(), []

    def device(host_ns: float) -> float:
        return host_ns * (1 + drift) + 77 * _S

    for k in range(batches):
        begin = 10 * _S + k * gap_s * _S
        enqueued = int(begin - rng.expovariate(1 / 20_000) - 3_000)
        end = begin + rng.uniform(2e6, 9e6)
        landed = int(end + rng.expovariate(1 / 30_000) + 8_000)
        marks, _ = clock.observe([_Event(device(begin)), _Event(device(end))], enqueued, landed)
        times, slack = clock.place(marks)
        found.append((round(max(abs(times[0] - begin), abs(times[1] - end))), slack))
    return found


@pytest.mark.parametrize("drift", [0.0, 8e-6, -8e-6])
def test_events_are_placed_within_the_reported_slack(drift: float) -> None:
    found = _placed(drift)
    # Half of the slack to either side, and half a step of the device's clock.
    assert all(error <= slack / 2 + 1_500 for error, slack in found)


def test_many_batches_give_tighter_bounds_than_one() -> None:
    """With a single batch, its delays may be anywhere between enqueueing and landing."""
    found = _placed(0.0)
    alone = [_placed(0.0, batches=1, seed=k)[0][1] for k in range(40)]
    late = [slack for _, slack in found[100:]]
    assert sorted(late)[len(late) // 2] < 0.5 * sorted(alone)[20]


def test_a_long_run_loses_no_precision() -> None:
    """Milliseconds in single precision are some microseconds coarse after a minute."""
    found = _placed(0.0, batches=300, gap_s=1.0)
    assert max(error for error, _ in found[200:]) < 30_000


def test_after_an_hour_without_a_request_a_batch_is_as_long_as_it_was() -> None:
    """An hour in single precision has steps of a quarter of a millisecond; times within a batch do not."""
    clock = DeviceClock()
    clock.observe([_Event(0), _Event(1e6)], 0, 1_000_000)
    late = 3600 * _S + 123_456
    marks, kept = clock.observe(
        [_Event(late), _Event(late + 41_000), _Event(late + 2_300_000)], late - 9_000, late + 2_400_000
    )
    assert kept and [time - marks[0][0] for time in marks[0]] == [0, 41_000, 2_300_000]
    times, slack = clock.place(marks)
    assert abs(times[0] - late) <= slack / 2 + 1_000 and slack > 200_000
    nxt, _ = clock.observe([_Event(late + 5e6), _Event(late + 6e6)], late + 4_990_000, late + 6_010_000)
    assert clock.place(nxt)[1] < slack


def test_clocks_that_drift_faster_than_allowed_are_followed() -> None:
    """Five milliseconds in ten seconds: old bounds must be dropped."""
    found = _placed(500e-6, batches=200)
    assert max(error for error, _ in found) < 200_000


def test_the_origin_is_kept_from_being_used_again() -> None:
    clock = DeviceClock()
    kept = [
        clock.observe([_Event(k * 3e9), _Event(k * 3e9 + 1e6)], int(k * 3e9), int(k * 3e9 + 1e6))[1] for k in range(8)
    ]
    assert kept == [True, False, False, True, False, False, True, False]


def test_bounds_only_tighten_by_observations() -> None:
    offset = Offset(drift=0.0)
    offset.observe(100, 50, 60, 150)
    assert offset.at(150) == (70, 40)
    offset.observe(200, 140, 180, 245)
    assert offset.at(245) == (62, 5)
