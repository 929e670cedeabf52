"""The critical path of a step, walked backwards from its end.

The walk follows the host to a call that waits, then the device from each activity to its predecessor; an activity
without a predecessor leads back to the host at its launch. So a launch held up by a full queue is the device's time,
and a launch that the device waited for is the host's, although both look alike on the host. Each moment of a step is
claimed once: the claims sum to its length in whole nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.recordings.devices.call_and_kernel_kinds import Device, Host
from latfix.profilers.recordings.devices.call_facts import CallFacts
from latfix.profilers.recordings.devices.device_trace import NOTHING, DeviceTrace
from latfix.profilers.recordings.devices.host_timeline import Timeline
from latfix.profilers.recordings.devices.steps import Step

COMPUTE, GAPS, COLLECTIVE, COPY = "gpu.compute", "gpu.gaps", "gpu.collective", "transfer.copy"
SYNC, LAUNCH, HOST, ALLOCATOR = "transfer.sync", "dispatch.launch", "host.python", "memory.allocator"
FIRST_USE, COMPILE, OUTSIDE, GC = "cold.start", "cold.compile", "external.dependency", "python.gc"
UNKNOWN = "unexplained"

_US = 1_000
#: An activity that starts this soon after another on its device may have waited for it.
_FOLLOWS = 20 * _US
#: Preparation of a copy's call: a fixed part, and a rate that any machine reaches.
_PREPARES, _BYTES_A_NS = 50 * _US, 1.0
#: Up to this duration a wait without a recorded activity is the call itself.
_CALL_ITSELF = 100 * _US
#: Correlations count from the start of a process. Up to this first number the recording contains first uses.
_FRESH = 200

_ON_DEVICE: Mapping[int, str] = {
    Device.KERNEL: COMPUTE,
    Device.MEMSET: COMPUTE,
    Device.COPY: COPY,
    Device.COLLECTIVE: COLLECTIVE,
    Device.OWN_COPY: COMPUTE,
}
_ON_HOST: Mapping[int, str] = {
    Host.ALLOC: ALLOCATOR,
    Host.FIRST_USE: FIRST_USE,
    Host.COMPILE: COMPILE,
    Host.OUTSIDE: OUTSIDE,
    Host.GC: GC,
}


@dataclass(slots=True)
class Piece:
    """A stretch of a critical path.

    :param thread: of the host, whose turn it is or was last.
    :param row: in the host's table; ``activity`` in the device's; :data:`NOTHING` for none.
    """

    start: int
    end: int
    cause: str
    thread: int
    row: int = NOTHING
    activity: int = NOTHING

    @property
    def length(self) -> int:
        """In nanoseconds."""
        return self.end - self.start


class CriticalPaths:
    """The critical paths of the steps of one recording.

    :ivar previous: ``(activities,)`` the one before each on its lane; :data:`NOTHING` for none.
    """

    def __init__(self, trace: DeviceTrace, facts: CallFacts, timelines: Callable[[int], Timeline]) -> None:
        self._trace, self._facts, self._timelines = trace, facts, timelines
        device = trace.device
        self.previous = _previous_on_lane(device.place, device.start)
        numbers = {each: k for k, each in enumerate(dict.fromkeys(lane[0] for lane in trace.lanes))}
        of_lane = np.array([numbers[lane[0]] for lane in trace.lanes], dtype=np.int64)
        self._device_of: Ints = of_lane[device.place] if len(device) else device.place
        lasts = device.end > device.start
        self._by_end, self._by_lane = (
            {key: _by_end(device.end, np.flatnonzero(lasts & (of == key))) for key in keys}
            for of, keys in ((self._device_of, numbers.values()), (device.place, range(len(trace.lanes))))
        )
        self._lasts = lasts
        self._devices_of_thread = self._launched_to()

    def _launched_to(self) -> dict[int, tuple[int, ...]]:
        known = np.flatnonzero(self._facts.launch != NOTHING)
        threads = self._trace.host.place[self._facts.launch[known]]
        pairs = set(zip(threads.tolist(), self._device_of[known].tolist(), strict=True))
        return {thread: tuple(sorted(d for t, d in pairs if t == thread)) for thread, _ in pairs}

    def walk(self, step: Step) -> list[Piece]:
        """The critical path of a step, in order of time."""
        result = _Walk(self, step).pieces()
        unknown = LAUNCH if self._trace.lacks_kernels else HOST if self._trace.lacks_calls else ""
        for piece in result:
            if piece.cause == unknown:
                piece.cause = UNKNOWN
        return result

    # Lookups for a walk.

    def waited_for(self, row: int, until: int) -> int:
        """The activity that a call waited for: the last to end within it; :data:`NOTHING` for none."""
        host, facts = self._trace.host, self._facts
        begin = int(host.start[row])
        work = int(facts.first_work[row])
        if host.kind[row] == Host.COPY:
            ended = work != NOTHING and begin < int(self._trace.device.end[work]) <= until and bool(self._lasts[work])
            return work if ended else NOTHING
        lane = self._trace.waits.get(int(host.correlation[row]), NOTHING)
        if lane != NOTHING:
            return self._last(self._by_lane[lane], begin, until)
        devices = self._devices_of_thread.get(int(host.place[row])) or tuple(self._by_end)
        result = [self._last(self._by_end[number], begin, until) for number in devices]
        return max(result, key=lambda k: NOTHING if k == NOTHING else int(self._trace.device.end[k]), default=NOTHING)

    @staticmethod
    def _last(sorted_by_end: tuple[Ints, Ints], after: int, until: int) -> int:
        ends, rows = sorted_by_end
        k = int(np.searchsorted(ends, until, side="right")) - 1
        return int(rows[k]) if k >= 0 and ends[k] > after else NOTHING

    def predecessor(self, activity: int) -> tuple[int, int]:
        """What an activity waited for: an earlier activity, or :data:`NOTHING` and the call that issued it.

        Both are :data:`NOTHING` if the recording shows neither.
        """
        device, facts = self._trace.device, self._facts
        start = int(device.start[activity])
        before, call = int(self.previous[activity]), int(facts.launch[activity])
        before_end = int(device.end[before]) if before != NOTHING else None
        if call == NOTHING:
            return before, NOTHING
        ready = min(int(facts.issued_ns[call]), start)
        if before != NOTHING and int(facts.launch[before]) == call:
            return before, NOTHING  # of the same graph
        after = max(ready, before_end if before_end is not None else ready)
        other = self._last(self._by_end[int(self._device_of[activity])], after, start)
        if other != NOTHING and other != activity and start - int(device.end[other]) <= _FOLLOWS:
            return other, NOTHING
        if before_end is not None and before_end >= ready:
            return before, NOTHING
        return NOTHING, call

    @property
    def is_fresh(self) -> bool:
        """True if the recording begins with the process, so that it contains first uses."""
        return 0 <= self._trace.first_correlation <= _FRESH


class _Walk:
    """One walk, which collects pieces from the end to the begin."""

    def __init__(self, paths: CriticalPaths, step: Step) -> None:
        self._paths, self._step = paths, step
        self._trace, self._facts = paths._trace, paths._facts
        self._found: list[Piece] = []
        self._now = step.end
        self._thread = step.thread
        #: True while the device is idle because of the host.
        self._starved = False
        #: Index of the first piece since the last wait or activity: only host pieces from here on.
        self._since = 0

    def pieces(self) -> list[Piece]:
        """All pieces, in order of time."""
        where: Callable[[], int] = self._on_host
        activity = NOTHING
        while self._now > self._step.start:
            activity = where() if activity == NOTHING else self._on_device(activity)
        return self._found[::-1]

    def _claim(self, start: int, cause: str, *, row: int = NOTHING, activity: int = NOTHING) -> None:
        start = max(min(start, self._now), self._step.start)
        if start < self._now:
            self._found.append(Piece(start, self._now, cause, self._thread, row, activity))
            self._now = start

    def _on_host(self) -> int:
        """Claim one stretch of the host. Returns the activity that it waited for, if any."""
        timeline = self._paths._timelines(self._thread)
        k = bisect_left(timeline.start, self._now) - 1
        if k < 0 or timeline.end[k] < self._now:
            if self._thread != self._step.thread:
                self._thread = self._step.thread
                return NOTHING
            self._claim(timeline.end[k] if k >= 0 else self._step.start, self._own_code())
            return NOTHING
        row, start = timeline.row[k], timeline.start[k]
        kind = self._facts.kind[row]
        if kind in (Host.SYNC, Host.COPY) or self._facts.blocked[row]:
            return self._in_wait(row, start, kind)
        self._claim(start, self._of_call(row, kind), row=row)
        return NOTHING

    def _own_code(self) -> str:
        return LAUNCH if self._starved else HOST

    def _of_call(self, row: int, kind: int) -> str:
        if self._facts.first_use[row]:
            return FIRST_USE
        return _ON_HOST.get(kind) or self._own_code()

    def _in_wait(self, row: int, start: int, kind: int) -> int:
        cause = COPY if kind == Host.COPY else SYNC
        activity = self._paths.waited_for(row, self._now)
        if activity != NOTHING:
            self._refilled()
            self._claim(
                int(self._trace.device.end[activity]), COMPUTE if self._facts.blocked[row] else cause, row=row
            )
            return activity
        if kind == Host.COPY:
            self._prepare_copy(row, start)
        elif self._facts.blocked[row]:
            self._claim(start, COMPUTE, row=row)
        else:
            begins = self._trace.device.start
            unseen = self._now - start > _CALL_ITSELF and (not len(begins) or int(begins[0]) >= start)
            self._refilled()
            self._claim(start, UNKNOWN if unseen else SYNC, row=row)
        return NOTHING

    def _prepare_copy(self, row: int, start: int) -> None:
        """Claim a copy's call before the device copies: beyond its preparation it waited, or was a first use."""
        work = int(self._facts.first_work[row])
        size = int(self._trace.device.size[work]) if work != NOTHING else 0
        needed = _PREPARES + int(size / _BYTES_A_NS)
        if self._now - start > needed + _CALL_ITSELF:
            self._claim(self._now - needed, COPY, row=row)
            unseen = work == NOTHING or self._paths.previous[work] == NOTHING
            waited = UNKNOWN if unseen else SYNC
            self._claim(start, FIRST_USE if self._paths.is_fresh else waited, row=row)
        else:
            self._claim(start, COPY, row=row)

    def _refilled(self) -> None:
        """Attribute the host's time up to its next launch to the wait that ends here: it left the device idle."""
        for piece in reversed(self._found[self._since :]):
            if piece.cause != LAUNCH:
                break
            piece.cause = SYNC
            if piece.activity != NOTHING or (
                piece.row != NOTHING and self._trace.host.kind[piece.row] in (Host.LAUNCH, Host.GRAPH_LAUNCH)
            ):
                break
        self._since = len(self._found)

    def _on_device(self, activity: int) -> int:
        """Claim an activity and the gap before it. Returns its predecessor if that is an activity."""
        device = self._trace.device
        self._claim(int(device.start[activity]), _ON_DEVICE[int(device.kind[activity])], activity=activity)
        before, call = self._paths.predecessor(activity)
        self._since = len(self._found)
        if before != NOTHING:
            self._claim(int(device.end[before]), GAPS, activity=activity)
            return before
        if call == NOTHING:
            self._claim(self._step.start, UNKNOWN, activity=activity)
            return NOTHING
        self._starved, self._thread = True, int(self._trace.host.place[call])
        cause = COPY if self._trace.host.kind[call] == Host.COPY else LAUNCH
        self._claim(int(self._trace.host.end[call]), cause, activity=activity)
        return NOTHING


def _previous_on_lane(place: Ints, start: Ints) -> Ints:
    """For each activity, the one before it on its lane."""
    previous = np.full(len(place), NOTHING, dtype=np.int64)
    order = np.lexsort((start, place))
    same = place[order][1:] == place[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _by_end(end: Ints, rows: Ints) -> tuple[Ints, Ints]:
    order = rows[np.argsort(end[rows], kind="stable")]
    return end[order], order
