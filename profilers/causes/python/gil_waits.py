"""Waits for the interpreter lock by unit, from the probe, the switches and the CPU time of other threads.

A thread that waits for the lock sleeps for at most the switch interval, again and again; each sleep is a voluntary
switch. Meanwhile another thread of the process holds the lock, on a core or waiting for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.causes.cause import Left
from latfix.profilers.evidence.intervals import Timeline
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.probes.gil_probe import INTERVAL_SERIES, PERIOD_S, SLACK, USUAL_NS, WAIT_SERIES

#: The column with the CPU time of the process, by unit.
PROCESS_CPU = {
    "prepare": "prepare_process_cpu_ns",
    "finish": "finish_process_cpu_ns",
    "collate": "collate_process_cpu_ns",
    "compute": "process_cpu_ns",
}
#: CPython's, in records without it.
_DEFAULT_INTERVAL_NS = 5_000_000.0
#: A unit's waits are judged by the probe's readings within it and this far around it.
_AROUND_NS = int(PERIOD_S * 1e9)
#: Series of threads that run code of the service: not the replayer's, the pools' together, and latfix's own.
_SERVING = r"thread\.(?!MainThread\.|native\.|latfix-(?!worker|prepare))(.*)\."


def held_ns(evidence: Evidence, left: Left, name: str) -> Ints:
    """Wait of each unit for the lock while other threads of the process were on a core."""
    waited, others = _waited(evidence, left, name)
    return np.asarray(np.minimum(waited, others), dtype=np.int64)


def descheduled_ns(evidence: Evidence, left: Left, name: str) -> Ints:
    """Wait of each unit for the lock while its holder was runnable without a core: an indirect wait for a core.

    The part beyond the CPU time of all other threads, as far as these lacked a core.
    """
    waited, others = _waited(evidence, left, name)
    return np.asarray(np.minimum(np.maximum(waited - others, 0), _delayed(evidence, name)), dtype=np.int64)


def one_wakeup_ns(evidence: Evidence, start: Ints, end: Ints) -> Ints:
    """The longest wait for the lock of one wake-up between ``start`` and ``end``.

    If the probe met a held lock around it: the switch interval, or the probe's wait if that is longer.
    """
    times, waits = evidence.series(WAIT_SERIES)
    if not len(times):
        return np.zeros(len(start), np.int64)
    interval = evidence.latest(INTERVAL_SERIES, _DEFAULT_INTERVAL_NS)
    longest = _Probe(times, waits, interval).longest(start, end)
    return np.rint(np.where(longest > 0, np.maximum(longest, SLACK * interval), 0.0)).astype(np.int64)


def service_threads(evidence: Evidence, what: str) -> Iterator[tuple[str, str]]:
    """Name and series of every sampled Python thread that runs code of the service.

    :param what: ``cpu_ns`` or ``runq_ns``.
    """
    known = re.compile(_SERVING + what)
    for series in sorted(set(evidence.samples["series"].tolist())):
        if found := known.fullmatch(series):
            yield found[1], series


def other_threads_ns(evidence: Evidence, name: str) -> Ints:
    """CPU time of the process's other Python threads during each unit; zero for units without an account.

    With a pool of operator threads, which hold no lock, it comes from the samples around the unit.
    """
    unit = evidence.units[name]
    if name not in PROCESS_CPU:
        return np.zeros(len(unit.start), np.int64)
    others = _others(evidence, name)
    if not evidence.setup.pooled:
        return others
    sampled = np.zeros(len(unit.start))
    for _, series in service_threads(evidence, "cpu_ns"):
        times, values = evidence.series(series)
        if len(times) > 1:
            sampled += np.interp(unit.end, times, values) - np.interp(unit.start, times, values)
    return np.minimum(others, np.rint(sampled).astype(np.int64))


def _others(evidence: Evidence, name: str) -> Ints:
    """CPU time of the process without the unit's own."""
    source = evidence.account(name)
    return np.asarray(np.maximum(source[PROCESS_CPU[name]] - source[f"{name}_cpu_ns"], 0), dtype=np.int64)


def _waited(evidence: Evidence, left: Left, name: str) -> tuple[Ints, Ints]:
    """Possible wait of each unit for the lock, and the CPU time of the process's other threads during it."""
    unit = evidence.units[name]
    source = evidence.account(name)
    times, waits = evidence.series(WAIT_SERIES)
    if not len(times):
        return np.zeros(len(unit.start), np.int64), np.zeros(len(unit.start), np.int64)
    interval = evidence.latest(INTERVAL_SERIES, _DEFAULT_INTERVAL_NS)
    probe = _Probe(times, waits, interval)
    # If the probe waited that long within the unit, the lock was held all that time, and each switch lasted an
    # interval.
    kept = probe.longest(unit.start, unit.end, around_ns=0) >= interval
    a_switch = np.maximum(probe.a_switch(unit.start, unit.end), np.where(kept, SLACK * interval, 0.0))
    # One more than counted, because the stamps lie slightly outside the counters' readings.
    switched = np.rint((source[f"{name}_vcsw"] + 1) * a_switch).astype(np.int64)
    return np.minimum(switched, evidence.beyond_usual(name, left.blocked[name])), _others(evidence, name)


def _delayed(evidence: Evidence, name: str) -> Ints:
    """The longest time that other threads of the service lacked a core during each unit.

    From their own units, and from the growth of their run-queue delays between the samples around each unit.
    """
    unit = evidence.units[name]
    total = np.zeros(len(unit.start))
    mine = evidence.places(name)
    by_units = np.zeros(len(unit.start))
    for place, timeline in _run_queue_delays(evidence).items():
        by_units += np.where(mine == place, 0.0, timeline.between(unit.start, unit.end)[0])
    for _, series in service_threads(evidence, "runq_ns"):
        total += evidence.grown_around(series, unit.start, unit.end)
    return np.rint(np.maximum(total, by_units)).astype(np.int64)


def _run_queue_delays(evidence: Evidence) -> dict[int, Timeline]:
    """The run-queue delays of each thread's units."""
    kinds = {name: evidence.units[name] for name in PROCESS_CPU}
    where = {name: evidence.places(name) for name in kinds}
    found = {}
    for place in np.unique(np.concatenate(list(where.values()))).tolist():
        chosen = [(unit, np.flatnonzero((unit.runq > 0) & (where[name] == place))) for name, unit in kinds.items()]
        start = np.concatenate([unit.start[rows] for unit, rows in chosen])
        end = np.concatenate([unit.end[rows] for unit, rows in chosen])
        found[place] = Timeline.of(start, end, np.concatenate([unit.runq[rows] for unit, rows in chosen])[None, :])
    return found


class _Probe:
    """Waits of the probe's thread for the lock around an interval."""

    def __init__(self, times: Ints, waits: Floats, interval_ns: float) -> None:
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        # A reading covers the time until the thread ran: it belongs to every unit that overlaps with its wait.
        self._ends = np.maximum.accumulate(self._times + waits[order].astype(np.int64))
        self._beyond = np.where(waits[order] > USUAL_NS, waits[order], 0.0)
        self._switches = np.concatenate([[0.0], np.cumsum(np.minimum(self._beyond, SLACK * interval_ns))])

    def longest(self, start: Ints, end: Ints, around_ns: int = _AROUND_NS) -> Floats:
        """The longest wait that overlaps with the interval extended by ``around_ns`` on both sides."""
        first, last = self._around(start, end, around_ns)
        last = np.maximum(last, first)
        padded = np.append(self._beyond, 0.0)
        bounds = np.column_stack([np.minimum(first, len(padded) - 1), np.minimum(last, len(padded) - 1)]).ravel()
        if not len(bounds):
            return np.zeros(0)
        return np.where(last > first, np.maximum.reduceat(padded, bounds)[::2], 0.0)

    def a_switch(self, start: Ints, end: Ints) -> Floats:
        """Mean length of one voluntary switch that is a wait for the lock."""
        first, last = self._around(start, end, _AROUND_NS)
        count, total = last - first, self._switches
        return np.where(count > 0, (total[np.maximum(last, first)] - total[first]) / np.maximum(count, 1), 0.0)

    def _around(self, start: Ints, end: Ints, around_ns: int) -> tuple[Ints, Ints]:
        first = np.searchsorted(self._ends, start - around_ns, side="left")
        last = np.searchsorted(self._times, end + around_ns, side="right")
        return first.astype(np.int64), last.astype(np.int64)
