"""Streams and events of one model instance, made once and used for all of its work.

The device's allocator, libraries and captured graphs keep memory per stream: after warm-up in one stream, another is
still cold, and torch hands out streams round-robin from a small pool.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from latfix.runners.gpu.accelerator import Accelerator, Event, Stream

if TYPE_CHECKING:
    from latfix.runners.gpu_memory.caching_allocator import Reserved

#: Events per set: begin and end of the copy in, the compute and the copy out. Number of sets to make in advance.
_SIZE, READY = 6, 256


class EventPool:
    """Sets of events for one device. Taking and giving back may happen on different threads.

    :param stream: a stream of the device, in which each event is recorded once: only then does the driver create it.
    :param blocking: a thread that waits for the last event of a set sleeps instead of spinning.
    :ivar grown: number of sets that were made because all were in use.
    """

    def __init__(self, accelerator: Accelerator, stream: Stream, *, blocking: bool) -> None:
        self._accelerator = accelerator
        self._blocking = blocking
        self._free: deque[list[Event]] = deque(self._make() for _ in range(READY))
        for events in self._free:
            for event in events:
                event.record(stream)
        stream.synchronize()
        self.grown = 0

    def take(self) -> list[Event]:
        try:
            return self._free.popleft()
        except IndexError:
            self.grown += 1
            return self._make()

    def give_back(self, events: list[Event], *, lost: bool = False) -> None:
        """Return a set to the pool. If its first event is ``lost`` to another use, a new one takes its place."""
        if lost:
            events[0] = self._accelerator.event()
        self._free.append(events)

    def _make(self) -> list[Event]:
        return [self._accelerator.event(blocking=self._blocking and k == _SIZE - 1) for k in range(_SIZE)]


class Lane:
    """Streams of one instance.

    :ivar compute: the stream in which its model runs.
    :ivar reserved: device memory that was reserved for it; ``None`` for none yet.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.compute = accelerator.stream()
        self._copies: tuple[Stream, Stream] | None = None
        self.reserved: Reserved | None = None
        self._events: dict[bool, EventPool] = {}

    def events(self, *, blocking: bool) -> EventPool:
        """Sets of events, shared by successive engines; ``blocking`` as in :class:`EventPool`.

        If each engine had its own, the garbage collector would free thousands, each with a driver call.
        """
        if blocking not in self._events:
            with self._accelerator.using(self.compute):
                self._events[blocking] = EventPool(self._accelerator, self.compute, blocking=blocking)
        return self._events[blocking]

    def copies(self) -> tuple[Stream, Stream]:
        """Streams for copies in and out while another batch computes."""
        if self._copies is None:
            self._copies = self._accelerator.stream(), self._accelerator.stream()
        return self._copies

    @contextlib.contextmanager
    def working(self) -> Iterator[Stream]:
        """Inside the context, this thread's work goes into the model's stream; at the end it is complete.

        Its memory must not be reused before.
        """
        with self._accelerator.using(self.compute):
            try:
                yield self.compute
            finally:
                self.compute.synchronize()
