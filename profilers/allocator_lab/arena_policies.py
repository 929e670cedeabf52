"""Allocators that a pool of one's own could have: best fit with splitting, a buddy system, size classes.

The first is what a pool reserved at the start is (``memory.pool`` on a GPU). The second is the textbook's (Knowlton,
1965): sizes are powers of two, and a block joins only the neighbor that it was split from. Both take all memory at
the start; size classes take each block on its own, and a freed one serves its own class alone.
"""

from __future__ import annotations

from latfix.profilers.allocator_lab.free_blocks import Block, FreeBlocks, merged
from latfix.profilers.allocator_lab.policy import Counters, OutOfMemory, hand_out, take_back
from latfix.profilers.allocator_lab.torch_caching import GRAIN, rounded


class BestFit:
    """One segment from the start on; the smallest free block that fits is split, a freed one joins its neighbors."""

    def __init__(self, capacity: int, *, name: str = "one reserved pool, best fit") -> None:
        self.name = name
        self.counters = Counters(device_allocs=1, reserved=capacity // GRAIN * GRAIN)
        self._free = FreeBlocks()
        self._free.add(Block(0, self.counters.reserved, self._free))

    def allocate(self, size: int, stream: int = 0) -> Block:
        """:meth:`Policy.allocate`; one pool serves all streams."""
        del stream
        need = rounded(size)
        block = next(self._free.at_least(need), None)
        if block is None:
            raise OutOfMemory
        self._free.remove(block)
        if block.size > need:
            self._free.add(block.cut(need))
        return hand_out(block, size, self.counters)

    def free(self, block: Block) -> None:
        """:meth:`Policy.free`."""
        take_back(block, self.counters)
        self._free.add(merged(block))

    def free_bytes(self) -> tuple[int, int]:
        """:meth:`Policy.free_bytes`."""
        return self._free.total, self._free.largest

    def stuck_bytes(self) -> int:
        """:meth:`Policy.stuck_bytes`: whatever is free, unless nothing is in use."""
        return self._free.total if self.counters.granted else 0


class Buddy:
    """A buddy system; a capacity that is no power of two is laid out as several that are, the largest first."""

    def __init__(self, capacity: int, *, name: str = "buddy") -> None:
        self.name = name
        usable = capacity // GRAIN * GRAIN
        self.counters = Counters(device_allocs=1, reserved=usable)
        self._free: dict[int, dict[int, Block]] = {}
        self._roots: dict[int, int] = {}
        start, home = 0, FreeBlocks()
        self._home = home
        while usable:
            size = 1 << (usable.bit_length() - 1)
            self._put(Block(start, size, home))
            self._roots[start] = size
            start, usable = start + size, usable - size

    def allocate(self, size: int, stream: int = 0) -> Block:
        """:meth:`Policy.allocate`; one pool serves all streams."""
        del stream
        need = max(1 << (size - 1).bit_length(), GRAIN)
        fitting = min((order for order, blocks in self._free.items() if order >= need and blocks), default=0)
        if not fitting:
            raise OutOfMemory
        blocks = self._free[fitting]
        block = blocks.pop(min(blocks))
        while block.size > need:
            block.size //= 2
            self._put(Block(block.start + block.size, block.size, self._home))
        return hand_out(block, size, self.counters)

    def free(self, block: Block) -> None:
        """:meth:`Policy.free`."""
        take_back(block, self.counters)
        root = next(start for start, size in self._roots.items() if start <= block.start < start + size)
        while block.size < self._roots[root]:
            buddy = root + ((block.start - root) ^ block.size)
            if self._free.get(block.size, {}).pop(buddy, None) is None:
                break
            block.start, block.size = min(block.start, buddy), 2 * block.size
        self._put(block)

    def free_bytes(self) -> tuple[int, int]:
        """:meth:`Policy.free_bytes`."""
        total = sum(size * len(blocks) for size, blocks in self._free.items())
        return total, max((size for size, blocks in self._free.items() if blocks), default=0)

    def stuck_bytes(self) -> int:
        """:meth:`Policy.stuck_bytes`: whatever is free, unless nothing is in use."""
        return self.free_bytes()[0] if self.counters.granted else 0

    def _put(self, block: Block) -> None:
        self._free.setdefault(block.size, {})[block.start] = block


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
        self.counters.take(need)
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
                self.counters.give(block.size)
            kept.clear()


def class_of(size: int) -> int:
    """The size of the class that serves ``size`` bytes."""
    if size <= GRAIN * STEPS:
        return max(-(-size // GRAIN) * GRAIN, GRAIN)
    step = (1 << ((size - 1).bit_length() - 1)) // STEPS
    return -(-size // step) * step
