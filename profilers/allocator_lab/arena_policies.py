"""Allocators for a custom pool: best fit with splitting, a buddy system, size classes.

Best fit models a pool reserved at the start (``memory.pool`` on a GPU). In the buddy system (Knowlton, 1965) sizes
are powers of two, and a block joins only the neighbor that it was split from. Both take all memory at the start; size
classes take each block separately, and a freed block serves only its own class.
"""

from __future__ import annotations

from latfix.profilers.allocator_lab.free_blocks import Block, FreeBlocks, merged
from latfix.profilers.allocator_lab.policy import Counters, OutOfMemory, Policy
from latfix.profilers.allocator_lab.torch_caching import GRAIN, rounded


class BestFit(Policy):
    """One segment from the start; splits the smallest free block that fits, and joins a freed one with neighbors."""

    def __init__(self, capacity: int) -> None:
        counters = Counters(device_allocs=1, reserved=capacity // GRAIN * GRAIN)
        super().__init__(capacity, "one reserved pool, best fit", counters)
        self._free = FreeBlocks()
        self._free.add(Block(0, self.counters.reserved, self._free))

    def _find(self, size: int, stream: int) -> Block:  # noqa: ARG002  (one pool serves all streams)
        need = rounded(size)
        block = next(self._free.at_least(need), None)
        if block is None:
            raise OutOfMemory
        self._free.remove(block)
        if block.size > need:
            self._free.add(block.cut(need))
        return block

    def _keep(self, block: Block) -> None:
        self._free.add(merged(block))

    def free_bytes(self) -> tuple[int, int]:
        return self._free.total, self._free.largest


class Buddy(Policy):
    """A buddy system; the capacity is divided into powers of two, the largest first."""

    def __init__(self, capacity: int) -> None:
        usable = capacity // GRAIN * GRAIN
        super().__init__(capacity, "buddy", Counters(device_allocs=1, reserved=usable))
        self._free: dict[int, dict[int, Block]] = {}
        self._roots: dict[int, int] = {}
        self._home = FreeBlocks()
        start = 0
        while usable:
            size = 1 << (usable.bit_length() - 1)
            self._put(Block(start, size, self._home))
            self._roots[start] = size
            start, usable = start + size, usable - size

    def _find(self, size: int, stream: int) -> Block:  # noqa: ARG002  (one pool serves all streams)
        need = max(1 << (size - 1).bit_length(), GRAIN)
        fitting = min((order for order, blocks in self._free.items() if order >= need and blocks), default=0)
        if not fitting:
            raise OutOfMemory
        blocks = self._free[fitting]
        block = blocks.pop(min(blocks))
        while block.size > need:
            block.size //= 2
            self._put(Block(block.start + block.size, block.size, self._home))
        return block

    def _keep(self, block: Block) -> None:
        root = next(start for start, size in self._roots.items() if start <= block.start < start + size)
        while block.size < self._roots[root]:
            buddy = root + ((block.start - root) ^ block.size)
            if self._free.get(block.size, {}).pop(buddy, None) is None:
                break
            block.start, block.size = min(block.start, buddy), 2 * block.size
        self._put(block)

    def free_bytes(self) -> tuple[int, int]:
        total = sum(size * len(blocks) for size, blocks in self._free.items())
        return total, max((size for size, blocks in self._free.items() if blocks), default=0)

    def _put(self, block: Block) -> None:
        self._free.setdefault(block.size, {})[block.start] = block


#: Classes between two powers of two: at most a fifth of a block is unused.
STEPS = 4


class SizeClasses(Policy):
    """Takes each block separately from the device, and keeps it when it is freed."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, "size classes")
        self._kept: dict[tuple[int, int], list[Block]] = {}
        self._home = FreeBlocks()
        self._next_start = 0

    def _find(self, size: int, stream: int) -> Block:
        need = class_of(size)
        kept = self._kept.setdefault((stream, need), [])
        if kept:
            return kept.pop()
        if self.counters.reserved + need > self.capacity:
            self._release()
            self.counters.retries += 1
        if self.counters.reserved + need > self.capacity:
            raise OutOfMemory
        self.counters.take(need)
        block = Block(self._next_start, need, self._home)
        block.since = stream
        self._next_start += need
        return block

    def _keep(self, block: Block) -> None:
        self._kept[block.since, block.size].append(block)

    def free_bytes(self) -> tuple[int, int]:
        sizes = [block.size for kept in self._kept.values() for block in kept]
        return sum(sizes), max(sizes, default=0)

    def stuck_bytes(self) -> int:
        """0: each block can be given back separately."""
        return 0

    def _release(self) -> None:
        for kept in self._kept.values():
            for block in kept:
                self.counters.give(block.size)
            kept.clear()


def class_of(size: int) -> int:
    """Size of the class for ``size`` bytes."""
    if size <= GRAIN * STEPS:
        return max(-(-size // GRAIN) * GRAIN, GRAIN)
    step = (1 << ((size - 1).bit_length() - 1)) // STEPS
    return -(-size // step) * step
