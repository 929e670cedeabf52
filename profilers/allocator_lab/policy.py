"""The interface of a model of an allocator, and its counters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from latfix.profilers.allocator_lab.free_blocks import Block


class OutOfMemory(Exception):
    """No block is available, even after giving cached memory back."""


@dataclass(slots=True)
class Counters:
    """Totals and current sizes of an allocator.

    :ivar device_allocs: segments taken from the device, or mapped; ``device_frees`` given back.
    :ivar taken: bytes of the segments taken; ``given`` of those given back.
    :ivar retries: how often it gave cached memory back because the device had no more, and retried: a stall, as the
        program waits for the device.
    :ivar reserved: bytes held from the device.
    :ivar granted: bytes of blocks in use; ``requested``: bytes requested for them.
    """

    device_allocs: int = 0
    device_frees: int = 0
    taken: int = 0
    given: int = 0
    retries: int = 0
    reserved: int = 0
    granted: int = 0
    requested: int = 0

    def take(self, size: int) -> None:
        """Count a segment taken from the device, or memory mapped."""
        self.reserved += size
        self.taken += size
        self.device_allocs += 1

    def give(self, size: int) -> None:
        """Count a segment given back, or memory unmapped."""
        self.reserved -= size
        self.given += size
        self.device_frees += 1


class Policy(ABC):
    """A model of an allocator.

    :ivar name: in reports.
    :ivar capacity: bytes of the device that it may use.
    """

    def __init__(self, capacity: int, name: str, counters: Counters | None = None) -> None:
        self.capacity = capacity
        self.name = name
        self.counters = counters or Counters()

    def allocate(self, size: int, stream: int = 0) -> Block:
        """A block of ``size`` bytes or more.

        :raises OutOfMemory: there is none.
        """
        block = self._find(size, stream)
        block.live, block.requested = True, size
        self.counters.granted += block.size
        self.counters.requested += size
        return block

    def free(self, block: Block) -> None:
        self.counters.granted -= block.size
        self.counters.requested -= block.requested
        block.live, block.requested = False, 0
        self._keep(block)

    @abstractmethod
    def _find(self, size: int, stream: int) -> Block:
        """A free block, removed from the free ones."""

    @abstractmethod
    def _keep(self, block: Block) -> None:
        """Keep a freed block."""

    @abstractmethod
    def free_bytes(self) -> tuple[int, int]:
        """Free bytes held from the device, and the size of the largest free block."""

    def stuck_bytes(self) -> int:
        """Free bytes that it cannot give back to the device, as other bytes of their segments are in use.

        Here all free bytes, unless nothing is in use: those of one segment.
        """
        return self.free_bytes()[0] if self.counters.granted else 0
