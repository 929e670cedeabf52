"""A pool of size classes: a freed block serves its own class alone, and nothing is ever split or joined."""

from __future__ import annotations

from latfix.profilers.allocator_lab.free_blocks import Block, FreeBlocks
from latfix.profilers.allocator_lab.policy import Counters, OutOfMemory, hand_out, take_back
from latfix.profilers.allocator_lab.torch_caching import GRAIN

#: Classes between two powers of two: at most a fifth of a block is wasted.
STEPS = 4


class SizeClasses:
    """The model; each block is taken from the device on its own, and kept when it is freed.

    :param capacity: bytes that the device has for it.
    """

    def __init__(self, capacity: int, *, name: str = "size classes") -> None:
        self.name = name
        self.capacity = capacity
        self.counters = Counters()
        self._kept: dict[tuple[int, int], list[Block]] = {}
        self._home = FreeBlocks()
        self._next_start = 0

    def allocate(self, size: int, stream: int = 0) -> Block:
        """:meth:`Policy.allocate`."""
        need = class_of(size)
        kept = self._kept.setdefault((stream, need), [])
        if kept:
            return hand_out(kept.pop(), size, self.counters)
        if self.counters.reserved + need > self.capacity:
            self._release()
            self.counters.retries += 1
        if self.counters.reserved + need > self.capacity:
            raise OutOfMemory
        self.counters.reserved += need
        self.counters.device_allocs += 1
        block = Block(self._next_start, need, self._home)
        block.since = stream
        self._next_start += need
        return hand_out(block, size, self.counters)

    def free(self, block: Block) -> None:
        """:meth:`Policy.free`."""
        take_back(block, self.counters)
        self._kept[block.since, block.size].append(block)

    def free_bytes(self) -> tuple[int, int]:
        """:meth:`Policy.free_bytes`."""
        sizes = [block.size for kept in self._kept.values() for block in kept]
        return sum(sizes), max(sizes, default=0)

    def stuck_bytes(self) -> int:
        """:meth:`Policy.stuck_bytes`: none, each block can go back by itself."""
        return 0

    def _release(self) -> None:
        for kept in self._kept.values():
            for block in kept:
                self.counters.reserved -= block.size
                self.counters.device_frees += 1
            kept.clear()


def class_of(size: int) -> int:
    """The size of the class that serves ``size`` bytes."""
    if size <= GRAIN * STEPS:
        return max(-(-size // GRAIN) * GRAIN, GRAIN)
    step = (1 << ((size - 1).bit_length() - 1)) // STEPS
    return -(-size // step) * step
