"""The largest free block of torch's caching allocator, from its own list of segments.

Listing them holds the allocator's lock and the interpreter's for a time that grows with the blocks of all devices. So
it is done seldom, on the sampler's thread, while no worker runs a batch
(:mod:`latfix.profilers.gpu.allocator_counters`), and not at all with many blocks.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from latfix.profilers.gpu.allocator_counters import NATIVE, RunningBatches, allocator_backend
from latfix.profilers.gpu.device_ids import device_index

Reading = dict[str, float]
#: Interval of attempts.
PERIOD_S = 0.5
#: The pause after a listing: at least so many seconds, and so many times its duration.
REST_S = 5.0
_REST = 500
#: Most blocks on all devices for a listing: each takes microseconds.
MOST_BLOCKS = 2_000


class FreeBlocksReader:
    """Reads the size of the largest free block and the number of free blocks.

    :param segments: lists the segments of a device, each with its ``blocks``, of ``size`` and ``state``.
    :param blocks: returns the approximate number of blocks on all devices, from counters.
    :param inside: counts running batches on all devices.
    """

    def __init__(
        self,
        segments: Callable[[], Iterable[Mapping[str, Any]]],
        blocks: Callable[[], int],
        clock: Callable[[], int] = time.perf_counter_ns,
        inside: RunningBatches | None = None,
    ) -> None:
        self._segments = segments
        self._blocks = blocks
        self._clock = clock
        self._inside = inside or RunningBatches()
        self._rested_ns = 0

    def poll(self) -> Reading:
        """A reading for the sampler; empty during a pause or a batch, and with too many blocks."""
        start = self._clock()
        segments = None if start < self._rested_ns else self._inside.idle(self._segments_if_few)
        if segments is None:
            return {}
        now = self._clock()
        self._rested_ns = now + max(_REST * (now - start), int(REST_S * 1e9))
        free = [
            int(block["size"]) for segment in segments for block in segment["blocks"] if block["state"] == "inactive"
        ]
        return {"cuda.largest_free_block_bytes": max(free, default=0), "cuda.free_blocks": len(free)}

    def _segments_if_few(self) -> Iterable[Mapping[str, Any]] | None:
        return None if self._blocks() > MOST_BLOCKS else self._segments()


def free_blocks_reader(device: str, inside: RunningBatches | None = None) -> Callable[[], Reading] | None:
    """A reader for the sampler; ``None`` unless torch's own allocator is in use: no other lists its blocks."""
    if allocator_backend(device) != NATIVE:
        return None
    import torch

    index = device_index(device)
    listing: Callable[..., list[Mapping[str, Any]]] = torch.cuda.memory_snapshot
    # Older versions always include the history of allocations, which is empty unless it is being recorded.
    plain = {"include_traces": False} if "include_traces" in inspect.signature(listing).parameters else {}

    def segments() -> list[Mapping[str, Any]]:
        return [segment for segment in listing(**plain) if segment["device"] == index]

    def blocks() -> int:
        devices = [torch.cuda.memory_stats_as_nested_dict(number) for number in range(torch.cuda.device_count())]
        return sum(int(stats[name]["all"]["current"]) for stats in devices for name in _BLOCKS if name in stats)

    return FreeBlocksReader(segments, blocks, inside=inside).poll


#: Counters of blocks: in use, free in a partly used segment, and at most one entirely free block per segment.
_BLOCKS = ("active", "inactive_split", "segment")
