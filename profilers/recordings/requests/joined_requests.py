"""A service's own recording of a run, joined with the run's requests by the ids under which they were sent.

Only durations are read from it, so the clocks of client and service may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.cause_catalogue import CATALOGUE
from latfix.errors import InputError
from latfix.formatting import shown
from latfix.profilers.recordings.reader import ReadOptions, recorded_at
from latfix.profilers.recordings.requests.formats import mapped_log, otlp_spans
from latfix.profilers.recordings.requests.readers import read_requests, read_spans
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.spans.clock_skew import with_one_clock
from latfix.profilers.recordings.requests.spans.span_table import SpanTable, own_times
from latfix.run_record.run_meta import read_meta, write_meta
from latfix.run_record.run_record import SCHEDULE, finalize, replace_events
from latfix.run_record.schema import SERVER_EVENT
from latfix.traffic.io.stored_schedule import load_schedule
from latfix.traffic.sent_ids import sent_id, trace_of

_QUEUE = re.compile(r"(^|[^a-z])queue(d|ing)?($|[^a-z])", re.I)
#: Parts of a row that are stages of the service's own work.
_OWN = ("prefill", "compute", "decode")


@dataclass(slots=True)
class _Served:
    """One request in the service's recording. Nanoseconds; by part, ``dependencies`` by name."""

    whole_ns: int
    parts_ns: dict[str, int] = field(default_factory=dict)
    dependencies_ns: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sent:
    """The ids of a run's requests, by which rows are found.

    :param requests: schedule index by ``X-Request-Id``; ``traces`` likewise by trace id.
    """

    run: str
    requests: Mapping[str, int]
    traces: Mapping[str, int]

    def find(self, text: str) -> int | None:
        """The request that an id in a recording stands for: its own id or trace, also within a longer text."""
        word = text.strip().lower()
        if (found := self.requests.get(text, self.traces.get(word.rjust(32, "0")))) is not None:
            return found
        if word.count("-") == 3 and len(word) == 55:  # a whole traceparent
            return self.traces.get(word[3:35])
        end = text.rfind(f"-{self.run}")
        words = text[: end + 1 + len(self.run)].split("-") if end >= 0 else []  # as in cmpl-ID-0
        within = ("-".join(words[k:]) for k in range(len(words)))
        return next((self.requests[name] for name in within if name in self.requests), None)


def join_recordings(folder: Path, paths: Sequence[Path], options: ReadOptions) -> int:
    """Add what a service recorded of a run's requests to the run's folder, in place of earlier such rows.

    :param paths: its recordings of the same time: logs of requests, or spans.
    :param options: ``mapping`` and ``pattern`` of logs.
    :returns: how many requests were found.
    :raises InputError: a recording cannot be read, has no ids, or holds no request of the run.
    """
    meta = read_meta(folder)
    run = str(meta.http.get("run", ""))
    if not run:
        raise InputError(
            f"{folder}: found a run whose requests had no ids of their own; expected a replay against an address"
        )
    traffic = load_schedule(folder / SCHEDULE)
    sent = _Sent(
        run,
        {sent_id(run, name): k for k, name in enumerate(traffic.ids)},
        {trace_of(run, name)[0]: k for k, name in enumerate(traffic.ids)},
    )
    served: dict[int, tuple[_Served, str]] = {}
    facts = []
    for path in paths:
        found, rows, unread = _read(path, sent, options)
        fact = {"path": path.name, "joined": len(found), "others": rows - len(found)}
        facts.append({**fact, "unread": unread} if unread else fact)
        for request, one in found.items():
            known = served.get(request)
            served[request] = (one, path.name) if known is None else (_merged(known[0], one), known[1])
    order = sorted(served, key=lambda request: int(traffic.arrival_ns[request]))
    finalize(folder)
    replace_events(folder, SERVER_EVENT, _events(order, served, traffic.arrival_ns))
    write_meta(folder, meta.updated(http={**meta.http, "server_log": facts}))
    return len(served)


def _merged(first: _Served, second: _Served) -> _Served:
    return _Served(
        max(first.whole_ns, second.whole_ns),
        {**second.parts_ns, **first.parts_ns},
        {**second.dependencies_ns, **first.dependencies_ns},
    )


def _events(order: Sequence[int], served: Mapping[int, tuple[_Served, str]], arrival_ns: Ints) -> dict[str, Any]:
    n = len(order)
    details = np.empty(n, dtype=object)
    details[:] = [
        {"source": name, "dependencies": one.dependencies_ns, **one.parts_ns}
        for one, name in (served[request] for request in order)
    ]
    return {
        "t_ns": arrival_ns[np.array(order, np.int64)],
        "duration_ns": np.array([served[request][0].whole_ns for request in order], np.int64),
        "kind": np.full(n, SERVER_EVENT, dtype=object),
        "thread": np.zeros(n, np.int64),
        "request": np.array(order, np.int64),
        "batch_id": np.full(n, -1, np.int64),
        "detail": details,
    }


def _read(path: Path, sent: _Sent, options: ReadOptions) -> tuple[dict[int, _Served], int, str]:
    """Requests of the run in a recording by index, the number of all in it, and a note on unread columns."""
    spans = None if options.pattern else read_spans(path)
    if spans is None:
        return _best(path, [_of_table(table, sent) for table in _tables(path, sent, options)], sent)
    choices = [_of_spans(spans, sent)]
    if otlp_spans.are_engine_spans(spans):
        choices.insert(0, _of_table(otlp_spans.requests_of(spans), sent))
    return _best(path, choices, sent)


#: Requests of the run by index, the number of all in the recording, one of its ids, and a note on unread columns.
_Found = tuple[dict[int, _Served], int, str, str]


def _best(path: Path, choices: Sequence[_Found], sent: _Sent) -> tuple[dict[int, _Served], int, str]:
    found, rows, example, unread = max(choices, key=lambda choice: (len(choice[0]), bool(choice[2])))
    if found:
        return found, rows, unread
    if not example:
        raise InputError(
            f"{path}: found no ids of requests; expected a recording with X-Request-Id or the trace's id: for a log, "
            "--server-map id=COLUMN names it"
        )
    request, trace = next(iter(sent.requests), ""), next(iter(sent.traces), "")
    raise InputError(
        f"{path}: found no request of this run: it has ids such as {shown(example, 60)}; expected X-Request-Id, such "
        f"as {shown(request, 60)}, or the trace of traceparent, such as {trace}; let the service record one of them"
    )


def _tables(path: Path, sent: _Sent, options: ReadOptions) -> Iterator[RequestTable]:
    """The requests of a log, once for each column that has ids of the run, whatever its name."""
    columns: tuple[str, ...] = ()
    given = options.pattern or any(one.startswith("id=") for one in options.mapping)
    if not given and mapped_log.knows((file := recorded_at(path)).head):
        columns = mapped_log.columns_with(file, lambda text: sent.find(text) is not None)
    for name in columns:
        yield read_requests(path, replace(options, mapping=(*options.mapping, f"id={name}")))
    if not columns:
        yield read_requests(path, options)


def _of_table(table: RequestTable, sent: _Sent) -> _Found:
    found: dict[int, _Served] = {}
    for row, text in enumerate(table.ids):
        request = sent.find(text) if text and table.latency_ns[row] >= 0 else None
        if request is None:
            continue
        whole = int(table.latency_ns[row])
        given = {name: int(column[row]) for name, column in (*table.parts.items(), *table.stages.items())}
        given = {name: taken for name, taken in given.items() if taken >= 0 and name != "dispatch"}
        parts = {name: given[name] for name in ("queue", *_OWN) if name in given}
        others = {name: taken for name, taken in given.items() if name not in parts and name not in CATALOGUE}
        # An unread column may be a wait, so that the remainder would be no work.
        if "queue" in parts and not parts.keys() & set(_OWN) and not table.unread:
            parts["compute"] = max(whole - parts["queue"] - sum(others.values()), 0)
        if request not in found or found[request].whole_ns < whole:  # the longest, if a proxy tried again
            found[request] = _Served(whole, parts, others)
    unread = table.unread.replace("--map", "--server-map")
    return found, len(table), next((text for text in table.ids if text), ""), unread


def _of_spans(spans: SpanTable, sent: _Sent) -> _Found:
    """The critical path of each request: the entry service's own spans, and those of others as its dependencies."""
    requests = [sent.find(name) for name in spans.traces]
    mine = np.array([request is not None for request in requests], bool)[spans.trace]
    # The parent of the service's first span is the client's, which nobody recorded.
    spans = with_one_clock(replace(spans, parent=np.where(mine & (spans.parent == -2), -1, spans.parent)))
    own = own_times(spans)
    found: dict[int, _Served] = {}
    length = spans.end_ns - spans.start_ns
    rows_of = np.argsort(own.request, kind="stable")
    bounds = np.searchsorted(own.request[rows_of], np.arange(len(own.roots) + 1))
    for number, root in enumerate(own.roots.tolist()):
        request = requests[int(spans.trace[root])]
        if request is None or (request in found and found[request].whole_ns >= int(length[root])):
            continue
        one = _Served(int(length[root]))
        for row in rows_of[bounds[number] : bounds[number + 1]].tolist():
            _divide(spans, row, int(spans.service[root]), int(own.own_ns[row]), one)
        found[request] = one
    return found, len(own.roots), next(iter(spans.traces), ""), ""


def _divide(spans: SpanTable, row: int, entry: int, own_ns: int, one: _Served) -> None:
    """Add a span's own time to the part of the request that it belongs to."""
    if not own_ns:
        return
    service, name = int(spans.service[row]), spans.operations[int(spans.operation[row])]
    if service == entry and not spans.calls[row]:
        part = "queue" if _QUEUE.search(name) else "compute"
        one.parts_ns[part] = one.parts_ns.get(part, 0) + own_ns
        return
    peer = int(spans.peer[row])
    called = spans.services[peer] if peer >= 0 else name if service == entry else spans.services[service]
    one.dependencies_ns[called] = one.dependencies_ns.get(called, 0) + own_ns
