"""Streams and events of one model instance: made once and used for all that it ever runs.

The device's allocator, its libraries and captured graphs keep memory by stream: what was warmed up in one is cold in
another, and streams come from a pool of few that is gone through in turn.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from latfix.runners.gpu.accelerator import Accelerator, Event, Stream

if TYPE_CHECKING:
    from latfix.runners.gpu_memory.caching_allocator import Reserved


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


class Lane:
    """Streams of one instance.

    :ivar compute: that its model runs in.
    :ivar reserved: memory of the device that was taken ahead for it; ``None`` for none yet.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.compute = accelerator.stream()
        self._copies: tuple[Stream, Stream] | None = None
        self.reserved: Reserved | None = None
        self._events: dict[bool, EventPool] = {}

    def events(self, *, size: int, ready: int, blocking: bool) -> EventPool:
        """Sets of events, for whoever uses the lane now.

        An engine that had its own would leave thousands to the collector, each ended by a call of the driver.

        :param blocking: as of :class:`EventPool`, which has the other parameters, too.
        """
        if blocking not in self._events:
            with self._accelerator.using(self.compute):
                self._events[blocking] = EventPool(self._accelerator, self.compute, size, ready, blocking=blocking)
        return self._events[blocking]

    def copies(self) -> tuple[Stream, Stream]:
        """Streams for copies in and out beside the compute of another batch."""
        if self._copies is None:
            self._copies = self._accelerator.stream(), self._accelerator.stream()
        return self._copies

    @contextlib.contextmanager
    def working(self) -> Iterator[Stream]:
        """What this thread runs meanwhile goes into the stream of the model, and is done when this ends.

        Nothing that it used may be used again before.
        """
        with self._accelerator.using(self.compute):
            try:
                yield self.compute
            finally:
                self.compute.synchronize()
