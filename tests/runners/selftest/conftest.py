"""Simulated runs with faults that are known to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfix.results.selftest_scoreboard import CaseScore
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.runners.selftest.case import Case
from latfix.runners.selftest.faults.fault_log import Fault
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

MS = 1_000_000
T0 = 5_000 * MS


@dataclass(frozen=True)
class Simulated:
    """A run: its record and its log of faults."""

    record: RunRecord
    faults: list[Fault] = field(default_factory=list)


def case_score(case: Case, **known: Any) -> CaseScore:
    """The score of a quiet case, with some fields replaced."""
    blank: dict[str, Any] = dict.fromkeys(("injected", "right_tops", "named", "present", "wrong"), ())
    blank |= {"id": case.id, "recipes": case.recipes, "group": case.group, "intensity": case.intensity}
    blank |= {"seed": case.seed, "requests": 100, "p50_ms": 5.0, "excess_ms": 1.0, "faults": 0, "dropped": 0}
    blank |= {"counted": True, "verdict": "steady", "top": "", "top_right": None}
    return CaseScore(**(blank | known))


def simulate(
    arrivals_ms: Sequence[float],
    *,
    prepare_ms: float = 1.0,
    compute_ms: float = 4.0,
    batches: Sequence[Sequence[int]] | None = None,
    prepare_faults: Mapping[int, tuple[str, float]] | None = None,
    model_faults: Mapping[int, tuple[str, float]] | None = None,
    finish_faults: Mapping[int, tuple[str, float]] | None = None,
) -> Simulated:
    """One prepare thread and one worker, first come first served; faults by request: cause and milliseconds."""
    n = len(arrivals_ms)
    rows, members = zeros(REQUEST_DTYPE, n), list(batches or [[k] for k in range(n)])
    table = zeros(BATCH_DTYPE, len(members))
    before, inside, after = prepare_faults or {}, model_faults or {}, finish_faults or {}
    faults: list[Fault] = []

    def strike(where: str, k: int, at: int, fault: tuple[str, float] | None) -> int:
        if fault is None:
            return 0
        cause, ms = fault
        length = int(ms * MS)
        name, start = f"r{k:06d}", T0 + at
        ends = {"start_ns": start, "end_ns": start + length, "ns": length}
        faults.append(Fault(cause=cause, kind="sleep", where=where, request=name, **ends))
        return length

    free, enqueued = 0, np.zeros(n, dtype=np.int64)
    rows["index"], rows["arrival_ns"] = np.arange(n), np.rint(np.array(arrivals_ms) * MS).astype(np.int64)
    for k in range(n):
        start = max(int(rows["arrival_ns"][k]), free)
        free = start + int(prepare_ms * MS) + strike("prepare", k, start, before.get(k))
        enqueued[k] = free
        rows["prepare_wait_ns"][k] = start - rows["arrival_ns"][k]
        rows["prepare_ns"][k] = free - rows["arrival_ns"][k]
    free = 0
    for number, batch in enumerate(members):
        close = max(free, int(enqueued[list(batch)].max()))
        end = close + int(compute_ms * MS) * len(batch)
        end += sum(strike("model", k, close, inside.get(k)) for k in batch)
        computed = end
        for k in batch:
            rows["queue_ns"][k] = max(free, int(enqueued[k])) - enqueued[k]
            rows["batch_ns"][k] = close - max(free, int(enqueued[k]))
            rows["compute_ns"][k] = computed - close
            rows["batch_id"][k] = number
        begun = free
        for k in batch:
            rows["finish_wait_ns"][k] = end - computed
            end += strike("finish", k, end, after.get(k))
            rows["finish_ns"][k] = end - computed
            rows["latency_ns"][k] = end - rows["arrival_ns"][k]
        free = end
        stamps = {"batch_id": number, "size": len(batch), "free_ns": begun, "close_ns": close, "collated_ns": close}
        stamps |= {"h2d_end_ns": close, "compute_end_ns": computed, "d2h_end_ns": computed, "finish_end_ns": end}
        for name, value in stamps.items():
            table[name][number] = value
    traffic = Traffic.plain(rows["arrival_ns"], ids=[f"r{k:06d}" for k in range(n)])
    return Simulated(build_record(t0_ns=T0, state="complete", requests=rows, batches=table, traffic=traffic), faults)
