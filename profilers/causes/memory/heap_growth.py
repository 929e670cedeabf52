"""Growth of the C library's heap during units of work, from what their accounts say of the process's memory."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.units import Evidence

UNITS: tuple[str, ...] = ("prepare", "collate", "compute", "finish")
_DEFAULT_PAGE = 4096
#: Growth that is under this is the allocator's own rounding.
_LEAST_BYTES = 256 * 1024
MIB = float(1 << 20)
#: Fixes for a heap that grows, or a device's memory that does.
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
_DEFAULT_UNMAPPING_NS = 100_000.0
#: A fresh page faults once where it is written at once, twice where it is read before.
_MOST_FAULTS = 2
#: Memory that is free throughout the run belongs to an arena that serves no request.
_IDLE_QUANTILE = 0.02
#: So many free pieces of at most this mean size are a heap in pieces.
_MANY_PIECES, _SMALL_PIECE = 256, 256 * 1024
#: Samples are seldom: they confirm a growth that they show this share of.
_CONFIRMED = 0.5


def column(evidence: Evidence, name: str, what: str) -> Ints:
    """A column of a unit's account: ``<unit>_<what>``."""
    return np.asarray(evidence.account(name)[f"{name}_{what}"], dtype=np.int64)


def heap_growth(evidence: Evidence, name: str) -> Ints:
    """Bytes of fresh memory that the C library's heap handed out during each unit.

    By these its arenas and its blocks mapped on their own grew; or what it has in use and what is resident both did,
    where pages of it had been given back to the kernel before. Where the heap was not read, growth of the process's
    private writable mappings stands for it.
    """
    size = column(evidence, name, "arena_bytes") + column(evidence, name, "blocks_bytes")
    touched = np.minimum(column(evidence, name, "used_bytes"), column(evidence, name, "resident_bytes"))
    unread = column(evidence, name, "free_bytes") == 0
    grown = np.where(unread, column(evidence, name, "mapped_bytes"), np.maximum(size, touched))
    return np.asarray(np.where(grown >= _LEAST_BYTES, grown, 0), dtype=np.int64)


def heap_faults(evidence: Evidence, name: str) -> Floats:
    """Faults of each unit that met pages by which the heap had grown meanwhile."""
    unit = evidence.units[name]
    return np.minimum(unit.minflt, _MOST_FAULTS * heap_growth(evidence, name) / _page_bytes(evidence))


def faults_beside_free(evidence: Evidence, name: str) -> Floats:
    """Of :func:`heap_faults`, those on growth of arenas that had as much free, but not in one piece."""
    pages = grown_in_pieces(evidence, name) / _page_bytes(evidence)
    return np.minimum(heap_faults(evidence, name), _MOST_FAULTS * pages)


def grown_in_pieces(evidence: Evidence, name: str) -> Ints:
    """Bytes by which arenas grew while at least as many were free in them, beyond what always is."""
    known = column(evidence, name, "free_bytes")
    read = known > 0
    grown = np.where(read, np.maximum(column(evidence, name, "arena_bytes"), 0), _sampled_growth(evidence, name))
    sampled = evidence.before("malloc.free_bytes", evidence.units[name].start)
    free = np.where(read, known, sampled) - np.where(_in_pieces(evidence, name), 0.0, _always_free(evidence))
    return np.asarray(np.where((heap_growth(evidence, name) > 0) & (free >= grown), grown, 0), dtype=np.int64)


def _in_pieces(evidence: Evidence, name: str) -> Bools:
    """Whether what was last seen free lay in small pieces, the heap's top left out: then it is no idle arena's."""
    pieces = evidence.before("malloc.free_chunks", evidence.units[name].start)
    free = evidence.before("malloc.free_bytes", evidence.units[name].start)
    inside = free - evidence.before("malloc.trimmable_bytes", evidence.units[name].start)
    return np.asarray((pieces >= _MANY_PIECES) & (inside <= _SMALL_PIECE * pieces))


def _sampled_growth(evidence: Evidence, name: str) -> Ints:
    """Growth of a unit's mappings that the samples around it confirm to be arenas'.

    A heap of many free chunks takes long to read and is not read for each unit.
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
    """What giving memory back to the kernel took: by how much the heap shrank, at the calibrated price."""
    size = column(evidence, name, "arena_bytes") + column(evidence, name, "blocks_bytes")
    freed = np.maximum(-size, -column(evidence, name, "used_bytes"))
    shrunk = np.minimum(freed, -column(evidence, name, "resident_bytes"))
    shrunk = np.where(shrunk >= _LEAST_BYTES, shrunk, 0)
    price = evidence.latest("cost.unmapping_mib_ns", _DEFAULT_UNMAPPING_NS)
    return np.rint(shrunk / MIB * price).astype(np.int64)


def _page_bytes(evidence: Evidence) -> float:
    """Bytes of a page on the run's machine."""
    return evidence.latest("cost.page_bytes", _DEFAULT_PAGE)
