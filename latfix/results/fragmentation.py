"""What ``latfix fragmentation`` found: how policies of allocators would have served a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from latfix.files.json_documents import Document


@dataclass(slots=True, kw_only=True)
class PolicyResult(Document):
    """What one policy made of a trace.

    :param policy: as a report shows it.
    :param setting: what to set it by: ``PYTORCH_ALLOC_CONF``; empty where it is none of torch's.
    :param allocations: that were asked for.
    :param failed: that it could not serve; what was asked for later is served as if the program went on.
    :param failed_fragmented: of these, those for which enough bytes were free in total.
    :param retries: how often all cached memory was given back first, while the program waited for the device.
    :param device_allocs: segments taken or mapped; ``device_frees`` given back.
    :param peak_reserved: the most bytes that it had from the device.
    :param peak_stuck: the most free bytes that it could not give back.
    :param internal: bytes granted and not asked for, as a share of those granted, in the mean over allocations.
    :param external: one less the largest free block's share of the free bytes that it has, in the mean over
        allocations; 0 where none are free.
    :param worst: position in the trace, size, free bytes in total and the largest free block at the first allocation
        that failed although enough was free; ``None`` for none.
    """

    policy: str
    setting: str
    allocations: int = 0
    failed: int = 0
    failed_fragmented: int = 0
    retries: int = 0
    device_allocs: int = 0
    device_frees: int = 0
    peak_reserved: int = 0
    peak_stuck: int = 0
    internal: float = 0.0
    external: float = 0.0
    worst: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation(Document):
    """Policies compared on one trace: ``fragmentation.json``.

    :param source: where the trace is from.
    :param events: allocations and frees in it.
    :param peak_bytes: the most that was allocated at once; ``largest_bytes`` the largest allocation.
    :param capacity_bytes: memory that the process could have.
    :param recorded: what the real allocator did, where it was recorded.
    :param answer: which setting would have avoided stalls and failures, in a sentence.
    """

    SCHEMA: ClassVar[str] = "latfix.fragmentation/1"

    source: str
    events: int
    peak_bytes: int
    largest_bytes: int
    capacity_bytes: int
    recorded: Mapping[str, int] = field(default_factory=dict)
    policies: tuple[PolicyResult, ...]
    answer: str
