"""How often this machine stands still now, measured: on a thread that reads the clock, and on one that sleeps.

No setting says what a hypervisor, a neighbor or an interrupt really does; a loop that reads the clock sees it. The
other figure is how late a thread wakes, which is what batch timers and the sending of requests depend on.
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
from latfix.runners.doctor.findings import costs, ok, untold

#: Reading the clock in a loop takes a tenth of a microsecond; a gap above this is no part of it.
_GAP_NS = 100_000
#: A gap or a late wake-up above this shows in a p99 of tens of milliseconds.
_LONG_NS = 1_000_000
_NAP_NS = 1_000_000
_NOTED = 100_000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """What was seen.

    :param looked_ns: how long the clock was read; ``gaps_ns`` the times above 0.1 ms between two readings.
    :param late_ns: of each sleep of a millisecond, how much longer it took.
    """

    looked_ns: int
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
    gc.disable()  # a collection would be latfix's own doing
    try:
        start = now = clock()
        gaps: list[int] = []
        while now - start < half and len(gaps) < _NOTED:
            later = clock()
            if later - now > _GAP_NS:
                gaps.append(later - now)
            now = later
        looked, until = now - start, now + half
        late: list[int] = []
        while now < until:
            nap(_NAP_NS / 1e9)
            later = clock()
            late.append(later - now - _NAP_NS)
            now = later
    finally:
        if collecting:
            gc.enable()
    return Standstill(looked_ns=looked, gaps_ns=np.array(gaps, np.int64), late_ns=np.array(late, np.int64))


def standstill(seen: Standstill) -> Iterator[Finding]:
    """Findings about what was seen."""
    yield _interruptions(seen)
    yield _wake_ups(seen)


def _interruptions(seen: Standstill) -> Finding:
    longest, total = int(seen.gaps_ns.max(initial=0)), int(seen.gaps_ns.sum())
    looked = f"{seen.looked_ns / 1e9:.2g} s of reading the clock"
    if not len(seen.gaps_ns):
        return ok("measured.interruptions", f"{looked}: no gap above 0.1 ms")
    found = (
        f"{looked}: it stood still {len(seen.gaps_ns)} times for more than 0.1 ms, at most "
        f"{milliseconds(longest / 1e6)}, {share(total / seen.looked_ns)} of the time"
    )
    if longest < _LONG_NS:
        return ok("measured.interruptions", found)
    return costs(
        "measured.interruptions",
        found,
        f"up to {milliseconds(longest / 1e6)} on a request that computes then, and on those behind it",
        "see processor.steal, processor.load and processor.quota for who took the core",
        causes=("host.contention", "host.steal", "host.slowdown"),
    )


def _wake_ups(seen: Standstill) -> Finding:
    if not len(seen.late_ns):
        return untold("measured.wake_ups", "no time to sleep")
    middle, high = (float(np.quantile(seen.late_ns, q)) for q in (0.5, 0.99))
    found = (
        f"{len(seen.late_ns)} sleeps of 1 ms: woken {milliseconds(middle / 1e6)} late in the median, "
        f"{milliseconds(high / 1e6)} at p99"
    )
    if high < _LONG_NS:
        return ok("measured.wake_ups", found)
    return costs(
        "measured.wake_ups",
        found,
        "requests are sent, and batches are closed, as much too late",
        "see processor.steal, processor.load and processor.idle_states",
        causes=("observer", "batching.window"),
    )
