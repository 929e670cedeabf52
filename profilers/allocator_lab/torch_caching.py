"""A model of PyTorch's caching allocator on CUDA, with the settings of ``PYTORCH_ALLOC_CONF`` that change its layout.

It follows ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.8); torch 2.11 on an H200 made the same calls. Sizes are
rounded; small and large requests have separate pools, per stream; the smallest cached block that fits is split; a
freed block joins its free neighbors. If no block fits, a segment is requested from the device; if that fails,
entirely free cached segments are given back first. With ``expandable_segments`` a pool is one range of addresses to
which memory is mapped page by page. The model frees blocks at once even if other streams still use them, and has no
private pools of graphs. Of blocks of the same size, torch takes the one at the lowest address: the model's segments
have ascending addresses, the driver's need not, which matters where sizes are rounded to few values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from latfix.errors import InputError
from latfix.profilers.allocator_lab.free_blocks import Block, FreeBlocks, merged
from latfix.profilers.allocator_lab.policy import OutOfMemory, Policy
from latfix.profilers.gpu.alloc_conf import conf_text, pairs, read_conf

_MIB = 1 << 20
#: All sizes are multiples of it.
GRAIN = 512
#: The largest request of the small pool.
SMALL = 1 * _MIB
#: Segments of the small pool; pages where segments are expandable.
SMALL_SEGMENT = 2 * _MIB
#: A segment of the large pool for requests below :data:`_OWN_SEGMENT`; pages where segments are expandable.
LARGE_SEGMENT = 20 * _MIB
_OWN_SEGMENT = 10 * _MIB
_ROUND_SEGMENT = 2 * _MIB
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of ``PYTORCH_ALLOC_CONF``.

    :param max_split_size: blocks of this size or more are not split.
    :param expandable: ``expandable_segments``.
    :param collect_above: ``garbage_collection_threshold``: share of the capacity above which cached segments are
        given back before more are taken. It acts only if the process has a memory fraction.
    :param divisions: ``roundup_power2_divisions``: number of steps between powers of two to which sizes are rounded;
        1 for steps of 512 bytes.
    """

    max_split_size: int = _UNLIMITED
    expandable: bool = False
    collect_above: float = 0.0
    divisions: int = 1


_COLLECT, _FRACTION = "garbage_collection_threshold", "per_process_memory_fraction"
#: Valid values of settings, in words and as a test.
_KNOWN: dict[str, tuple[str, Callable[[str], bool]]] = {
    "max_split_size_mb": ("a whole number from 20 on", lambda text: int(text) >= 20),
    "expandable_segments": ("True or False", lambda text: text in ("True", "False")),
    _COLLECT: ("a number between 0 and 1", lambda text: 0 < float(text) < 1),
    "roundup_power2_divisions": ("a power of two up to 64", lambda text: int(text) in (1, 2, 4, 8, 16, 32, 64)),
}


def parse_settings(text: str) -> Settings:
    """Settings from ``name:value,name:value`` as in ``PYTORCH_ALLOC_CONF``; the empty text is torch's defaults.

    :raises InputError: a name that is not modelled, or a value that torch would reject.
    """
    values = dict(pairs(text))
    for name, value in values.items():
        if name not in _KNOWN:
            raise InputError(f"--policy: found {name!r}; expected one of {', '.join(_KNOWN)}")
        if not _holds(name, value):
            raise InputError(f"--policy: found {name}:{value}; expected {_KNOWN[name][0]}")
    return Settings(
        max_split_size=int(values["max_split_size_mb"]) * _MIB if "max_split_size_mb" in values else _UNLIMITED,
        expandable=values.get("expandable_segments") == "True",
        collect_above=float(values.get(_COLLECT, 0.0)),
        divisions=int(values.get("roundup_power2_divisions", 1)),
    )


def known_settings(text: str, *, limited: bool | None = None) -> str:
    """The modelled settings of a text for torch, as a text.

    :param limited: True if the process may use only a fraction of the device, without which torch collects no
        garbage. By default taken from the text.
    """
    values = read_conf(text)
    if limited is None:
        limited = _number(values.get(_FRACTION, "1")) < 1
    kept = {name: value for name, value in values.items() if name in _KNOWN and _holds(name, value)}
    if not limited:
        kept.pop(_COLLECT, None)
    return conf_text(kept)


def _holds(name: str, value: str) -> bool:
    try:
        return _KNOWN[name][1](value)
    except ValueError:
        return False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def rounded(size: int, divisions: int = 1) -> int:
    """A size rounded as by the allocator.

    :param divisions: steps between powers of two; 1 for steps of 512 bytes.
    """
    if size < GRAIN:
        return GRAIN
    if divisions > 1 and size > GRAIN * divisions:
        if size & (size - 1) == 0:
            return size
        step = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // step) * step
    return -(-size // GRAIN) * GRAIN


class CachingAllocator(Policy):
    def __init__(self, capacity: int, settings: Settings | None = None, *, name: str = "torch's defaults") -> None:
        super().__init__(capacity, name)
        self._settings = settings or Settings()
        self._pools: dict[tuple[int, bool], FreeBlocks] = {}
        self._searches: dict[int, int] = {}
        self._next_start = 0

    def _find(self, size: int, stream: int) -> Block:
        need = rounded(size, self._settings.divisions)
        small = need <= SMALL
        pool = self._pools.setdefault((stream, small), FreeBlocks())
        block = self._cached(pool, need) or self._new(pool, need, small)
        if self._may_split(block, need, small):
            self._put(block.cut(need))
        return block

    def _keep(self, block: Block) -> None:
        self._put(merged(block))

    def free_bytes(self) -> tuple[int, int]:
        pools = self._pools.values()
        return sum(pool.total for pool in pools), max((pool.largest for pool in pools), default=0)

    def stuck_bytes(self) -> int:
        """Torch's ``inactive_split_bytes``."""
        return sum(block.size for pool in self._pools.values() for block in pool if block.is_split)

    def _put(self, block: Block) -> None:
        block.since = self._searches.get(id(block.home), 0)
        block.home.add(block)

    def _cached(self, pool: FreeBlocks, need: int) -> Block | None:
        """A free block for ``need`` bytes, removed from its list; ``None`` if none may be used."""
        limit = self._settings.max_split_size
        self._searches[id(pool)] = self._searches.get(id(pool), 0) + 1
        block = self._best(pool, need)
        if block is None:
            return None
        # A block that must not be split serves no small request, and a large one only if little is unused.
        if (need < limit <= block.size) or (need >= limit and block.size >= need + LARGE_SEGMENT):
            return None
        pool.remove(block)
        return block

    def _best(self, pool: FreeBlocks, need: int) -> Block | None:
        return next(pool.at_least(need), None)

    def _may_split(self, block: Block, need: int, small: bool) -> bool:
        rest = block.size - need
        if small or self._settings.expandable:
            return rest >= GRAIN
        return need < self._settings.max_split_size and rest > SMALL

    def _new(self, pool: FreeBlocks, need: int, small: bool) -> Block:
        size = _segment_size(need, small)
        self._collect()
        block = self._segment(pool, need, size)
        if block is None and self._release_oversize(pool, need):
            block = self._segment(pool, need, size)
        if block is None:
            self._release_cached()
            self.counters.retries += 1
            block = self._segment(pool, need, size)
        if block is None:
            raise OutOfMemory
        return block

    def _segment(self, pool: FreeBlocks, need: int, size: int) -> Block | None:
        """A segment of ``size`` from the device, for ``need`` bytes; ``None`` if the device has no more."""
        del need
        if self.counters.reserved + size > self.capacity:
            return None
        self.counters.take(size)
        start, self._next_start = self._next_start, self._next_start + size + GRAIN  # segments never touch
        return Block(start, size, pool)

    def _release(self, block: Block) -> None:
        block.home.remove(block)
        self.counters.give(block.size)

    def _release_cached(self) -> None:
        for pool in self._pools.values():
            for block in pool:
                if not block.is_split:
                    self._release(block)

    def _release_oversize(self, pool: FreeBlocks, need: int) -> bool:
        """Give back blocks that are too large to be split, enough for ``need``, the largest first."""
        limit = self._settings.max_split_size
        if limit == _UNLIMITED:
            return False
        wanted = max(need, limit)
        fitting = next(pool.at_least(wanted), None)
        if fitting is not None:
            self._release(fitting)
            return True
        released = 0
        for block in reversed(list(pool)):
            if released >= wanted or block.size < limit:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect(self) -> None:
        """``garbage_collection_threshold``: give back the large segments that have been unused for longest."""
        threshold = int(self._settings.collect_above * self.capacity)
        if not threshold or self.counters.reserved <= threshold:
            return
        wanted, reclaimed = self.counters.reserved - threshold, 0
        left = [
            (self._searches.get(id(block.home), 0) - block.since, block)
            for (_, small), pool in self._pools.items()
            for block in pool
            if not small and not block.is_split
        ]
        while left and reclaimed < wanted:
            middle = sum(age for age, _ in left) / len(left)
            old = [block for age, block in left if age >= middle]
            left = [(age, block) for age, block in left if age < middle]
            for block in old:
                reclaimed += block.size
                self._release(block)


def _segment_size(need: int, small: bool) -> int:
    if small:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if need < _OWN_SEGMENT else -(-need // _ROUND_SEGMENT) * _ROUND_SEGMENT
