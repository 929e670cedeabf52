"""Measures stalls of this machine: gaps in a loop that reads the clock, and how late a sleeping thread wakes.

No setting shows what a hypervisor, a neighbor or an interrupt really does; the loop does. Late wake-ups delay batch
timers and the sending of requests.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.formatting import milliseconds, share
from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, ok, unknown

#: A clock read takes a tenth of a microsecond; a longer gap than this is a stall.
_GAP_NS = 100_000
#: A gap or a late wake-up above this shows in a p99 of tens of milliseconds.
_LONG_NS = 1_000_000
_NAP_NS = 1_000_000
_MAX_GAPS = 100_000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """What :func:`watch` measured.

    :param watched_ns: how long the clock was read; ``gaps_ns``: times above 0.1 ms between two reads.
    :param late_ns: how much longer than a millisecond each sleep took.
    """

    watched_ns: int
    gaps_ns: Ints
    late_ns: Ints


def watch(
    seconds: float,
    *,
    clock: Callable[[], int] = time.monotonic_ns,
    nap: Callable[[float], None] = time.sleep,
) -> Standstill:
    """Read the clock for half of ``seconds``, then sleep a millisecond at a time for the other half."""
    half = int(seconds * 5e8)
    collecting = gc.isenabled()
    gc.disable()  # a collection would show as a stall
    try:
        start = now = clock()
        gaps: list[int] = []
        while now - start < half and len(gaps) < _MAX_GAPS:
            later = clock()
            if later - now > _GAP_NS:
                gaps.append(later - now)
            now = later
        watched, until = now - start, now + half
        late: list[int] = []
        while now < until:
            nap(_NAP_NS / 1e9)
            later = clock()
            late.append(later - now - _NAP_NS)
            now = later
    finally:
        if collecting:
            gc.enable()
    return Standstill(watched_ns=watched, gaps_ns=np.array(gaps, np.int64), late_ns=np.array(late, np.int64))


def standstill(seen: Standstill) -> Iterator[Finding]:
    """Findings about gaps and late wake-ups."""
    yield _interruptions(seen)
    yield _wake_ups(seen)


def _interruptions(seen: Standstill) -> Finding:
    longest, total = int(seen.gaps_ns.max(initial=0)), int(seen.gaps_ns.sum())
    loop = f"{seen.watched_ns / 1e9:.2g} s of reading the clock"
    if not len(seen.gaps_ns):
        return ok("measured.interruptions", f"{loop}: no gap above 0.1 ms")
    found = (
        f"{loop}: {len(seen.gaps_ns)} gaps above 0.1 ms, the longest {milliseconds(longest / 1e6)}, together "
        f"{share(total / seen.watched_ns)} of the time"
    )
    if longest < _LONG_NS:
        return ok("measured.interruptions", found)
    return costs(
        "measured.interruptions",
        found,
        f"up to {milliseconds(longest / 1e6)} on a request that is computing then, and on those behind it",
        "see the lines on the hypervisor, on waiting threads and on the CPU quota for what took the core",
        causes=("host.contention", "host.steal", "host.slowdown"),
    )


def _wake_ups(seen: Standstill) -> Finding:
    if not len(seen.late_ns):
        return unknown("measured.wake_ups", "wake-ups not measured: --seconds is too short")
    middle, high = (float(np.quantile(seen.late_ns, q)) for q in (0.5, 0.99))
    found = (
        f"{len(seen.late_ns)} sleeps of 1 ms: the thread wakes {milliseconds(middle / 1e6)} late at the median, "
        f"{milliseconds(high / 1e6)} at p99"
    )
    if high < _LONG_NS:
        return ok("measured.wake_ups", found)
    return costs(
        "measured.wake_ups",
        found,
        "requests are sent and batches are closed that much too late",
        "see the lines on the hypervisor, on waiting threads and on idle states",
        causes=("observer", "batching.window"),
    )
