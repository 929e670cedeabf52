"""A request's timeline: its stages, the thread's activity in each, and the known events within."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.evidence.known_pauses import named_threads
from latfix.profilers.evidence.units import Evidence, Unit
from latfix.results.request_explanation import Account, Happening, StageTime
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES, stage_label

#: Kinds of events that have a thread and a time, and those that name their request.
_TIMED, _NAMED = ("gc", "compile", "spike"), ("span", "error")


class EventIndex:
    """A record's events, indexed by time and by request."""

    def __init__(self, record: RunRecord) -> None:
        events = record.events
        self.kind: Any = np.asarray(events["kind"], dtype=object)
        self.start, self.duration, self.thread = (
            np.asarray(events[name], dtype=np.int64) for name in ("t_ns", "duration_ns", "thread")
        )
        self.duration = np.maximum(self.duration, 0)
        self.detail = events["detail"]
        timed = np.flatnonzero(np.isin(self.kind, _TIMED)) if len(self.kind) else np.zeros(0, np.int64)
        self.timed: Ints = timed[np.argsort(self.start[timed], kind="stable")]
        self.longest = int(self.duration[self.timed].max(initial=0))
        self.by_request: dict[int, list[int]] = {}
        for k in np.flatnonzero(np.isin(self.kind, _NAMED)).tolist() if len(self.kind) else ():
            self.by_request.setdefault(int(events["request"][k]), []).append(k)
        self.roles = {native: f"{role} {number}" for native, (role, number) in named_threads(record).items()}

    def within(self, begin: int, end: int) -> list[int]:
        """Timed events that overlap a span."""
        starts = self.start[self.timed]
        first, last = np.searchsorted(starts, [begin - self.longest, end], side="left")
        near = self.timed[int(first) : int(last)]
        return [int(k) for k in near[self.start[near] + self.duration[near] > begin]]

    def of_request(self, index: int, stage: str, *, ends: bool) -> list[int]:
        """A request's own events: spans of a stage, and its error in the stage where it ended."""
        found = []
        for k in self.by_request.get(index, ()):
            detail = self.detail[k] if isinstance(self.detail[k], Mapping) else {}
            if (self.kind[k] == "error" and ends) or (self.kind[k] == "span" and detail.get("stage") == stage):
                found.append(k)
        return found


def timeline(evidence: Evidence, events: EventIndex, row: int) -> tuple[StageTime, ...]:
    """The stages that a request went through, in order.

    :param row: of the record's requests.
    """
    rows, batch = evidence.rows, int(evidence.batch_of[row])
    arrival, index = int(rows["arrival_ns"][row]), int(rows["index"][row])
    durations = [int(rows[f"{stage}_ns"][row]) for stage in STAGES]
    last = max((k for k, duration in enumerate(durations) if duration), default=0)
    stages, at = [], 0
    for k, (stage, duration) in enumerate(zip(STAGES, durations, strict=True)):
        account = _account(evidence, row, batch, stage)
        own = account.thread if account is not None else ""
        begin = arrival + at
        found = events.within(begin, begin + duration) if duration > 0 else []
        found += events.of_request(index, stage, ends=k == last)
        if duration or found:
            stages.append(
                StageTime(
                    stage=stage_label(stage, outside=evidence.setup.outside),
                    at_ns=at,
                    duration_ns=duration,
                    parts=_parts(evidence, row, batch, stage, begin, duration),
                    account=account,
                    happenings=_happenings(events, found, own, begin, begin + duration, arrival),
                )
            )
        at += duration
    return tuple(stages)


def _parts(
    evidence: Evidence, row: int, batch: int, stage: str, begin: int, duration: int
) -> tuple[tuple[str, int], ...]:
    rows = evidence.rows
    if evidence.setup.outside:
        parts = []
    elif stage in ("prepare", "finish"):
        waited = min(max(int(rows[f"{stage}_wait_ns"][row]), 0), duration)
        name = "wait for a prepare thread" if stage == "prepare" else "wait for other members"
        parts = [(name, waited), ("own work", duration - waited)]
    elif stage == "batch" and batch >= 0:
        batches = evidence.batches
        lag = int(evidence.units["lag"].wall[batch])
        ends = [
            (
                "its batch as a whole, which failed",
                int(batches["open_ns"][batch]) if batches["retried"][batch] else begin,
            ),
            ("window", int(batches["close_ns"][batch]) - lag),
            ("waking the worker", int(batches["close_ns"][batch])),
            ("collate", begin + duration),
        ]
        parts, reached = [], begin
        for name, end in ends:
            end = min(max(end, reached), begin + duration)
            parts.append((name, end - reached))
            reached = end
    else:
        parts = []
    return tuple((name, ns) for name, ns in parts if ns)


def _account(evidence: Evidence, row: int, batch: int, stage: str) -> Account | None:
    """The account of the thread that worked on the request in a stage; ``None`` if there is none, or unknown."""
    if evidence.setup.outside:
        return None
    if stage in ("prepare", "finish"):
        number = int(evidence.units[stage].thread[row])
        if number < 0 or (stage == "finish" and batch < 0):
            return None
        return _read(evidence.units[stage], evidence.rows, stage, row, "prepare" if stage == "prepare" else "worker")
    if stage in ("batch", "compute") and batch >= 0:
        name = "collate" if stage == "batch" else "compute"
        return _read(evidence.units[name], evidence.batches, name, batch, "worker")
    return None


def _read(unit: Unit, columns: Mapping[str, Any], prefix: str, at: int, role: str) -> Account:
    return Account(
        thread=f"{role} {int(unit.thread[at])}",
        cpu_ns=int(unit.cpu[at]),
        runq_ns=int(unit.runq[at]),
        blocked_ns=int(unit.blocked[at]),
        vcsw=int(columns[f"{prefix}_vcsw"][at]),
        icsw=int(columns[f"{prefix}_icsw"][at]),
        minflt=int(unit.minflt[at]),
        majflt=int(unit.majflt[at]),
    )


def _happenings(
    events: EventIndex, found: list[int], own: str, begin: int, end: int, arrival: int
) -> tuple[Happening, ...]:
    """Events of a stage, grouped if alike, the longest first."""
    together: dict[tuple[str, str, str], Happening] = {}
    for k in found:
        kind = str(events.kind[k])
        start, length = int(events.start[k]), int(events.duration[k])
        inside = max(min(start + length, end) - max(start, begin), 0)
        where = events.roles.get(int(events.thread[k]), "")
        key = (kind, _what(kind, events.detail[k]), where)
        known = together.get(key)
        if known is None:
            together[key] = Happening(
                kind=kind,
                what=key[1],
                where=where,
                own=kind in _NAMED or (where != "" and where == own),
                at_ns=start - arrival,
                duration_ns=inside,
                count=1,
            )
        else:
            together[key] = replace(known, duration_ns=known.duration_ns + inside, count=known.count + 1)
    return tuple(sorted(together.values(), key=lambda item: (item.kind != "error", -item.duration_ns, item.at_ns)))


def _what(kind: str, detail: object) -> str:
    key = {"gc": "generation", "compile": "trigger", "spike": "probe", "span": "name", "error": "message"}[kind]
    value = detail.get(key, "") if isinstance(detail, Mapping) else ""
    return f"generation {value}" if kind == "gc" and value != "" else str(value)
