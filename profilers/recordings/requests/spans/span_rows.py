"""Builds a table of spans, span by span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfix.formatting import shown
from latfix.profilers.recordings.requests.spans.span_table import SpanTable
from latfix.profilers.recordings.requests.text_source import LATEST_NS

#: Attributes that name the service behind a client's span, the most specific first (OpenTelemetry's conventions).
_PEERS = ("peer.service", "service.peer.name", "db.system.name", "db.system", "messaging.system", "rpc.service",
          "server.address", "net.peer.name", "http.host")  # fmt: skip

#: The attribute in which a serving engine's span has a request's latency (vLLM's ``SpanAttributes``).
ENGINE_LATENCY = "gen_ai.latency.e2e"


@dataclass(slots=True)
class SpanRows:
    """Growing columns of a :class:`SpanTable`."""

    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    parents: list[tuple[str, str] | None] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    calls: list[bool] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)
    engine: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    reversed: int = 0
    repeated: int = 0
    _seen: set[tuple[object, ...]] = field(default_factory=set)

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
            self.repeated += 1
            return
        self._seen.add(key)
        if end_ns < start_ns:
            self.reversed += 1
            end_ns = start_ns
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.names.append((trace, span))
        self.parents.append((trace, parent) if parent else None)
        self.services.append(service or "unknown")
        self.operations.append(operation)
        self.calls.append(calls)
        named = (str(value) for name in _PEERS if (value := (attributes or {}).get(name)))
        self.peers.append(next(named, "") if calls else "")
        self.failed.append(failed)
        if attributes and ENGINE_LATENCY in attributes:
            self.engine.append((start_ns, attributes))

    def table(self, **facts: Any) -> SpanTable:
        place = {name: row for row, name in enumerate(self.names)}
        parent = [-1 if name is None else place.get(name, -2) for name in self.parents]
        service, services = _codes([*self.services, *(peer for peer in self.peers if peer)])
        operation, operations = _codes(self.operations)
        trace, traces = _codes([trace for trace, _ in self.names])
        n = len(self.names)
        peer = np.full(n, -1, np.int64)
        peer[np.array([bool(each) for each in self.peers], bool)] = service[n:]
        first = min(self.start_ns, default=0)
        notes = []
        if self.reversed:
            notes.append(f"{self.reversed} spans end before they begin; they are read with length 0.")
        if self.repeated:
            notes.append(f"{self.repeated} repeated spans are counted once.")
        return SpanTable(
            start_ns=np.array([start - first for start in self.start_ns], np.int64),
            end_ns=np.array([end - first for end in self.end_ns], np.int64),
            parent=np.array(parent, np.int64),
            trace=trace,
            service=service[:n],
            operation=operation,
            calls=np.array(self.calls, bool),
            peer=peer,
            failed=np.array(self.failed, bool),
            services=services,
            operations=operations,
            traces=traces,
            facts=facts,
            engine=tuple(self.engine),
            notes=tuple(notes),
        )


def _codes(words: list[str]) -> tuple[Any, tuple[str, ...]]:
    known: dict[str, int] = {}
    codes = [known.setdefault(word, len(known)) for word in words]
    return np.array(codes, np.int64), tuple(known)
