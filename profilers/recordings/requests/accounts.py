"""The ledger of each request before it is summed: the common form of logs and spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latfix.arrays import Ints
from latfix.cause_catalogue import KnownCause

#: Minimum share of the tail's excess for naming a cause: one that stands out, and one that any service may show.
MATERIAL, DOMINANT = 0.05, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The ledger of a recording: requests that ended ok, in order of arrival. Times in nanoseconds.

    :param arrival_ns: ``(n,)``; ``latency_ns`` likewise.
    :param reference_ns: the latency of a quiet, typical request.
    :param causes: ``K`` causes, ``unexplained`` last.
    :param entries: own and propagated parts ``(K, m)`` of a slice of requests; with the reference they sum to the
        latency exactly.
    :param evidence: by cause, one sentence with the figures.
    :param nameable: causes that may be named, with the minimum share of the tail's excess; others are only listed.
    :param floors_ms: by cause, the milliseconds that chance alone produces.
    :param stages: measured parts of latencies, each ``(n,)``, -1 if unknown.
    :param timed: False if only the order of arrivals is known.
    :param unread: a note on unread columns, shown if much is unexplained.
    """

    arrival_ns: Ints
    latency_ns: Ints
    reference_ns: int
    causes: tuple[KnownCause, ...]
    entries: Callable[[slice], tuple[Ints, Ints]]
    evidence: Mapping[str, str]
    nameable: Mapping[str, float]
    floors_ms: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, Ints] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    timed: bool = True
    notes: tuple[str, ...] = ()
    unread: str = ""
