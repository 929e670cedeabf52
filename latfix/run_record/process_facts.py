"""Facts about a run's process: memory, threads, idle work, and the device's work batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from latfix.files.json_documents import Document, json_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory(Document):
    """Memory of the runner's process, in bytes, and its page faults while requests were served.

    :param peak_bytes: the peak resident memory.
    :param available_bytes: of the machine, at the end.
    :param model_bytes: parameters and buffers of all instances of the model.
    :param allocator: name of the heap's allocator.
    :param prefaulted_bytes: touched before the first request; ``prefault_kept_bytes`` still resident at the end.
    :param huge_bytes: in transparent huge pages.
    :param page_bytes: size of a small page.
    """

    resident_start_bytes: int = 0
    resident_end_bytes: int = 0
    peak_bytes: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    available_bytes: int = 0
    model_bytes: int = 0
    allocator: str = "unknown"
    prefaulted_bytes: int = 0
    prefault_kept_bytes: int = 0
    locked_bytes: int = 0
    huge_bytes: int = 0
    page_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlace(Document):
    """Where one thread ran.

    :param cores: the cores that it may use, in words; ``allowed`` one by one.
    :param nice: its priority; ``None`` if it had ended.
    :param migrations: moves between cores during the run.
    :param operator_threads: threads of one operator there; ``None`` for threads other than workers.
    """

    cores: str = ""
    allowed: tuple[int, ...] = ()
    nice: int | None = None
    migrations: int = 0
    operator_threads: int | None = field(default=None, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(Document):
    """Where the process's threads and memory were.

    :param pool: threads of the framework's pools; ``own`` further ones that Python started.
    :param node_pages: pages by memory node, if cores were chosen by it.
    :param worker_cores: cores of all workers together, in words.
    :param autogroup_nice: priority of the session's scheduling group; ``None`` if there is none.
    """

    worker: tuple[ThreadPlace, ...] = ()
    prepare: tuple[ThreadPlace, ...] = ()
    pool: tuple[ThreadPlace, ...] = ()
    own: tuple[ThreadPlace, ...] = ()
    node_pages: Mapping[str, int] = field(default_factory=dict)
    worker_cores: str = ""
    autogroup_nice: int | None = None


@dataclass(slots=True)
class Residence(Document):
    """The cost of keeping workers warm.

    :param runs: runs of a small input.
    :param total_ns: of all runs; ``longest_ns`` of the longest.
    :param elements: of the input that it ran last.
    :param delayed: runs at whose end a request waited, which delayed it by at most the run.
    :param rows: rows of embedding tables that were touched.
    :param failure: why it gave up; empty if it did not.
    """

    runs: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    elements: int = 0
    delayed: int = 0
    rows: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTables(Document):
    """The model's embedding tables.

    :param rows: of all tables; ``bytes`` of their weights.
    :param hot_rows: rows read while idle, by frequency of use; ``hot_share`` the share of lookups that they served.
    """

    tables: int = 0
    rows: int = 0
    bytes: int = 0
    hot_rows: int = 0
    hot_share: float = 0.0
    lookups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswers(Document):
    """Answers written into reused buffers.

    :param misses: answers that needed a new buffer; ``held`` those whose buffer the model or a caller still held.
    :param bytes: of all buffers.
    """

    hits: int = 0
    misses: int = 0
    held: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork(Document):
    """What one profiled batch did on the device.

    :param size: requests in it; ``elements`` of its collated inputs.
    :param span_ns: from its first operator on the device to the end of its last.
    :param busy_ns: of that, time with work running; ``launch_ns`` waiting for the host's next launch; ``sync_ns``
        idle because the host had waited for the device. The remainder are gaps between operators already launched.
    :param launches: operators; ``waits`` calls within the model's call in which the host waited.
    :param copies: bytes by kind, such as ``HtoD (Pageable -> Device)``.
    :param kernels: number of runs of each.
    """

    size: int = 0
    elements: int = 0
    span_ns: int = 0
    busy_ns: int = 0
    launch_ns: int = 0
    sync_ns: int = 0
    launches: int = 0
    waits: int = 0
    copies: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
