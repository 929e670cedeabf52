"""What a model of an allocator offers to the laboratory, and what it counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from latfix.profilers.allocator_lab.free_blocks import Block


class OutOfMemory(Exception):
    """No block could be had, whatever was tried."""


@dataclass(slots=True)
class Counters:
    """What an allocator did so far.

    :ivar device_allocs: segments that were taken from the device, or mapped; ``device_frees`` given back.
    :ivar taken: bytes of the segments that were taken; ``given`` of those given back.
    :ivar retries: how often it gave cached memory back because the device had no more, and asked again: the program
        waits for the device meanwhile.
    :ivar reserved: bytes that it has from the device now.
    :ivar granted: bytes of blocks that are in use now; ``asked``: bytes that were asked for in them.
    """

    device_allocs: int = 0
    device_frees: int = 0
    taken: int = 0
    given: int = 0
    retries: int = 0
    reserved: int = 0
    granted: int = 0
    asked: int = 0

    def take(self, size: int) -> None:
        """A segment was taken from the device, or memory mapped."""
        self.reserved += size
        self.taken += size
        self.device_allocs += 1

    def give(self, size: int) -> None:
        """A segment was given back, or memory unmapped."""
        self.reserved -= size
        self.given += size
        self.device_frees += 1


class Policy(ABC):
    """A model of an allocator.

    :ivar name: as a report shows it.
    :ivar capacity: bytes that the device has for it.
    :ivar counters: what it did so far.
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
        block.live, block.asked = True, size
        self.counters.granted += block.size
        self.counters.asked += size
        return block

    def free(self, block: Block) -> None:
        """Take a block back."""
        self.counters.granted -= block.size
        self.counters.asked -= block.asked
        block.live, block.asked = False, 0
        self._keep(block)

    @abstractmethod
    def _find(self, size: int, stream: int) -> Block:
        """A block to hand out."""

    @abstractmethod
    def _keep(self, block: Block) -> None:
        """Keep a block that is free again."""

    @abstractmethod
    def free_bytes(self) -> tuple[int, int]:
        """Of what it has from the device: bytes that are free, and the largest free block."""

    @abstractmethod
    def stuck_bytes(self) -> int:
        """Free bytes that it cannot give back to the device, for something beside them is in use."""
