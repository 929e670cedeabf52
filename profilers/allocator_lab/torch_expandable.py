"""``expandable_segments:True``: a pool is one range of addresses, to which memory is mapped page by page."""

from __future__ import annotations

from latfix.profilers.allocator_lab.free_blocks import Block, FreeBlocks, merged
from latfix.profilers.allocator_lab.torch_caching import LARGE_SEGMENT, SMALL_SEGMENT, CachingAllocator, Settings

#: Distance between the starts of two ranges: a multiple of all page sizes, above any device's memory.
_RANGE = 20 << 40


class ExpandableAllocator(CachingAllocator):
    """The caching allocator with expandable segments."""

    def __init__(self, capacity: int, settings: Settings, *, name: str) -> None:
        super().__init__(capacity, settings, name=name)
        #: By pool, the lowest block of each range of addresses, by its start.
        self._ranges: dict[int, dict[int, Block]] = {}

    def stuck_bytes(self) -> int:
        """Free bytes on pages that are partly in use."""
        return sum(
            block.size - sum(size for _, size in self._whole_pages(block))
            for pool in self._pools.values()
            for block in pool
        )

    def _best(self, pool: FreeBlocks, need: int) -> Block | None:
        result: Block | None = None
        for block in pool.at_least(need):
            # A block that can grow counts with its potential size, so that it is saved for larger requests.
            if result is not None and _reach(block) >= _reach(result):
                break
            result = block
        return result

    def _segment(self, pool: FreeBlocks, need: int, size: int) -> Block | None:
        """Map memory at the lowest address with room for ``need`` bytes, next to memory that is already free."""
        del size
        block = self._place(pool, need)
        while not block.mapped or block.size < need:
            if block.mapped:
                unmapped = block.after
                assert unmapped is not None and not unmapped.mapped, "_place found room"
                grown = self._map(pool, unmapped, min(need - block.size, unmapped.size))
            else:
                grown = self._map(pool, block, min(need, block.size))
            if grown is None:
                return None
            block = grown
        pool.remove(block)
        return block

    def _place(self, pool: FreeBlocks, need: int) -> Block:
        """The lowest block that begins ``need`` contiguous free or unmapped bytes."""
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
        """Map memory to the first ``size`` bytes of an unmapped block. Returns the free block that contains them."""
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
        if block.before is None:  # it may have absorbed the previous lowest block
            self._ranges[id(block.home)][block.start] = block

    def _whole_pages(self, block: Block) -> list[tuple[int, int]]:
        """Start and size of the whole pages within a free block; at most one stretch."""
        page = self._page(block.home)
        start, end = -(-block.start // page) * page, (block.start + block.size) // page * page
        return [(start, end - start)] if end > start else []

    def _page(self, pool: FreeBlocks) -> int:
        small = next(is_small for (_, is_small), other in self._pools.items() if other is pool)
        return SMALL_SEGMENT if small else LARGE_SEGMENT


def _reach(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _room(block: Block) -> int:
    """Bytes from a block up to the next one in use."""
    total, at = 0, block
    while not at.live:
        total += at.size
        if at.after is None:
            break
        at = at.after
    return total


def _has_unmapped(block: Block, need: int) -> bool:
    """True if ``need`` bytes from a block on include unmapped ones."""
    at: Block | None = block
    total = 0
    while at is not None and not at.live and total < need:
        if not at.mapped:
            return True
        total += at.size
        at = at.after
    return False
