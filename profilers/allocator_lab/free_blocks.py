"""Blocks of memory in address order, and free blocks by size, for the models of allocators."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Block:
    """A stretch of addresses.

    :ivar start: its first address; ``size`` in bytes.
    :ivar before: the neighbor below in the same segment; ``after`` above.
    :ivar live: True if it is in use.
    :ivar mapped: True if memory is mapped to its addresses.
    :ivar requested: requested bytes, if it is live.
    :ivar home: the free blocks that it belongs to.
    :ivar since: when it became free, counted in searches of its pool.
    """

    __slots__ = ("after", "before", "home", "live", "mapped", "requested", "since", "size", "start")

    def __init__(self, start: int, size: int, home: FreeBlocks) -> None:
        self.start, self.size, self.home = start, size, home
        self.before: Block | None = None
        self.after: Block | None = None
        self.live = False
        self.mapped = True
        self.requested = 0
        self.since = 0

    @property
    def is_split(self) -> bool:
        """True if it is only a part of its segment."""
        return self.before is not None or self.after is not None

    def cut(self, size: int) -> Block:
        """Split after ``size`` bytes. Returns the upper part."""
        rest = Block(self.start + size, self.size - size, self.home)
        rest.mapped = self.mapped
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self, neighbor: Block) -> None:
        """Merge a neighbor into this block."""
        if neighbor is self.before:
            self.start, self.before = neighbor.start, neighbor.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = neighbor.after
            if self.after is not None:
                self.after.before = self
        self.size += neighbor.size


class FreeBlocks:
    """Free blocks, sorted by size, then address."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}
        self.total = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Block]:
        """From the smallest to the largest; a copy, so that changes meanwhile do not matter."""
        return iter([self._blocks[start] for _, start in self._keys])

    @property
    def largest(self) -> int:
        """Size of the largest one; 0 for none."""
        return self._keys[-1][0] if self._keys else 0

    def add(self, block: Block) -> None:
        insort(self._keys, (block.size, block.start))
        self._blocks[block.start] = block
        self.total += block.size

    def remove(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.size, block.start))]
        del self._blocks[block.start]
        self.total -= block.size

    def at_least(self, size: int) -> Iterator[Block]:
        """Blocks of ``size`` or more, the smallest first."""
        for position in range(bisect_left(self._keys, (size, -1)), len(self._keys)):
            yield self._blocks[self._keys[position][1]]


def merged(block: Block) -> Block:
    """Join a free block that is not in its list with its free neighbors, which are removed from the list."""
    for neighbor in (block.before, block.after):
        if neighbor is not None and not neighbor.live and neighbor.mapped == block.mapped:
            if neighbor.mapped:
                block.home.remove(neighbor)
            block.absorb(neighbor)
    return block
