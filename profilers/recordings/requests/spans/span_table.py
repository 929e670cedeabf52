"""Spans as columns, and the division of each request's time among its spans.

Every moment belongs to the deepest span on the critical path. Walking back from a span's end, the child that ends
last is on the path, up to its own begin; time that no child covers is the span's own. The parts of a request sum to
its latency exactly, even if other spans ran in parallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.formatting import counted, shown
from latfix.profilers.recordings.requests.text_source import LATEST_NS

#: Attributes that name the service behind a client's span, the most specific first (OpenTelemetry's conventions).
_PEERS = ("peer.service", "service.peer.name", "db.system.name", "db.system", "messaging.system", "rpc.service",
          "server.address", "net.peer.name", "http.host")  # fmt: skip

#: Times may be rounded to milliseconds.
_ROUNDING_NS = 1_000_000
#: The attribute in which a serving engine's span has a request's latency (vLLM's ``SpanAttributes``).
ENGINE_LATENCY = "gen_ai.latency.e2e"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTable:
    """Spans in the order of the recording. Nanoseconds of a common clock, as far as the hosts' clocks agree.

    :param parent: ``(n,)`` row of the parent; -1 without one, -2 if it is not in the recording.
    :param service: ``(n,)`` index into ``services``; ``operation`` into ``operations``.
    :param calls: ``(n,)`` True for a client's span, which waits for another service.
    :param peer: ``(n,)`` index into ``services`` of the service that a client's span calls; -1 if unknown.
    :param failed: ``(n,)`` True for a failed span; ``has_status`` False if the format does not record that.
    :param trace: ``(n,)`` index into ``traces``.
    :param engine: begin (nanoseconds since 1970) and attributes of each span of a serving engine.
    """

    start_ns: Ints
    end_ns: Ints
    parent: Ints
    trace: Ints
    service: Ints
    operation: Ints
    calls: Bools
    peer: Ints
    failed: Bools
    services: tuple[str, ...]
    operations: tuple[str, ...]
    traces: tuple[str, ...]
    has_status: bool = True
    engine: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ns)


class SpanRows:
    """Builds a table span by span."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._engine: list[tuple[int, Mapping[str, Any]]] = []
        self._seen: set[tuple[object, ...]] = set()
        self._reversed = self._repeated = 0

    def add(
        self,
        *,
        trace: str,
        span: str,
        parent: str,
        service: str,
        operation: str,
        start_ns: int,
        end_ns: int,
        calls: bool = False,
        attributes: Mapping[str, Any] | None = None,
        failed: bool = False,
    ) -> None:
        """Append a span, once if exporters repeat it. One that ends before it begins gets length 0.

        :raises ValueError: its times are out of range.
        """
        if not 0 <= start_ns <= LATEST_NS or abs(end_ns) > LATEST_NS:
            raise ValueError(f"from {shown(start_ns, 40)} to {shown(end_ns, 40)} ns since 1970")
        key = (trace, span, service, operation, start_ns, end_ns)
        if key in self._seen:
            self._repeated += 1
            return
        self._seen.add(key)
        self._reversed += end_ns < start_ns
        named = (str(value) for name in _PEERS if (value := (attributes or {}).get(name)))
        peer = next(named, "") if calls else ""
        times = start_ns, max(start_ns, end_ns)
        self._rows.append((*times, trace, span, parent, service or "unknown", operation, calls, peer, failed))
        if attributes and ENGINE_LATENCY in attributes:
            self._engine.append((start_ns, attributes))

    def __len__(self) -> int:
        return len(self._rows)

    def table(self, **facts: Any) -> SpanTable:
        columns = list(zip(*self._rows, strict=True)) or [()] * 10
        starts, ends, traces, spans, parents, services, operations, calls, peers, failed = columns
        first = min(starts, default=0)
        place = {name: row for row, name in enumerate(zip(traces, spans, strict=True))}
        above = zip(traces, parents, strict=True)
        service, all_services = _codes([*services, *(peer for peer in peers if peer)])
        operation, all_operations = _codes(operations)
        trace, all_traces = _codes(traces)
        peer = np.full(len(peers), -1, np.int64)
        peer[np.array([bool(each) for each in peers], bool)] = service[len(peers) :]
        notes = []
        if self._reversed:
            notes.append(f"{counted(self._reversed, 'span')} with an end before the begin: read with length 0.")
        if self._repeated:
            notes.append(f"{counted(self._repeated, 'repeated span')}, counted once.")
        return SpanTable(
            start_ns=np.array(starts, np.int64) - first,
            end_ns=np.array(ends, np.int64) - first,
            parent=np.array([place.get(name, -2) if name[1] else -1 for name in above], np.int64),
            trace=trace,
            service=service[: len(peers)],
            operation=operation,
            calls=np.array(calls, bool),
            peer=peer,
            failed=np.array(failed, bool),
            services=all_services,
            operations=all_operations,
            traces=all_traces,
            facts=facts,
            engine=tuple(self._engine),
            notes=tuple(notes),
        )


def _codes(words: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    known: dict[str, int] = {}
    codes = [known.setdefault(word, len(known)) for word in words]
    return np.array(codes, np.int64), tuple(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """The critical path of every request.

    :param roots: ``(r,)`` rows of the requests' outermost spans, in order of begin.
    :param request: ``(n,)`` index into ``roots`` of each span; -1 if it belongs to no request.
    :param own_ns: ``(n,)`` own time of each span on the critical path; the sum is the root's length.
    :param orphans: spans left out because their parent is missing.
    """

    roots: Ints
    request: Ints
    own_ns: Ints
    orphans: int


def roots_of(spans: SpanTable) -> Ints:
    """``(r,)`` rows of the requests' outermost spans, in order of begin."""
    roots = np.flatnonzero(spans.parent == -1)
    if not len(roots):  # spans of one service, without its callers' spans
        roots = np.flatnonzero(spans.parent == -2)
    return roots[np.argsort(spans.start_ns[roots], kind="stable")]


def outliving(spans: SpanTable) -> Bools:
    """``(n,)`` True for spans that end after their parent by the same clock: it did not wait for them."""
    parent = np.maximum(spans.parent, 0)
    beyond = spans.end_ns - spans.end_ns[parent]
    rounding = np.maximum(_ROUNDING_NS, (spans.end_ns - spans.start_ns) // 10)
    same = (spans.parent >= 0) & (spans.service == spans.service[parent]) & ~spans.calls[parent]
    return np.asarray(same & (beyond > rounding))


def own_times(spans: SpanTable) -> OwnTimes:
    """Divide every request's time among its spans."""
    roots = roots_of(spans)
    orphans = int(np.count_nonzero(spans.parent == -2)) if (spans.parent == -1).any() else 0
    children = _children(spans)
    request = np.full(len(spans), -1, np.int64)
    own = [0] * len(spans)
    start, end = spans.start_ns.tolist(), np.where(outliving(spans), spans.start_ns, spans.end_ns).tolist()
    for number, root in enumerate(roots.tolist()):
        _walk(root, number, start, end, children, own, request)
    return OwnTimes(roots=roots, request=request, own_ns=np.array(own, np.int64), orphans=orphans)


def _children(spans: SpanTable) -> dict[int, list[int]]:
    """By parent, its children, the last to end first."""
    inside = np.flatnonzero(spans.parent >= 0)
    inside = inside[np.argsort(-spans.end_ns[inside], kind="stable")]
    children: dict[int, list[int]] = {}
    for row, parent in zip(inside.tolist(), spans.parent[inside].tolist(), strict=True):
        children.setdefault(parent, []).append(row)
    return children


def _walk(
    root: int,
    number: int,
    start: list[int],
    end: list[int],
    children: Mapping[int, list[int]],
    own: list[int],
    request: Ints,
) -> None:
    pending = [(root, start[root], end[root])]
    while pending:
        row, low, high = pending.pop()
        if request[row] >= 0:
            continue  # a cycle of parents
        request[row] = number
        cursor = high
        for child in children.get(row, ()):
            begin, over = max(start[child], low), min(end[child], cursor)
            if over <= begin:
                pending.append((child, 0, 0))  # not on the critical path
                continue
            own[row] += cursor - over
            pending.append((child, begin, over))
            cursor = begin
        own[row] += max(cursor - low, 0)
