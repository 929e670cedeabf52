"""The ledgers of steps: each critical path by cause, in whole nanoseconds, and the host's activity in the step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from latfix.arrays import Ints, groups_of
from latfix.profilers.recordings.devices import critical_path as path
from latfix.profilers.recordings.devices.call_and_kernel_kinds import Device, Host
from latfix.profilers.recordings.devices.call_facts import CallFacts
from latfix.profilers.recordings.devices.critical_path import CriticalPaths, Piece
from latfix.profilers.recordings.devices.device_trace import NOTHING, DeviceTrace, Intervals
from latfix.profilers.recordings.devices.host_timeline import host_timelines, stretches
from latfix.profilers.recordings.devices.steps import Step

RANK_WAIT = "gpu.rank_wait"
#: Minimum number of runs for taking the shortest run of a collective as the time that its bytes need.
_LEAST_SEEN = 3
#: Activities of the host, in a report's order.
STAGES: dict[int, str] = {
    Host.CODE: "not recorded",
    Host.FRAME: "Python",
    Host.OPERATOR: "operators",
    Host.LAUNCH: "launches",
    Host.GRAPH_LAUNCH: "graph launches",
    Host.SYNC: "waits",
    Host.COPY: "copy calls",
    Host.ALLOC: "allocator calls",
    Host.FIRST_USE: "first use",
    Host.COMPILE: "compilation",
    Host.OTHER_CALL: "other calls",
    Host.OUTSIDE: "outside",
    Host.GC: "collector",
}
#: Launches held up by a full queue: the opposite of a starved device.
QUEUE_FULL = "launches, queue full"
_TEMPLATE = re.compile(r"[<({].*", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class StepLedger(Step):
    """One step, from any recording of a device. Times in nanoseconds.

    :param causes: time by cause; the sum is exactly the step's length.
    :param growth: the same, for comparing slow with quiet steps; differs if a recording separates more work from
        slower work.
    :param stages: time by activity of the step's thread; the sum is the same, or it is empty.
    :param named: time by cause and name (a call, a frame, a kernel); ``pieces`` likewise the number of pieces.
    :param kernels: time on the path by kernel (name and shape); ``runs`` likewise the number of runs.
    :param copied_bytes: of copies on the path; ``pageable`` the bytes from or to pageable memory.
    :param before: time of kernels on the path that were issued before the step.
    :param device_busy: time within the step during which the device was busy.
    :param lag: time after the step until the device finished the step's work.
    """

    causes: Counter[str] = field(default_factory=Counter)
    growth: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    named: Counter[tuple[str, str]] = field(default_factory=Counter)
    pieces: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernels: Counter[tuple[int, int]] = field(default_factory=Counter)
    runs: dict[tuple[int, int], float] = field(default_factory=dict)
    copied_bytes: int = 0
    pageable: int = 0
    device_busy: int = 0
    lag: int = 0
    before: int = 0

    def claim(self, cause: str, name: str, length: int) -> None:
        """Add a piece of the critical path."""
        self.causes[cause] += length
        self.named[cause, name] += length
        self.pieces[cause, name] += 1


class Ledgers:
    """Makes the ledgers of one recording's steps.

    :param floors: ``(activities,)`` time that a collective's bytes need; ``None`` for the shortest run of its kind.
    """

    def __init__(self, trace: DeviceTrace, floors: Ints | None = None) -> None:
        self.trace, self.facts = trace, CallFacts(trace)
        self._timelines, self._ranges = host_timelines(trace.host), host_timelines(trace.ranges)
        self._paths = CriticalPaths(trace, self.facts, self._timelines)
        self._floors = shortest(trace) if floors is None else floors
        self._labels = [_label(name) for name in trace.names]
        known = np.flatnonzero(self.facts.launch != NOTHING)
        issued = trace.host.start[self.facts.launch[known]]
        order = np.argsort(issued, kind="stable")
        self._issued, self._issued_end = issued[order], trace.device.end[known[order]]

    def of(self, step: Step) -> StepLedger:
        """The ledger of a step."""
        result = StepLedger(
            name=step.name, thread=step.thread, start=step.start, end=step.end, stages=self._stages(step)
        )
        for piece in self._paths.walk(step):
            self._add(result, piece)
        result.device_busy = self.facts.busy_ns(step.start, step.end)
        result.lag = self._lag(step)
        assert sum(result.causes.values()) == sum(result.stages.values()) == step.length
        return result

    def _add(self, result: StepLedger, piece: Piece) -> None:
        cause, activity, device = piece.cause, piece.activity, self.trace.device
        if activity == piece.row == NOTHING:
            self._add_own_code(result, piece)
            return
        if activity != NOTHING:
            name = self._labels[device.name[activity]]
            if cause in (path.GAPS, path.LAUNCH):
                name = f"before {name}"
        else:
            name = self._labels[self.trace.host.name[piece.row]]
        if waited := self._waited(piece) if cause == path.COLLECTIVE and activity != NOTHING else 0:
            result.claim(RANK_WAIT, name, waited)
        result.claim(cause, name, piece.length - waited)
        if cause == path.COMPUTE and activity != NOTHING:
            key = int(device.name[activity]), int(device.size[activity])
            result.kernels[key] += piece.length
            share = piece.length / int(device.end[activity] - device.start[activity])
            result.runs[key] = result.runs.get(key, 0.0) + share
            call = int(self.facts.launch[activity])
            if call == NOTHING or self.trace.host.start[call] < result.start:
                result.before += piece.length
        elif cause == path.COPY and activity != NOTHING and device.kind[activity] == Device.COPY:
            result.copied_bytes += int(device.size[activity])
            if int(device.name[activity]) in self.trace.pageable:
                result.pageable += int(device.size[activity])

    def _add_own_code(self, result: StepLedger, piece: Piece) -> None:
        """Add code without a recorded call, by the innermost range that the program named within the step."""
        ranges = self.trace.ranges
        for start, end, row in stretches(self._ranges(piece.thread), piece.start, piece.end):
            around = row == NOTHING or (ranges.start[row] <= result.start and ranges.end[row] >= result.end)
            name = "code of the host" if around else f"code in {self._labels[ranges.name[row]]}"
            result.claim(piece.cause, name, end - start)

    def _waited(self, piece: Piece) -> int:
        """Time of a collective on the path beyond the need of its bytes: the wait for other ranks."""
        device = self.trace.device
        length = int(device.end[piece.activity] - device.start[piece.activity])
        beyond = max(length - int(self._floors[piece.activity]), 0)
        return min(beyond, piece.length)

    def _stages(self, step: Step) -> Counter[str]:
        result: Counter[str] = Counter()
        for start, end, row in stretches(self._timelines(step.thread), step.start, step.end):
            if row == NOTHING:
                result[STAGES[Host.CODE]] += end - start
            elif self.facts.blocked[row]:
                result[QUEUE_FULL] += end - start
            else:
                kind = Host.FIRST_USE if self.facts.first_use[row] else self.facts.kind[row]
                result[STAGES[kind]] += end - start
        return result

    def _lag(self, step: Step) -> int:
        first, last = np.searchsorted(self._issued, (step.start, step.end))
        return max(int(self._issued_end[first:last].max()) - step.end, 0) if last > first else 0


def shortest(trace: DeviceTrace) -> Ints:
    """For each collective, the shortest run of its kind if there are enough; else the activity's own length."""
    device = trace.device
    length = device.end - device.start
    floors: Ints = length.copy()
    for members in _alike(device, np.flatnonzero(device.kind == Device.COLLECTIVE)):
        if len(members) >= _LEAST_SEEN:
            floors[members] = length[members].min()
    return floors


def shortest_of_ranks(traces: Sequence[DeviceTrace]) -> list[Ints] | None:
    """The same from the traces of all ranks: the last rank to arrive at a collective does not wait.

    ``None`` if the ranks did not run the same collectives.
    """
    rows = [np.flatnonzero(trace.device.kind == Device.COLLECTIVE) for trace in traces]
    names = [[trace.names[k] for k in trace.device.name[mine]] for trace, mine in zip(traces, rows, strict=True)]
    if len(traces) < 2 or not names[0] or any(each != names[0] for each in names[1:]):
        return None
    lengths = [trace.device.end - trace.device.start for trace in traces]
    least = np.min([length[mine] for length, mine in zip(lengths, rows, strict=True)], axis=0)
    for length, mine in zip(lengths, rows, strict=True):
        length[mine] = least
    return lengths


def last_rank(traces: Sequence[DeviceTrace], floors: Sequence[Ints]) -> tuple[int, int, int]:
    """The rank that the others waited for most, and the nanoseconds of their waiting for it and for any.

    :param floors: of :func:`shortest_of_ranks`.
    """
    rows = [np.flatnonzero(trace.device.kind == Device.COLLECTIVE) for trace in traces]
    waits = np.stack([
        (trace.device.end - trace.device.start - floor)[mine]
        for trace, floor, mine in zip(traces, floors, rows, strict=True)
    ])  # fmt: skip
    waited = np.bincount(waits.argmin(axis=0), waits.sum(axis=0), len(traces))
    worst = int(waited.argmax())
    return worst, int(waited[worst]), int(waited.sum())


def price(ledgers: Ledgers, quiet: Sequence[StepLedger]) -> dict[tuple[int, int], float]:
    """The median nanoseconds of each kernel in quiet steps, by its key."""
    device = ledgers.trace.device
    inside = np.zeros(len(device), dtype=bool)
    for each in quiet:
        first, last = np.searchsorted(device.start, (each.start, each.end + each.lag))
        inside[first:last] = True
    rows = np.flatnonzero(inside & np.isin(device.kind, (Device.KERNEL, Device.MEMSET, Device.OWN_COPY)))
    length = device.end - device.start
    return {
        (int(device.name[runs[0]]), int(device.size[runs[0]])): float(np.median(length[runs]))
        for runs in _alike(device, rows)
    }


def _alike(device: Intervals, rows: Ints) -> list[Ints]:
    """The rows of each kind of activity: of one name and size."""
    kinds = np.stack([device.name[rows], device.size[rows]], axis=1)
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    return [rows[group] for group in groups_of(kind.ravel())]


def _label(name: str) -> str:
    """The name of a kernel or frame without template arguments, parameters and folders."""
    if ".py(" in name:
        folder, _, rest = name.rpartition("/")
        return rest if folder else name
    if name.startswith(("<", "Memcpy")):
        return name
    plain = _TEMPLATE.sub("", name.removeprefix("void ")).strip().rstrip(":")
    return plain.rpartition("::")[2] or plain or name
