"""The largest free block that torch's caching allocator holds, from its own list of segments.

Listing them holds the allocator's lock and the interpreter's for as long as it takes, by the number of blocks. It is
done on the sampler's thread, seldom, never for one batch, and not at all where there are very many blocks.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from latfix.profilers.device_counters import NATIVE, allocator_backend

Reading = dict[str, float]
#: How often the list is asked for where that takes no time to speak of.
PERIOD_S = 5.0
#: A listing is followed by a rest of so many times its length, as a reading of a large heap is.
_REST = 500
#: Blocks beyond which the list is not asked for.
MOST_BLOCKS = 20_000


class FreeBlocksReader:
    """Reads the largest free block and how many there are.

    :param segments: lists the segments of a device, each with its ``blocks``, of ``size`` and ``state``.
    :param blocks: how many blocks there are about, from counters.
    """

    def __init__(
        self,
        segments: Callable[[], Iterable[Mapping[str, Any]]],
        blocks: Callable[[], int],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._segments = segments
        self._blocks = blocks
        self._clock = clock
        self._rested_ns = 0

    def poll(self) -> Reading:
        """A reading for the sampler; nothing while it rests, and where there are too many blocks."""
        start = self._clock()
        if start < self._rested_ns or self._blocks() > MOST_BLOCKS:
            return {}
        free = [
            int(block["size"])
            for segment in self._segments()
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        now = self._clock()
        self._rested_ns = now + _REST * (now - start)
        return {"cuda.largest_free_block_bytes": max(free, default=0), "cuda.free_blocks": len(free)}


def free_blocks_reader(device: str) -> Callable[[], Reading] | None:
    """A reader for the sampler; ``None`` where torch's own allocator is not in use: no other one lists its blocks."""
    if allocator_backend(device) != NATIVE:
        return None
    import torch

    index = int(device.partition(":")[2] or 0)
    listing: Callable[..., list[Mapping[str, Any]]] = torch.cuda.memory_snapshot
    # Older versions always copy the history of allocations with it, which is empty unless somebody records one.
    plain = {"include_traces": False} if "include_traces" in inspect.signature(listing).parameters else {}

    def segments() -> list[Mapping[str, Any]]:
        return [segment for segment in listing(**plain) if segment["device"] == index]

    def blocks() -> int:
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        return sum(int(stats[name]["all"]["current"]) for name in ("active", "inactive_split") if name in stats)

    return FreeBlocksReader(segments, blocks).poll
