"""The result of ``latfix fragmentation``: how allocator policies would have served a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from latfix.files.json_documents import Document


@dataclass(slots=True, kw_only=True)
class PolicyResult(Document):
    """The result of one policy on a trace.

    :param policy: as a report shows it.
    :param setting: how to select it: ``PYTORCH_ALLOC_CONF``; empty if it is not one of torch's.
    :param allocations: number requested.
    :param failed: number that it could not serve; later ones are served as if the program went on.
    :param failed_fragmented: of these, those for which enough bytes were free in total.
    :param retries: how often all cached memory was freed first, while the program waited for the device.
    :param device_allocs: segments taken or mapped; ``device_frees`` given back.
    :param peak_reserved: peak bytes held from the device.
    :param peak_stuck: peak free bytes that it could not give back.
    :param internal: bytes granted beyond those requested, as a share of those granted, mean over allocations.
    :param external: one less the largest free block's share of its free bytes, mean over allocations; 0 if none are
        free.
    :param worst: position in the trace, size, free bytes in total, bytes not taken from the device, and the larger
        of these and the largest free block, at the first allocation that failed although enough was free; ``None``
        for none.
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
    :param peak_bytes: peak allocated bytes; ``largest_bytes`` the largest allocation.
    :param capacity_bytes: memory available to the process.
    :param recorded: what the real allocator did, if recorded.
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
