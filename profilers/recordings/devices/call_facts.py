"""Facts on each runtime call, independent of steps: the work it issued, first uses, full queues."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Ints, groups_of
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.recordings.devices.call_and_kernel_kinds import Host
from latfix.profilers.recordings.devices.device_trace import NOTHING, DeviceTrace

_US, _MS = 1_000, 1_000_000
#: A slow launch: factor over the usual duration. Least duration for a first use, and for a wait for a full queue.
_OUTLIER, _LEAST_FIRST, _LEAST_BLOCKED = 10, 200 * _US, 50 * _US
#: A kernel that starts later than this after its launch was queued.
_QUEUED = 20 * _US
#: Share of a launch during which the device must be busy for a full queue.
_BUSY = 0.8
#: A call that appears once in the recording is a first use from this duration on.
_LEAST_ALONE = _MS
#: The usual duration of a launch if the recording has none that is too short for a full queue.
_USUAL_LAUNCH = 5 * _US
_LAUNCHES = (Host.LAUNCH, Host.GRAPH_LAUNCH)


class CallFacts:
    """Facts of the calls of one recording.

    :ivar kind: :class:`Host` of each call, operator and frame.
    :ivar launch: ``(activities,)`` row of the call that issued each activity; :data:`NOTHING` if not recorded.
    :ivar first_work: ``(calls,)`` the first activity that a call issued; :data:`NOTHING` for none.
    :ivar first_use: ``(calls,)`` True for calls that were slow because of a first use.
    :ivar blocked: ``(calls,)`` True for launches that waited for room in the queue: the device did not starve.
    :ivar issued_ns: ``(calls,)`` when its first work was issued: early in the call, at the end of a slow launch.
    """

    def __init__(self, trace: DeviceTrace) -> None:
        host, device = trace.host, trace.device
        self.launch, self.first_work = _joined(trace)
        self.kind: list[int] = host.kind.tolist()
        self.length: Ints = host.end - host.start
        launches = host.kind == Host.LAUNCH
        short = np.sort(self.length[launches & (self.length < _LEAST_BLOCKED)])
        usual = int(short[len(short) // 4]) if len(short) else _USUAL_LAUNCH
        busy = Intervals.merged(device.start, device.end - device.start)
        self._busy = busy, np.concatenate([[0], np.cumsum(busy.end - busy.start)])
        delay = np.full(len(host), np.iinfo(np.int64).max)
        known = self.first_work != NOTHING
        delay[known] = device.start[self.first_work[known]] - host.end[known]
        self.blocked: Bools = launches & (self.length >= _LEAST_BLOCKED) & (delay > _QUEUED)
        for row in np.flatnonzero(self.blocked):
            self.blocked[row] = self.busy_ns(int(host.start[row]), int(host.end[row])) >= _BUSY * self.length[row]
        slow = np.isin(host.kind, _LAUNCHES) & ~self.blocked & (self.length >= _OUTLIER * max(usual, 1))
        self.issued_ns: Ints = np.where(slow, host.end, host.start + usual)
        self.first_use: Bools = launches & slow & (self.length >= _LEAST_FIRST) & self._first_kernel(trace)
        self.first_use |= self._first_calls(trace)

    def busy_ns(self, start: int, end: int) -> int:
        """Time within an interval during which the device was busy."""
        busy, before = self._busy

        def until(moment: int) -> int:
            k = int(np.searchsorted(busy.start, moment, side="right")) - 1
            return 0 if k < 0 else int(before[k]) + min(moment, int(busy.end[k])) - int(busy.start[k])

        return until(end) - until(start)

    def _first_kernel(self, trace: DeviceTrace) -> Bools:
        """True for calls whose kernel was not launched before in the recording."""
        result = np.zeros(len(trace.host), dtype=bool)
        chosen = np.flatnonzero(self.first_work != NOTHING)
        chosen = chosen[np.isin(trace.host.kind[chosen], _LAUNCHES)]
        _, first = np.unique(trace.device.name[self.first_work[chosen]], return_index=True)
        result[chosen[first]] = True
        return result

    def _first_calls(self, trace: DeviceTrace) -> Bools:
        """True for the first call of a name if it took far longer than the others."""
        host = trace.host
        result = np.zeros(len(host), dtype=bool)
        candidates = np.flatnonzero(np.isin(host.kind, (Host.ALLOC, Host.OTHER_CALL)))
        for rows in (candidates[group] for group in groups_of(host.name[candidates])):
            lengths = self.length[rows]
            if len(rows) > 2:
                result[rows[0]] = lengths[0] >= max(_LEAST_FIRST, 2 * _OUTLIER * float(np.median(lengths[1:])))
            elif host.kind[rows[0]] == Host.OTHER_CALL:
                result[rows[0]] = lengths[0] >= _LEAST_ALONE
        return result


def _joined(trace: DeviceTrace) -> tuple[Ints, Ints]:
    """Calls and activities matched by correlation: ``launch`` and ``first_work`` of :class:`CallFacts`."""
    host, device = trace.host, trace.device
    size = 1 + max((int(table.correlation.max()) for table in (host, device) if len(table)), default=-1)
    call_of = np.full(size + 1, NOTHING, dtype=np.int64)  # the last entry stands for no correlation
    calls = np.flatnonzero(host.correlation != NOTHING)[::-1]
    call_of[host.correlation[calls]] = calls
    launch = call_of[device.correlation]
    first_work = np.full(len(host), NOTHING, dtype=np.int64)
    issued = np.flatnonzero(launch != NOTHING)[::-1]
    first_work[launch[issued]] = issued
    return launch, first_work
