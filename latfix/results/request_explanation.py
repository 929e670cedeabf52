"""The explanation of one request: values, and the document of ``--json``.

All times are integer nanoseconds; those called ``at_ns`` count from the request's scheduled arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from latfix.files.json_documents import Document, json_key

_NAMED = json_key(objects=("name", "ns"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(Document):
    """What a thread did over an interval: ``cpu_ns + runq_ns + blocked_ns`` is its wall time.

    :param vcsw: voluntary switches, ``icsw`` involuntary ones.
    :param minflt: minor page faults, ``majflt`` major ones.
    """

    thread: str
    cpu_ns: int
    runq_ns: int
    blocked_ns: int
    vcsw: int
    icsw: int
    minflt: int
    majflt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening(Document):
    """Known events of one kind within a stage, combined if there are several alike.

    :param kind: as in :data:`latfix.run_record.schema.EVENT_KINDS`.
    :param what: generation, trigger, span's name, probe or message.
    :param where: the thread's role; empty if unknown.
    :param own: it ran in the thread that worked on this request.
    :param at_ns: the first one's start.
    :param duration_ns: of all of them, as far as they are within the stage.
    """

    kind: str
    what: str
    where: str
    own: bool
    at_ns: int
    duration_ns: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime(Document):
    """One stage of the request.

    :param parts: name and nanoseconds of its parts; they sum to the stage if there are any.
    """

    stage: str
    at_ns: int
    duration_ns: int
    parts: tuple[tuple[str, int], ...] = field(default=(), metadata=_NAMED)
    account: Account | None = None
    happenings: tuple[Happening, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts(Document):
    """The batch that the request was computed in.

    :param members: ids of its recorded members, in the order in which they were finished; possibly not all.
    :param padding_share: share of the collated batch's elements that were padding; ``None`` if unknown.
    :param retried: it failed as a whole, and its members ran one by one.
    :param inferred: the service is seen from outside: the times of its answers show who shared a batch.
    """

    batch_id: int
    worker: int
    size: int
    members: tuple[str, ...]
    padding_share: float | None
    first_shape: bool
    retried: bool
    inferred: bool = field(default=False, metadata=json_key(omit_empty=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Document):
    """A batch that held a worker, or a request that held a prepare thread or a server, while the request waited or
    before it came.

    :param label: the batch's number, or the id of that request.
    :param thread: number of the worker, prepare thread or server.
    :param size: requests in it.
    :param at_ns: when it began to hold the thread; negative before the request's arrival.
    :param held_ns: for how long in all; ``within_ns`` of that while the request waited.
    :param typical_ns: typical time of one of that size.
    :param causes: why it took longer, the largest first; with ``unexplained``, they sum to
        ``held_ns - typical_ns``.
    :param overtook: members that reached the queue after this request and went first.
    :param facts: further facts.
    """

    COMPUTED: ClassVar[tuple[str, ...]] = ("excess_ns",)

    label: str
    thread: int
    size: int
    at_ns: int
    held_ns: int
    within_ns: int
    typical_ns: int
    causes: tuple[tuple[str, int], ...] = field(metadata=_NAMED)
    overtook: int = 0
    facts: tuple[str, ...] = ()

    @property
    def excess_ns(self) -> int:
        """Nanoseconds beyond the typical; negative if it took less."""
        return self.held_ns - self.typical_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Others(Document):
    """Holders that are not listed one by one, combined."""

    count: int
    held_ns: int
    within_ns: int
    excess_ns: int
    causes: tuple[tuple[str, int], ...] = field(metadata=_NAMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Document):
    """A wait for a thread, and its holders, back to the time when that thread was last idle.

    :param resource: ``prepare`` (a thread of the pool), ``queue`` (a worker), or ``server`` (of a service seen from
        outside, which serves one request at a time).
    :param busy_since_ns: since when the threads were busy without a break, from the request's arrival.
    :param idle_ns: the part of the wait that no recorded work of any such thread covers.
    :param holders: the most important ones, in order of time; ``others`` the rest.
    """

    resource: str
    at_ns: int
    duration_ns: int
    busy_since_ns: int
    idle_ns: int
    holders: tuple[Holder, ...]
    others: Others | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Document):
    """One line of the request's ledger."""

    cause: str
    own_ns: int
    propagated_ns: int
    evidence_class: str = field(metadata=json_key("class"))

    @property
    def total_ns(self) -> int:
        """Own and propagated."""
        return self.own_ns + self.propagated_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Story(Document):
    """All known facts about one request.

    :param index: its position in the schedule; negative for a warm-up request.
    :param row: its row in the record; ``None`` if the run ended before it did.
    :param status: ``ok``, ``error``, ``timeout``, ``shed``, or ``not recorded``.
    :param faster: how many of the ``ok_requests`` were faster; ``None`` if it did not end ok itself.
    :param entries: the ledger, the largest first; empty for requests that are not in it.
    :param reference_ns: latency of a quiet, typical request; ``None`` likewise.
    :param sentence: why it was slow, in plain words.
    :param matches: how many requests of the schedule have this id.
    """

    COMPUTED: ClassVar[tuple[str, ...]] = ("faster_share", "difference_ns")

    id: str
    index: int
    row: int | None
    arrival_ns: int
    latency_ns: int
    status: str
    error: str
    faster: int | None
    ok_requests: int
    warmup: bool
    priority: str
    session: str | None
    deadline_ms: float | None
    features: Mapping[str, int | float | str]
    stages: tuple[StageTime, ...]
    batch: BatchFacts | None
    waits: tuple[Wait, ...]
    reference_ns: int | None
    entries: tuple[Entry, ...]
    sentence: str = ""
    matches: int = 1

    @property
    def difference_ns(self) -> int | None:
        """Latency less reference and entries: 0 unless the ledger is wrong; ``None`` without a ledger."""
        if self.reference_ns is None:
            return None
        return self.latency_ns - self.reference_ns - sum(entry.total_ns for entry in self.entries)

    @property
    def faster_share(self) -> float | None:
        """Share of the ok requests that were faster."""
        return None if self.faster is None or not self.ok_requests else self.faster / self.ok_requests
