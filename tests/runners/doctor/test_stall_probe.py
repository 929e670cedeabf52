"""Gaps and late wake-ups, on a clock that the test moves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.stall_probe import standstill, watch

_MS = 1_000_000


class _Clock:
    """Each look takes a tenth of a microsecond; stands still at given times, and wakes late.

    :param gaps: nanoseconds by the time from which on they come.
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


def _found(gaps: dict[int, int], late_ns: int = 60_000) -> dict[str, Finding]:
    clock = _Clock(gaps, late_ns)
    found = {finding.id: finding for finding in standstill(watch(0.1, clock=clock, nap=clock.nap))}
    assert not clock.saw_collector and gc.isenabled()
    return found


def test_a_machine_that_never_stands_still() -> None:
    found = _found({})
    assert found["measured.interruptions"].found == "0.05 s of reading the clock: no gap above 0.1 ms"
    assert found["measured.wake_ups"].state == "ok"
    assert "woken 0.0610 ms late in the median" in found["measured.wake_ups"].found


def test_short_gaps_are_told_and_cost_little() -> None:
    finding = _found({5 * _MS: 400_000, 9 * _MS: 200_000})["measured.interruptions"]
    assert finding.state == "ok" and "stood still 2 times" in finding.found and "at most 0.401 ms" in finding.found


def test_long_gaps_cost() -> None:
    finding = _found({5 * _MS: 400_000, 9 * _MS: 8 * _MS})["measured.interruptions"]
    assert finding.state == "costs" and "at most 8.00 ms, 16.8 % of the time" in finding.found
    assert finding.costs.startswith("up to 8.00 ms on a request")


def test_late_wake_ups_cost() -> None:
    finding = _found({}, late_ns=3 * _MS)["measured.wake_ups"]
    assert finding.state == "costs" and "3.00 ms at p99" in finding.found


def test_real_clock() -> None:
    seen = watch(0.05)
    assert seen.looked_ns >= 0.025e9 and len(seen.late_ns) and (seen.late_ns >= 0).all()


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()
