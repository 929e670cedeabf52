"""Allocators that take all memory at the start: best fit with splitting, and a buddy system.

The first is what a pool reserved at the start is (``memory.pool`` on a GPU); the second is the textbook's (Knowlton,
1965): sizes are powers of two, and a block joins only the neighbor that it was split from.
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
