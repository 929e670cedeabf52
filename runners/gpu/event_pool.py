"""Events that are there before a batch needs them, and used again once their times have been read."""

from __future__ import annotations

from collections import deque

from latfix.runners.gpu.accelerator import Accelerator, Event, Stream


class EventPool:
    """Sets of events for one device. Taking and giving back may happen on different threads.

    :param stream: of the device, to mark each event in once: the driver makes it only then.
    :param size: events in a set.
    :param ready: sets to make at once.
    :param blocking: who waits for the last of a set gives the core away meanwhile.
    :ivar grown: sets that had to be made because all were in use.
    """

    def __init__(
        self, accelerator: Accelerator, stream: Stream, size: int, ready: int, *, blocking: bool = False
    ) -> None:
        self._accelerator = accelerator
        self._size = size
        self._blocking = blocking
        self._free: deque[list[Event]] = deque(self._make() for _ in range(ready))
        for events in self._free:
            for event in events:
                event.record(stream)
        stream.synchronize()
        self.grown = 0

    def take(self) -> list[Event]:
        """A set that nobody else uses."""
        try:
            return self._free.popleft()
        except IndexError:
            self.grown += 1
            return self._make()

    def give_back(self, events: list[Event], *, lost: bool = False) -> None:
        """Let a set be used again; where its first event is ``lost`` to another use, with a new one in its place."""
        if lost:
            events[0] = self._accelerator.event()
        self._free.append(events)

    def _make(self) -> list[Event]:
        last = self._size - 1
        return [self._accelerator.event(blocking=self._blocking and k == last) for k in range(self._size)]
