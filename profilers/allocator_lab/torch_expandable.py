"""``expandable_segments:True``: a pool is one range of addresses, behind which memory is mapped page by page."""

from __future__ import annotations

from latfix.profilers.allocator_lab.free_blocks import Block, FreeBlocks, merged
from latfix.profilers.allocator_lab.torch_caching import LARGE_SEGMENT, SMALL_SEGMENT, CachingAllocator, Settings

#: Between the starts of two ranges; a multiple of every page, above any device's memory.
_RANGE = 20 << 40


class ExpandableAllocator(CachingAllocator):
    """The caching allocator with expandable segments."""

    def __init__(self, capacity: int, settings: Settings, *, name: str) -> None:
        super().__init__(capacity, settings, name=name)
        #: The lowest block of each range of addresses of a pool, by where it starts.
        self._ranges: dict[int, dict[int, Block]] = {}

    def stuck_bytes(self) -> int:
        """Free bytes on pages that something else lies on, too."""
        return sum(
            block.size - sum(size for _, size in self._whole_pages(block))
            for pool in self._pools.values()
            for block in pool
        )

    def _best(self, pool: FreeBlocks, need: int) -> Block | None:
        found: Block | None = None
        for block in pool.at_least(need):
            # One that can grow counts as large as it can become, so that it is kept for what needs it.
            if found is not None and _reach(block) >= _reach(found):
                break
            found = block
        return found

    def _segment(self, pool: FreeBlocks, need: int, size: int) -> Block | None:
        """Map memory at the lowest address where ``need`` bytes have room, beside what is free there already."""
        del size
        block = self._place(pool, need)
        while not block.mapped or block.size < need:
            if block.mapped:
                beside = block.after
                assert beside is not None and not beside.mapped, "there is room, as was seen"
                grown = self._map(pool, beside, min(need - block.size, beside.size))
            else:
                grown = self._map(pool, block, min(need, block.size))
            if grown is None:
                return None
            block = grown
        pool.remove(block)
        return block

    def _place(self, pool: FreeBlocks, need: int) -> Block:
        """The lowest free or unmapped block from which on ``need`` bytes are free or unmapped."""
        ranges = self._ranges.setdefault(id(pool), {})
        for first in ranges.values():
            block: Block | None = first
            while block is not None:
                if not block.live and _room(block) >= need and _has_unmapped(block, need):
                    return block
                block = block.after
        # Addresses cost nothing: each range could hold the whole device.
        page = self._page(pool)
        new = Block(len(ranges) * _RANGE, -(-self.capacity * 9 // 8 // page) * page, pool)
        new.mapped = False
        ranges[new.start] = new
        return new

    def _map(self, pool: FreeBlocks, block: Block, size: int) -> Block | None:
        """Put memory behind the first ``size`` bytes of an unmapped block; returns the free block that has them."""
        page = self._page(pool)
        size = -(-size // page) * page
        if self.counters.reserved + size > self.capacity:
            return None
        self.counters.take(size)
        if size < block.size:
            block.cut(size)
        block.mapped = True
        joined = merged(block)
        self._note_lowest(joined)
        self._put(joined)
        return joined

    def _keep(self, block: Block) -> None:
        super()._keep(block)
        self._note_lowest(block)

    def _release_cached(self) -> None:
        for pool in self._pools.values():
            for block in pool:
                for start, size in self._whole_pages(block):
                    self._unmap(pool, block, start, size)

    def _unmap(self, pool: FreeBlocks, block: Block, start: int, size: int) -> None:
        pool.remove(block)
        if start > block.start:
            whole = block.cut(start - block.start)
            self._put(block)
            block = whole
        if size < block.size:
            self._put(block.cut(size))
        block.mapped = False
        self.counters.give(size)
        self._note_lowest(merged(block))

    def _note_lowest(self, block: Block) -> None:
        if block.before is None:  # it may have taken in the one that was
            self._ranges[id(block.home)][block.start] = block

    def _whole_pages(self, block: Block) -> list[tuple[int, int]]:
        """Start and size of the pages that lie within a free block as a whole; at most one stretch."""
        page = self._page(block.home)
        start, end = -(-block.start // page) * page, (block.start + block.size) // page * page
        return [(start, end - start)] if end > start else []

    def _page(self, pool: FreeBlocks) -> int:
        small = next(is_small for (_, is_small), other in self._pools.items() if other is pool)
        return SMALL_SEGMENT if small else LARGE_SEGMENT


def _reach(block: Block) -> int:
    beside = block.after
    return block.size + (beside.size if beside is not None and not beside.mapped else 0)


def _room(block: Block) -> int:
    """Bytes from a block on up to the next one in use."""
    total, at = 0, block
    while not at.live:
        total += at.size
        if at.after is None:
            break
        at = at.after
    return total


def _has_unmapped(block: Block, need: int) -> bool:
    """Whether memory would be mapped for ``need`` bytes from a block on: one that has them all was not found."""
    at: Block | None = block
    total = 0
    while at is not None and not at.live and total < need:
        if not at.mapped:
            return True
        total += at.size
        at = at.after
    return False
