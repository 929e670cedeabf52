"""The device's clock on the host's: where on the host's timeline an event of the device lies, and how surely.

The two clocks are never read at the same moment. But what was enqueued at a time of the host ran later, and what the
host was told of had run before: each batch gives a lower and an upper bound of the offset between the clocks, at an
enqueueing and at a synchronization that happen anyway. The offset hardly moves, so the bounds of many batches are
taken together (Cristian, Probabilistic clock synchronization, 1989), and let go at the rate at which quartz clocks
may drift apart.
"""

from __future__ import annotations

import threading

from latfix.runners.device.accelerator import Event

#: Nanoseconds in a second by which the clocks may drift apart.
_DRIFT = 20e-6
#: An event's time is a float of milliseconds: after this long from its origin, its last digit is half a microsecond.
_NEW_ORIGIN_NS = 8_000_000_000


class Offset:
    """Bounds of ``host - device`` in nanoseconds."""

    def __init__(self, drift: float = _DRIFT) -> None:
        self._drift = drift
        self._low, self._high = float("-inf"), float("inf")
        self._at = 0

    def observe(self, host_before: int, device_after: int, device_before: int, host_after: int) -> None:
        """Learn from one batch.

        :param host_before: read before the work was enqueued that ended at ``device_after`` on the device's clock.
        :param device_before: on the device's clock, before the host was told of it at ``host_after``.
        """
        slip = self._drift * max(host_after - self._at, 0) if self._at else 0.0
        low, high = host_before - device_after, host_after - device_before
        self._low, self._high = max(self._low - slip, low), min(self._high + slip, high)
        if self._low > self._high:  # the clocks drifted faster than allowed for: believe the latest
            self._low, self._high = low, high
        self._at = max(self._at, host_after)

    @property
    def value(self) -> int:
        """The middle of what it may be; at most half of :attr:`slack` off."""
        return round((self._low + self._high) / 2)

    @property
    def slack(self) -> int:
        """Nanoseconds between the bounds."""
        return max(round(self._high - self._low), 0)


class DeviceClock:
    """One device's clock, from the times between its events. Any thread may use it.

    :ivar slacks: how many bounds were joined, and the least and the latest slack in nanoseconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origin: Event | None = None
        self._base_ns = 0
        self._offset = Offset()
        self.observed = 0

    def place(self, events: list[Event], host_before: int, host_after: int) -> tuple[list[int], int, bool]:
        """Where events lie on the host's timeline.

        :param events: of one batch, in order, all reached; the first was enqueued after ``host_before``, and the
            host knew of the last at ``host_after``.
        :returns: host nanoseconds, how far off they may be together, and whether the first event has become the
            clock's origin: then it must not be recorded again.
        """
        with self._lock:
            if self._origin is None:
                self._origin = events[0]
                times, kept = [round(events[0].elapsed_time(event) * 1e6) for event in events[1:]], True
                times.insert(0, 0)
            else:
                origin = self._origin
                times = [self._base_ns + round(origin.elapsed_time(event) * 1e6) for event in events]
                kept = times[0] - self._base_ns > _NEW_ORIGIN_NS
                if kept:
                    self._origin, self._base_ns = events[0], times[0]
            self._offset.observe(host_before, times[0], times[-1], host_after)
            self.observed += 1
            shift = self._offset.value
            return [time + shift for time in times], self._offset.slack, kept

    @property
    def slack_ns(self) -> int:
        """How far off a time on the host's timeline may be now; 0 before the first batch."""
        with self._lock:
            return self._offset.slack if self.observed else 0
