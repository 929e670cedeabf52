"""The largest free block that torch's caching allocator holds, from its own list of segments.

Listing them holds the allocator's lock and the interpreter's for as long as it takes, by the number of blocks of all
devices. It is done on the sampler's thread, seldom, while nobody is at a batch (why:
:mod:`latfix.profilers.gpu.allocator_counters`), and not at all where there are many blocks.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from latfix.profilers.gpu.allocator_counters import NATIVE, Inside, allocator_backend
from latfix.profilers.gpu.device_ids import device_index

Reading = dict[str, float]
#: How often a moment for it is looked for.
PERIOD_S = 0.5
#: A listing is followed by a rest of so long at least, and …
REST_S = 5.0
#: … of so many times its length, as a reading of a large heap is.
_REST = 500
#: Blocks of all devices beyond which the list is not asked for: each takes microseconds.
MOST_BLOCKS = 2_000


class FreeBlocksReader:
    """Reads the largest free block and how many there are.

    :param segments: lists the segments of a device, each with its ``blocks``, of ``size`` and ``state``.
    :param blocks: how many blocks there are about, on all devices, from counters.
    :param inside: who is at a batch on any of them.
    """

    def __init__(
        self,
        segments: Callable[[], Iterable[Mapping[str, Any]]],
        blocks: Callable[[], int],
        clock: Callable[[], int] = time.perf_counter_ns,
        inside: Inside | None = None,
    ) -> None:
        self._segments = segments
        self._blocks = blocks
        self._clock = clock
        self._inside = inside or Inside()
        self._rested_ns = 0

    def poll(self) -> Reading:
        """A reading for the sampler; nothing while it rests, during batches, and where there are too many blocks."""
        start = self._clock()
        segments = None if start < self._rested_ns else self._inside.idle(self._listed)
        if segments is None:
            return {}
        now = self._clock()
        self._rested_ns = now + max(_REST * (now - start), int(REST_S * 1e9))
        free = [
            int(block["size"]) for segment in segments for block in segment["blocks"] if block["state"] == "inactive"
        ]
        return {"cuda.largest_free_block_bytes": max(free, default=0), "cuda.free_blocks": len(free)}

    def _listed(self) -> Iterable[Mapping[str, Any]] | None:
        return None if self._blocks() > MOST_BLOCKS else self._segments()


def free_blocks_reader(device: str, inside: Inside | None = None) -> Callable[[], Reading] | None:
    """A reader for the sampler; ``None`` where torch's own allocator is not in use: no other one lists its blocks."""
    if allocator_backend(device) != NATIVE:
        return None
    import torch

    index = device_index(device)
    listing: Callable[..., list[Mapping[str, Any]]] = torch.cuda.memory_snapshot
    # Older versions always copy the history of allocations with it, which is empty unless somebody records one.
    plain = {"include_traces": False} if "include_traces" in inspect.signature(listing).parameters else {}

    def segments() -> list[Mapping[str, Any]]:
        return [segment for segment in listing(**plain) if segment["device"] == index]

    def blocks() -> int:
        told = [torch.cuda.memory_stats_as_nested_dict(number) for number in range(torch.cuda.device_count())]
        return sum(int(stats[name]["all"]["current"]) for stats in told for name in _BLOCKS if name in stats)

    return FreeBlocksReader(segments, blocks, inside=inside).poll


#: Counters of blocks: in use, free in a segment that something else lies in, and at most one free whole a segment.
_BLOCKS = ("active", "inactive_split", "segment")
