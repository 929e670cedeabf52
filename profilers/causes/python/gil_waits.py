"""Waits for the interpreter lock, by unit: what the probe, the switches and the rest of the process say of them.

A thread that waits for the lock sleeps for at most the switch interval, again and again: each time is a voluntary
switch. Somebody holds the lock meanwhile: a thread of this process, on a core, or kept from one by others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from latfix.profilers.causes.cause import Left
from latfix.profilers.evidence.units import BATCH_UNITS, Evidence
from latfix.profilers.evidence.work_model import Floats, Ints
from latfix.profilers.probes.gil_probe import INTERVAL_SERIES, PERIOD_S, USUAL_NS, WAIT_SERIES

#: Where the CPU time of the process stands, by unit.
PROCESS_CPU = {
    "prepare": "prepare_process_cpu_ns",
    "finish": "finish_process_cpu_ns",
    "collate": "collate_process_cpu_ns",
    "compute": "process_cpu_ns",
}
_DEFAULT_INTERVAL_NS = 5_000_000.0
#: Each voluntary switch of a thread that waits for the lock lasts for the switch interval and a wake-up at most.
_SLACK = 1.5
#: A unit's waits are judged by the probe's readings within it and this far around it.
_AROUND_NS = int(PERIOD_S * 1e9)
#: Threads of latfix itself that run no code of the service.
_OWN_THREADS = frozenset(
    f"latfix-{name}" for name in ("sampler", "nvml", "gil", "segments", "status", "commands", "calibration")
) | {"MainThread"}


def held_ns(evidence: Evidence, left: Left, name: str) -> Ints:
    """Of each unit, the wait for the lock while other threads of the process were on a core."""
    waited, others = _waited(evidence, left, name)
    return np.asarray(np.minimum(waited, others), dtype=np.int64)


def descheduled_ns(evidence: Evidence, left: Left, name: str) -> Ints:
    """Of each unit, the wait for the lock beyond the CPU time of all other threads, as far as these lacked a core.

    Whoever held the lock was runnable then: it is a wait for a core, at second hand.
    """
    waited, others = _waited(evidence, left, name)
    return np.asarray(np.minimum(np.maximum(waited - others, 0), _delayed(evidence, name)), dtype=np.int64)


def one_wakeup_ns(evidence: Evidence, start: Ints, end: Ints) -> Ints:
    """What one wake-up between ``start`` and ``end`` waited for the lock, at most.

    Where the probe met a held lock around it, that is the switch interval, or what the probe waited if longer.
    """
    times, waits = evidence.series(WAIT_SERIES)
    if not len(times):
        return np.zeros(len(start), np.int64)
    interval = _interval_ns(evidence)
    longest = _Probe(times, waits, interval).longest(start, end)
    return np.rint(np.where(longest > 0, np.maximum(longest, _SLACK * interval), 0.0)).astype(np.int64)


def service_threads(evidence: Evidence, what: str) -> Iterator[tuple[str, str]]:
    """Name and series of every sampled Python thread that runs code of the service.

    :param what: ``cpu_ns`` or ``runq_ns``.
    """
    for series in sorted({str(name) for name in evidence.samples["series"]}):
        name = series.removeprefix("thread.").removesuffix(f".{what}")
        if series.startswith("thread.") and series.endswith(f".{what}") and name not in (*_OWN_THREADS, "native"):
            yield name, series


def _waited(evidence: Evidence, left: Left, name: str) -> tuple[Ints, Ints]:
    """What each unit can have waited for the lock, and the CPU time of the process's other threads meanwhile."""
    unit = evidence.units[name]
    source = evidence.batches if name in BATCH_UNITS else evidence.rows
    times, waits = evidence.series(WAIT_SERIES)
    if not len(times):
        return np.zeros(len(unit.start), np.int64), np.zeros(len(unit.start), np.int64)
    probe = _Probe(times, waits, _interval_ns(evidence))
    # One more than were counted: the stamps lie a little outside of the counters' readings.
    switched = np.rint((source[f"{name}_vcsw"] + 1) * probe.a_switch(unit.start, unit.end)).astype(np.int64)
    others = np.maximum(source[PROCESS_CPU[name]] - source[f"{name}_cpu_ns"], 0)
    return np.minimum(switched, _held_up(evidence, left, name)), others


def _held_up(evidence: Evidence, left: Left, name: str) -> Ints:
    """Blocked time beyond what the unit always waits for and beyond its declared spans."""
    usual = evidence.usually_blocked(name)
    span = evidence.rows[f"{name}_span_ns"] if name in ("prepare", "finish") else 0
    return np.asarray(np.maximum(left.blocked(name) - np.maximum(usual, span), 0), dtype=np.int64)


def _delayed(evidence: Evidence, name: str) -> Ints:
    """Growth of the service's threads' run-queue delays between the samples around each unit."""
    unit = evidence.units[name]
    total = np.zeros(len(unit.start))
    for _, series in service_threads(evidence, "runq_ns"):
        times, values = evidence.series(series)
        if len(times) > 1:
            before = np.maximum(np.searchsorted(times, unit.start, side="right") - 1, 0)
            after = np.minimum(np.searchsorted(times, unit.end, side="left"), len(times) - 1)
            total += np.maximum(values[after] - values[before], 0)
    return np.rint(total).astype(np.int64)


class _Probe:
    """What the probe's thread waited for the lock around an interval."""

    def __init__(self, times: Ints, waits: Floats, interval_ns: float) -> None:
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        # A reading says what happened until the thread ran: it belongs to every unit that overlaps with its wait.
        self._ends = np.maximum.accumulate(self._times + waits[order].astype(np.int64))
        self._beyond = np.where(waits[order] > USUAL_NS, waits[order], 0.0)
        self._switches = np.concatenate([[0.0], np.cumsum(np.minimum(self._beyond, _SLACK * interval_ns))])

    def longest(self, start: Ints, end: Ints) -> Floats:
        """The longest wait of one wake-up."""
        first, last = self._around(start, end)
        last = np.maximum(last, first)
        padded = np.append(self._beyond, 0.0)
        bounds = np.column_stack([np.minimum(first, len(padded) - 1), np.minimum(last, len(padded) - 1)]).ravel()
        if not len(bounds):
            return np.zeros(0)
        return np.where(last > first, np.maximum.reduceat(padded, bounds)[::2], 0.0)

    def a_switch(self, start: Ints, end: Ints) -> Floats:
        """Mean length of one voluntary switch that is a wait for the lock."""
        return self._mean(self._switches, start, end)

    def _around(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        first = np.searchsorted(self._ends, start - _AROUND_NS, side="left")
        last = np.searchsorted(self._times, end + _AROUND_NS, side="right")
        return first.astype(np.int64), last.astype(np.int64)

    def _mean(self, total: Floats, start: Ints, end: Ints) -> Floats:
        first, last = self._around(start, end)
        count = last - first
        return np.where(count > 0, (total[np.maximum(last, first)] - total[first]) / np.maximum(count, 1), 0.0)


def _interval_ns(evidence: Evidence) -> float:
    _, values = evidence.series(INTERVAL_SERIES)
    return float(values[-1]) if len(values) else _DEFAULT_INTERVAL_NS
