"""Gaps and late wake-ups, on a clock that the test moves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.stall_probe import standstill, watch

_MS = 1_000_000


class _Clock:
    """A clock whose reads take a microsecond, with stalls at given times and late wake-ups.

    :param gaps: length of each stall by the time at which it starts, in nanoseconds.
    """

    def __init__(self, gaps: dict[int, int], late_ns: int) -> None:
        self.now = 0
        self.saw_collector = False
        self._gaps = dict(gaps)
        self._late_ns = late_ns

    def __call__(self) -> int:
        self.saw_collector |= gc.isenabled()
        self.now += 1_000
        for at in [at for at in self._gaps if at <= self.now]:
            self.now += self._gaps.pop(at)
        return self.now

    def nap(self, seconds: float) -> None:
        self.now += round(seconds * 1e9) + self._late_ns


def _found(gaps: dict[int, int], late_ns: int) -> dict[str, Finding]:
    clock = _Clock(gaps, late_ns)
    found = {finding.id: finding for finding in standstill(watch(0.1, clock=clock, nap=clock.nap))}
    assert not clock.saw_collector and gc.isenabled()
    return found


@pytest.mark.parametrize(
    ("gaps", "late_ns", "identity", "state", "text"),
    [
        ({}, 60_000, "interruptions", "ok", "0.05 s of reading the clock: no gap above 0.1 ms"),
        ({}, 60_000, "wake_ups", "ok", "wakes 0.0610 ms late at the median"),
        (
            {5 * _MS: 400_000, 9 * _MS: 200_000},
            60_000,
            "interruptions",
            "ok",
            "2 gaps above 0.1 ms, the longest 0.401 ms",
        ),
        (
            {5 * _MS: 400_000, 9 * _MS: 8 * _MS},
            60_000,
            "interruptions",
            "costs",
            "8.00 ms, together 16.8 % of the time",
        ),
        ({}, 3 * _MS, "wake_ups", "costs", "3.00 ms at p99"),
    ],
)
def test_gaps_and_late_wake_ups_cost_where_they_are_long(
    gaps: dict[int, int], late_ns: int, identity: str, state: str, text: str
) -> None:
    finding = _found(gaps, late_ns)[f"measured.{identity}"]
    assert finding.state == state and text in finding.found, finding.found
    assert finding.costs.startswith("up to 8.00 ms on a request") or "16.8 %" not in text
    assert "processor." not in finding.change, "the report prints no ids"


def test_real_clock() -> None:
    seen = watch(0.05)
    assert seen.watched_ns >= 0.025e9 and len(seen.late_ns) and (seen.late_ns >= 0).all()


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()
