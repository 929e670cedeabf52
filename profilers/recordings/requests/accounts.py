"""What is owed by whom, request by request, before it is summed up: the common form of logs and spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latfix.arrays import Ints
from latfix.cause_catalogue import KnownCause

#: Shares of the tail's excess from which a cause is named: one that is known to stand out, and one that may be what
#: every service shows now and then.
MATERIAL, DOMINANT = 0.05, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The ledger of a recording. Requests that ended ok, in order of arrival; nanoseconds.

    :param arrival_ns: ``(n,)``; ``latency_ns`` the same.
    :param reference_ns: the latency of a quiet, typical request.
    :param causes: ``K``, ``unexplained`` last.
    :param entries: own and propagated parts ``(K, m)`` of a stretch of requests; with the reference they sum to the
        latency exactly.
    :param evidence: by cause, one sentence with the figures.
    :param nameable: causes that stand out of what this recording always shows, and the share of the tail's excess
        from which each is named; the others are listed, not named.
    :param floors_ms: by cause, what chance alone makes of it.
    :param stages: measured parts of latencies, each ``(n,)``, -1 where they are not known.
    :param timed: false where only the order of arrivals is known.
    :param unread: what may tell more, to be said where much is unexplained.
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
    fixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    timed: bool = True
    notes: tuple[str, ...] = ()
    unread: str = ""
