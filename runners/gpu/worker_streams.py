"""The streams that one model instance's work goes through, made once and used for all that it ever runs.

The device's allocator, its libraries and captured graphs keep memory by stream: what was warmed up in one is cold in
another, and streams come from a pool of few that is gone through in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from latfix.runners.gpu.accelerator import Accelerator, Stream
from latfix.runners.gpu.event_pool import EventPool

if TYPE_CHECKING:
    from latfix.runners.gpu_memory.caching_allocator import Reserved


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
