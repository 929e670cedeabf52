"""Blocks of memory in address order, free ones by size: what every model of an allocator here is made of."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Block:
    """A stretch of addresses.

    :ivar start: its first address; ``size`` in bytes.
    :ivar before: the neighbor below in the same segment; ``after`` above.
    :ivar live: it is handed out.
    :ivar mapped: memory lies behind its addresses.
    :ivar asked: bytes that were asked for, where it is live.
    :ivar home: the free blocks that it belongs to.
    :ivar since: when it became free, in searches of its pool.
    """

    __slots__ = ("after", "asked", "before", "home", "live", "mapped", "since", "size", "start")

    def __init__(self, start: int, size: int, home: FreeBlocks) -> None:
        self.start, self.size, self.home = start, size, home
        self.before: Block | None = None
        self.after: Block | None = None
        self.live = False
        self.mapped = True
        self.asked = 0
        self.since = 0

    @property
    def is_split(self) -> bool:
        """Whether it is only a part of its segment."""
        return self.before is not None or self.after is not None

    def cut(self, size: int) -> Block:
        """Split after ``size`` bytes; returns the rest, which lies above."""
        rest = Block(self.start + size, self.size - size, self.home)
        rest.mapped = self.mapped
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self, neighbor: Block) -> None:
        """Take a neighbor in."""
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
    """Free blocks, found by size: the smallest that is large enough, and of those the one at the lowest address."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}
        self.total = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Block]:
        """From the smallest to the largest, as they are now."""
        return iter([self._blocks[start] for _, start in self._keys])

    @property
    def largest(self) -> int:
        """Size of the largest one; 0 for none."""
        return self._keys[-1][0] if self._keys else 0

    def add(self, block: Block) -> None:
        """Put a block in."""
        insort(self._keys, (block.size, block.start))
        self._blocks[block.start] = block
        self.total += block.size

    def remove(self, block: Block) -> None:
        """Take a block out."""
        del self._keys[bisect_left(self._keys, (block.size, block.start))]
        del self._blocks[block.start]
        self.total -= block.size

    def at_least(self, size: int) -> Iterator[Block]:
        """Blocks of ``size`` or more, the smallest first."""
        for position in range(bisect_left(self._keys, (size, -1)), len(self._keys)):
            yield self._blocks[self._keys[position][1]]


def merged(block: Block) -> Block:
    """Join a free block, which is not in its list, with free neighbors, which are taken out of it."""
    for neighbor in (block.before, block.after):
        if neighbor is not None and not neighbor.live and neighbor.mapped == block.mapped:
            if neighbor.mapped:
                block.home.remove(neighbor)
            block.absorb(neighbor)
    return block
