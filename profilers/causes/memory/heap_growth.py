"""Growth of the C library's heap during units of work, from their accounts of the process's memory."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.units import Evidence

UNITS: tuple[str, ...] = ("prepare", "collate", "compute", "finish")
#: In records without the machine's page size: that of x86-64.
_DEFAULT_PAGE = 4096
#: Smaller growth is the allocator's rounding.
_LEAST_BYTES = 256 * 1024
MIB = float(1 << 20)
#: Fixes for a growing heap or device memory.
FIXES = (
    "memory.allocator",
    "memory.pool",
    "memory.device_allocator",
    "memory.limit",
    "memory.page_prefault",
    "memory.huge_pages",
    "memory.jemalloc",
    "memory.tcmalloc",
)
#: In records without a calibrated price, nanoseconds per MiB returned to the kernel.
_DEFAULT_UNMAPPING_NS = 100_000.0
#: A fresh page faults once if it is written first, twice if it is read first.
_MOST_FAULTS = 2
#: Quantile of free memory that counts as always free: it belongs to an arena that serves no request.
_IDLE_QUANTILE = 0.02
#: A heap is in pieces with at least this many free chunks of at most this mean size.
_MANY_PIECES, _SMALL_PIECE = 256, 256 * 1024
#: Samples are sparse: they confirm a growth if they show at least this share of it.
_CONFIRMED = 0.5


def column(evidence: Evidence, name: str, what: str) -> Ints:
    """A column of a unit's account: ``<unit>_<what>``."""
    return np.asarray(evidence.account(name)[f"{name}_{what}"], dtype=np.int64)


def heap_growth(evidence: Evidence, name: str) -> Ints:
    """Bytes of fresh memory that the C library's heap handed out during each unit.

    Growth of its arenas and separately mapped blocks, or of both its used and its resident bytes, if pages had been
    returned to the kernel before. If the heap was not read, growth of the process's private writable mappings.
    """
    size = column(evidence, name, "arena_bytes") + column(evidence, name, "blocks_bytes")
    touched = np.minimum(column(evidence, name, "used_bytes"), column(evidence, name, "resident_bytes"))
    unread = column(evidence, name, "free_bytes") == 0
    grown = np.where(unread, column(evidence, name, "mapped_bytes"), np.maximum(size, touched))
    return np.asarray(np.where(grown >= _LEAST_BYTES, grown, 0), dtype=np.int64)


def heap_faults(evidence: Evidence, name: str) -> Floats:
    """Faults of each unit on pages by which the heap grew during the unit."""
    unit = evidence.units[name]
    return np.minimum(unit.minflt, _MOST_FAULTS * heap_growth(evidence, name) / _page_bytes(evidence))


def faults_despite_free(evidence: Evidence, name: str) -> Floats:
    """The part of :func:`heap_faults` on growth of arenas that had as much memory free, in pieces."""
    pages = grown_in_pieces(evidence, name) / _page_bytes(evidence)
    return np.minimum(heap_faults(evidence, name), _MOST_FAULTS * pages)


def grown_in_pieces(evidence: Evidence, name: str) -> Ints:
    """Bytes by which arenas grew while as many were free in them, not counting memory that is always free."""
    known = column(evidence, name, "free_bytes")
    read = known > 0
    grown = np.where(read, np.maximum(column(evidence, name, "arena_bytes"), 0), _sampled_growth(evidence, name))
    sampled = evidence.before("malloc.free_bytes", evidence.units[name].start)
    free = np.where(read, known, sampled) - np.where(_in_pieces(evidence, name), 0.0, _always_free(evidence))
    return np.asarray(np.where((heap_growth(evidence, name) > 0) & (free >= grown), grown, 0), dtype=np.int64)


def _in_pieces(evidence: Evidence, name: str) -> Bools:
    """True if the free memory, apart from the heap's top, was in small pieces, so it is not an idle arena's."""
    pieces = evidence.before("malloc.free_chunks", evidence.units[name].start)
    free = evidence.before("malloc.free_bytes", evidence.units[name].start)
    inside = free - evidence.before("malloc.trimmable_bytes", evidence.units[name].start)
    return np.asarray((pieces >= _MANY_PIECES) & (inside <= _SMALL_PIECE * pieces))


def _sampled_growth(evidence: Evidence, name: str) -> Ints:
    """Growth of a unit's mappings that the samples around it confirm as growth of arenas.

    For heaps with many free chunks, which take too long to read for each unit.
    """
    grown, unit = heap_growth(evidence, name), evidence.units[name]
    confirmed = evidence.grown_around("malloc.arena_bytes", unit.start, unit.end)
    return np.where(confirmed >= np.maximum(_CONFIRMED * grown, 1), grown, 0)


def _always_free(evidence: Evidence) -> float:
    _, values = evidence.series("malloc.free_bytes")
    return evidence.norms.of(
        "always_free", lambda: float(np.quantile(values, _IDLE_QUANTILE)) if len(values) else 0.0
    )


def given_back_ns(evidence: Evidence, name: str) -> Ints:
    """Time to return memory to the kernel: the heap's shrinkage at the calibrated price."""
    size = column(evidence, name, "arena_bytes") + column(evidence, name, "blocks_bytes")
    freed = np.maximum(-size, -column(evidence, name, "used_bytes"))
    shrunk = np.minimum(freed, -column(evidence, name, "resident_bytes"))
    shrunk = np.where(shrunk >= _LEAST_BYTES, shrunk, 0)
    price = evidence.latest("cost.unmapping_mib_ns", _DEFAULT_UNMAPPING_NS)
    return np.rint(shrunk / MIB * price).astype(np.int64)


def _page_bytes(evidence: Evidence) -> float:
    """Bytes of a page on the run's machine."""
    return evidence.latest("cost.page_bytes", _DEFAULT_PAGE)
