"""What batches and prepares cost those who wait for them: how long each held its thread, and why longer than usual.

A cause's part is the ledger's own entry of the batch's members, as far as it arose on the worker: what all of
them share (a batch's fault belongs to every member), and what the counters of the worker's thread allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.cause_catalogue import UNEXPLAINED
from latfix.profilers.evidence.units import BATCH_UNITS, Evidence, Unit
from latfix.profilers.evidence.work_model import Ints
from latfix.results.diagnosis import Ledger

#: Causes that no member's own entry tells of a batch: waits, what the model says of it directly, the remainder.
_NOT_SHARED = ("traffic.", "batching.", "input.size", UNEXPLAINED)
_FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Work that held threads, a column each; all nanoseconds.

    :param start: ``(m,)`` when it began to hold its thread; ``end`` when it let it go.
    :param thread: ``(m,)`` worker or prepare thread.
    :param typical: ``(m,)`` what a typical one of that size takes.
    :param causes: names of the rows of ``parts``; ``unexplained`` is last and makes them sum.
    :param parts: ``(k, m)`` of ``end - start - typical``.
    """

    start: Ints
    end: Ints
    thread: Ints
    typical: Ints
    causes: tuple[str, ...]
    parts: npt.NDArray[np.int64]

    def named(self, rows: Ints) -> tuple[tuple[str, int], ...]:
        """The nonzero parts of some of them together, the largest first."""
        total = self.parts[:, rows].sum(axis=1)
        order = np.argsort(-np.abs(total), kind="stable").tolist()
        return tuple((self.causes[k], int(total[k])) for k in order if total[k])


def batch_costs(evidence: Evidence, ledger: Ledger) -> Costs:
    """Every batch: it holds its worker from its opening to the end of its last member's ``finish``."""
    batches, expected = evidence.batches, evidence.expected
    lag = evidence.units["lag"].wall
    window = np.maximum(batches["close_ns"] - lag - batches["open_ns"], 0)
    start, end = batches["open_ns"], np.maximum(batches["finish_end_ns"], batches["open_ns"])
    modelled = expected.typical[np.minimum(batches["size"], len(expected.typical) - 1)]
    # A batch that failed as a whole says nothing of how long its inputs should have taken.
    computed = np.where(batches["compute_end_ns"] > batches["h2d_end_ns"], 1, 0)
    parts: dict[str, Ints] = {
        "batching.window": window,
        "input.size": (expected.unpadded - modelled) * computed,
        "batching.padding": (expected.padded - expected.unpadded) * computed,
    }
    own = _own_entries(evidence, ledger)
    for k, cause in enumerate(ledger.causes):
        if not cause.startswith(_NOT_SHARED) and own[k].any():
            parts[cause] = _on_worker(evidence, own[k], cause)
    service = end - start - window
    typical = _typical_batch(evidence, service, modelled)
    return _costs(start, end, batches["worker"], typical, parts)


def prepare_costs(evidence: Evidence, ledger: Ledger) -> Costs:
    """Every request's ``prepare``, a row a request; those that were never prepared hold nothing."""
    unit = evidence.units["prepare"]
    prepared = evidence.rows["prepare_thread"] >= 0
    work = np.where(prepared, unit.wall, 0)
    some = evidence.quiet if np.count_nonzero(evidence.quiet) >= _FEW else evidence.ok
    typical = int(np.median(work[some])) if some.any() else 0
    usual = int(np.median(evidence.expected.prepare[some])) if some.any() else 0
    parts: dict[str, Ints] = {"input.size": np.where(prepared, evidence.expected.prepare - usual, 0)}
    own = _own_entries(evidence, ledger)
    for k, cause in enumerate(ledger.causes):
        if not cause.startswith(_NOT_SHARED) and own[k].any():
            parts[cause] = np.clip(own[k], 0, _most(evidence, unit, cause, "prepare"))
    return _costs(unit.end - work, unit.end, evidence.rows["prepare_thread"], np.where(prepared, typical, 0), parts)


def _costs(start: Ints, end: Ints, thread: Ints, typical: Ints, parts: dict[str, Ints]) -> Costs:
    rest = end - start - typical - sum(parts.values(), start=np.zeros(len(start), np.int64))
    return Costs(
        start=np.asarray(start, dtype=np.int64),
        end=np.asarray(end, dtype=np.int64),
        thread=np.asarray(thread, dtype=np.int64),
        typical=np.asarray(typical, dtype=np.int64),
        causes=(*parts, UNEXPLAINED),
        parts=np.stack([*parts.values(), rest]).astype(np.int64),
    )


def _own_entries(evidence: Evidence, ledger: Ledger) -> npt.NDArray[np.int64]:
    """``(K, n)`` own entries by row of the record; zero for requests that are not in the ledger."""
    index = evidence.rows["index"]
    own = np.zeros((len(ledger.causes), len(index)), np.int64)
    if len(index) and len(ledger.request):
        at = np.minimum(np.searchsorted(index, ledger.request), len(index) - 1)
        known = index[at] == ledger.request
        own[:, at[known]] = ledger.own_ns[:, known]
    return own


def _on_worker(evidence: Evidence, own: Ints, cause: str) -> Ints:
    """Per batch, what of its members' own entries arose on the worker."""
    members, units = evidence.members, evidence.units
    shared = np.zeros(len(members.count), np.int64)
    order = members.order
    if len(order):
        there = evidence.ok[order]
        huge = np.iinfo(np.int64).max
        some = members.count > 0
        least = np.minimum.reduceat(np.where(there, own[order], huge), members.first[some])
        shared[some] = np.where(least == huge, 0, np.maximum(least, 0))
    most = sum(_most(evidence, units[name], cause, name) for name in BATCH_UNITS)
    shared = np.minimum(shared, most)
    finish = units["finish"]
    beyond = np.maximum(own - evidence.of_batch(shared), 0)
    singly = np.where(evidence.ok, np.minimum(beyond, _most(evidence, finish, cause, "finish")), 0)
    return np.asarray(shared + members.total(singly), dtype=np.int64)


def _most(evidence: Evidence, unit: Unit, cause: str, name: str) -> Ints:
    """The most that a cause can have taken of a unit, by the unit's own counters."""
    match cause:
        case "python.gc" | "cold.compile":
            return evidence.pauses["gc" if cause == "python.gc" else "compile"].seen(unit.start, unit.end)
        case "host.contention":
            return unit.runq + unit.blocked if name == "lag" else unit.runq
        case "host.throttle":
            return unit.runq + unit.blocked
        case "memory.page_faults":
            return np.asarray(np.where(unit.minflt + unit.majflt > 0, unit.wall, 0))
        case "external.dependency":
            if name not in ("prepare", "finish"):
                return np.zeros_like(unit.cpu)
            return np.asarray(np.minimum(unit.blocked + evidence.rows[f"{name}_span_ns"], unit.wall))
        case "observer":
            return evidence.spikes.covered(unit.start, unit.end)
        case "python.gil":
            return unit.blocked
        case _:
            return np.asarray(np.maximum(unit.cpu + unit.blocked - unit.expected_cpu, 0))


def _typical_batch(evidence: Evidence, service: Ints, modelled: Ints) -> Ints:
    """Per batch, what a typical one of its size takes, its window left out.

    By the model of compute where there is one, and the median of what it does not cover; otherwise the median
    of batches of that size.
    """
    batches = evidence.batches
    sound = (batches["retried"] == 0) & (batches["warmup"] == 0)
    if np.count_nonzero(sound & evidence.quiet_batch) >= _FEW:
        sound &= evidence.quiet_batch
    if not sound.any():
        sound = np.ones(len(service), dtype=bool)
    if not len(service):
        return service
    if evidence.expected.models["compute"].accepted:
        finish = evidence.units["finish"].wall[evidence.quiet]
        each = int(np.median(finish)) if len(finish) else 0
        rest = service - evidence.expected.padded - batches["size"] * each
        whole = modelled + batches["size"] * each + int(np.median(rest[sound]))
        return np.asarray(np.maximum(whole, 0), dtype=np.int64)
    typical = np.full(len(service), int(np.median(service[sound])), np.int64)
    for size in np.unique(batches["size"]):
        alike = sound & (batches["size"] == size)
        if np.count_nonzero(alike) >= _FEW:
            typical[batches["size"] == size] = int(np.median(service[alike]))
    return typical
