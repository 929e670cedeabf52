"""The ledger of a table of requests: measured parts, work by input, the queue, stalls, drift, the remainder.

Measured parts are used unmodified. A queue is inferred only if the recording confirms it (:mod:`queue_inference`);
otherwise its waits are part of the remainder, ``unexplained``.

A wait is divided as in latfix's own record: the wait that would remain with every service at reference is the
traffic's, the remainder belongs to the requests ahead. That remainder is divided in proportion to the time that each
cause added to the busy cycle so far. The exact division (:mod:`latfix.profilers.attribution.wait_attribution`)
differs little, but takes seconds per million requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, KnownCause
from latfix.formatting import from_ns, share
from latfix.profilers.causes.drift.trend_tests import best_step, rise_probability, squares_left
from latfix.profilers.evidence.telling_features import telling_features
from latfix.profilers.evidence.work_model import WorkModel, error_out_of_fold, fit_work_model
from latfix.profilers.over_time.level_shift import raised_stretch
from latfix.profilers.recordings.requests.accounts import MATERIAL, Accounts
from latfix.profilers.recordings.requests.queue_inference import (
    Queue,
    chance_wait_ns,
    grew_for_good,
    in_flight,
    infer_prompt_queue,
    infer_queue,
    waits_at_reference,
)
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.shared_stalls import in_log, in_streams
from latfix.queueing.two_stage_queue import MINUTE_NS
from latfix.statistics.change_points import rising_level

#: Requests that models are fitted to, and routes with a column of their own.
_SAMPLE, _ROUTES = 100_000, 24
#: Drift: windows and their least requests; the least rise as a share of a typical service, the p-value of a trend,
#: the share of the variance that a rising level explains, and the share of the rise that remains at the end.
_WINDOWS, _PER_WINDOW, _RISE, _SURE, _EXPLAINED, _LASTING = 24, 12, 0.1, 0.05, 0.6, 0.6
#: A backlog that grows for a quarter of the log, a minute at most, and at least so many services, is no burst.
_LEAST_SERVICES = 20
#: Inputs differ in any traffic: their cause is named beyond this share of p50.
_USUAL_OF_P50 = 0.1
#: The load up to which the wait that chance produces is simulated.
_BUSY = 0.6

PREFILL = KnownCause(
    "batching.prefill",
    "measured",
    "prompts of other requests computed in the shared batch",
    happened="all streams standing still while prompts of others were computed",
    behind="one whose batch computed prompts of other requests",
)
STALL = KnownCause(
    "stall.shared",
    "modelled",
    "all requests in service stood still together",
    happened="all requests in service standing still at one moment",
    behind="requests that stood still together",
)
LATE = KnownCause(
    "client.late",
    "measured",
    "the load generator sent it late",
    happened="the load generator sending requests late",
    behind="one that was sent late",
)


@dataclass(slots=True, kw_only=True)
class _Columns:
    """The ok requests of a table, and what is inferred about them; all ``(n,)`` nanoseconds."""

    arrival: Ints
    latency: Ints
    parts: dict[str, Ints]
    telling: tuple[str, ...]
    design_of: Callable[[Any], Floats]
    base: Ints
    stalled: dict[str, Ints] = field(default_factory=dict)
    wait: Ints | None = None
    traffic: Ints | None = None
    overload: Bools | None = None
    servers: int = 1
    slot_ns: float | None = None
    expected: Floats = field(default_factory=lambda: np.zeros(0))
    typical: float = 0.0
    drift: _Drift | None = None

    @property
    def service_ns(self) -> float:
        """Service of a quiet request, including its usual waits for dependencies."""
        return self.typical + sum(float(np.median(part)) for name, part in self.parts.items() if name != "dispatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drift:
    """A level that only rises: ``(w,)`` nanoseconds above the start at moments."""

    at_ns: Floats
    level: Floats
    step_ns: float | None

    def of(self, arrival: Ints) -> Floats:
        """Nanoseconds above the start."""
        if self.step_ns is not None:
            return np.where(arrival >= self.step_ns, self.level[-1], 0.0)
        return np.asarray(np.interp(arrival.astype(np.float64), self.at_ns, self.level))


def account_for_requests(table: RequestTable, *, tail_share: float, seed: int) -> Accounts:
    """The ledger of a table's requests that ended ok.

    :param tail_share: share of requests in the tail, for the wait that chance produces there.
    """
    columns = _columns(table)
    notes = list(table.notes)
    evidence: dict[str, str] = {}
    if not len(columns.latency):
        return _empty(table)
    _find_stalls(table, columns, evidence)
    _find_queue(table, columns, evidence, notes)
    _make_room(table, columns)
    model = _fit(columns)
    _find_log_stalls(table, columns, evidence)
    columns.drift = _find_drift(columns) if table.timed else None
    return _Ledger(table, columns, model, evidence, tail_share, seed).accounts(notes)


def _columns(table: RequestTable) -> _Columns:
    ok = table.ok
    rows: Any = slice(None) if ok.all() else np.flatnonzero(ok)
    parts = {name: np.maximum(column[rows], 0) for name, column in table.parts.items()}
    latency = table.latency_ns[rows]
    base = latency - sum(parts.values()) if parts else latency.copy()
    telling, design_of = _design(table, rows, base)
    return _Columns(
        arrival=table.arrival_ns[rows],
        latency=latency,
        parts=parts,
        telling=telling,
        design_of=design_of,
        base=base,
    )


def _design(table: RequestTable, rows: Any, base: Ints) -> tuple[tuple[str, ...], Callable[[Any], Floats]]:
    """Names of the features that predict service, and a function from a slice of ok requests to design columns."""
    features = {name: column[rows] for name, column in table.features.items()}
    n = len(table.arrival_ns[rows])
    step = max(n // _SAMPLE, 1)
    sample = {name: column[::step] for name, column in features.items()}
    service = base[::step].astype(np.float64)

    def error(chosen: Sequence[Floats]) -> float:
        usable = np.ones(len(service), dtype=bool)
        return error_out_of_fold(np.column_stack([np.ones(len(service)), *chosen]), service, usable)

    names = telling_features(sample, np.arange(-(-n // step)), [service], error) if n else ()
    route = None if table.route is None else table.route[rows]
    common = np.argsort(-np.bincount(route[::step]))[:_ROUTES] if route is not None and n else np.zeros(0, np.int64)

    def design(part: Any) -> Floats:
        columns = [np.ones(len(table.arrival_ns[rows][part]))]
        columns += [np.nan_to_num(features[name][part].astype(np.float64), nan=0.0) for name in names]
        if route is not None:
            columns += [(route[part] == code).astype(np.float64) for code in common.tolist()]
        return np.stack(columns, axis=1)

    return names, design


def _find_stalls(table: RequestTable, columns: _Columns, evidence: dict[str, str]) -> None:
    gaps = table.gaps
    if gaps is None or not table.timed:
        return
    first = None if table.first_ns is None else np.where(table.first_ns >= 0, table.arrival_ns + table.first_ns, -1)
    ended = table.arrival_ns + np.maximum(table.latency_ns, 0)
    stalls = in_streams(len(table), gaps, first, ended, table.steps)
    ok = table.ok
    columns.stalled = {PREFILL.id: stalls.prefill_ns[ok], STALL.id: stalls.other_ns[ok]}
    for cause, which in ((PREFILL.id, stalls.by_prefill), (STALL.id, ~stalls.by_prefill)):
        events = stalls.events[which]
        if len(events):
            evidence[cause] = (
                f"{len(events)} times most open streams stood still together, "
                f"{from_ns(float(np.median(events[:, 1] - events[:, 0])))} in the median (usually "
                f"{from_ns(stalls.usual_ns)} from chunk to chunk), "
                + (
                    "each ended by a prompt's first token."
                    if cause == PREFILL.id
                    else "without a prompt at that time."
                )
            )
    columns.base = columns.base - sum(columns.stalled.values())


def _find_queue(table: RequestTable, columns: _Columns, evidence: dict[str, str], notes: list[str]) -> None:
    """The wait for service: measured, or inferred from arrivals and ends."""
    if "queue" in columns.parts:
        wait = columns.parts.pop("queue")
        begin = columns.arrival + wait
        order = np.argsort(begin, kind="stable")
        serving = in_flight(begin[order], (columns.latency - wait)[order]) + 1
        columns.wait, columns.servers = wait, max(int(np.quantile(serving, 0.9)), 1)
        evidence["traffic.burst"] = f"the wait is measured; {columns.servers} requests were served at once"
        return
    if not table.timed:
        notes.append("Arrivals have no times: a queue, bursts and drift cannot be detected.")
        return
    if table.sampled:
        notes.append("Waits in a queue are not separated from service: that needs every request, not a sample.")
        return
    queue = None
    if table.first_ns is None:
        dispatch = columns.parts.get("dispatch", 0)
        sent = columns.arrival + dispatch
        in_order = bool((np.diff(sent) >= 0).all())
        queue = infer_queue(sent, columns.latency - dispatch, table.resolution_ns) if in_order else None
    elif (table.first_ns[table.ok] >= 0).all():
        queue = infer_prompt_queue(columns.arrival, table.first_ns[table.ok])
    _apply_queue(table, columns, queue, evidence, notes)


def _apply_queue(
    table: RequestTable, columns: _Columns, queue: Queue | None, evidence: dict[str, str], notes: list[str]
) -> None:
    if queue is None:
        why = "the recording does not fit a first-come, first-served queue with a fixed number of servers"
        if table.resolution_ns > float(np.median(columns.latency)) / 2:
            why = f"arrivals are known to {from_ns(table.resolution_ns)} only"
        elif table.first_ns is not None:
            why = "streams share a batch, and the recording does not show when each began"
        notes.append(f"Waits in a queue are not separated from service: {why}.")
        return
    columns.wait, columns.servers = queue.wait_ns, queue.servers
    columns.base, columns.slot_ns = columns.base - queue.wait_ns, queue.slot_ns
    if queue.slot_ns is not None:
        evidence["traffic.burst"] = (
            f"inferred: prompts were computed in batches, one after the other; {share(queue.waited)} of requests "
            f"waited for batches ahead; one request occupies the engine for {from_ns(queue.slot_ns)}."
        )
        return
    evidence["traffic.burst"] = (
        f"inferred: {queue.servers} served at once, first come, first served; {share(queue.waited)} waited, "
        f"with the same service as those that found an idle server (within {queue.misfit:.2f}x)"
    )


def _make_room(table: RequestTable, columns: _Columns) -> None:
    """Cap parts so that they do not overlap the wait, and add the wait for something outside as a part."""
    if columns.wait is not None and columns.parts:
        remaining = columns.latency - columns.wait
        for name, part in columns.parts.items():
            columns.parts[name] = np.minimum(part, remaining)
            remaining = remaining - columns.parts[name]
        columns.base = remaining - sum(columns.stalled.values())
    if table.idle_ns is not None and table.idle_alone is not None:
        ok = table.ok
        idle = table.idle_ns[ok]
        outside = np.where(table.idle_alone[ok], idle, 0) if columns.wait is None else idle - columns.wait
        part = columns.parts["external.dependency"] = np.clip(outside, 0, np.maximum(columns.base, 0))
        columns.base = columns.base - part


def _fit(columns: _Columns) -> WorkModel:
    """Fit the service that inputs need, and set the expectation of each request."""
    n = len(columns.base)
    step = max(n // _SAMPLE, 1)
    rows = slice(None, None, step)
    design = columns.design_of(rows)
    time = np.maximum(columns.base[rows], 0).astype(np.float64)
    model = fit_work_model(design, time, time > 0)
    expected = np.empty(n)
    fold = model.folds_of(n)
    at_once = 500_000
    for first in range(0, n, at_once):
        part = slice(first, first + at_once)
        expected[part] = model.predict(columns.design_of(part), fold[part])
    columns.expected, columns.typical = expected, float(np.median(expected))
    return model


def _find_log_stalls(table: RequestTable, columns: _Columns, evidence: dict[str, str]) -> None:
    usual = columns.service_ns
    coarse = table.resolution_ns > usual / 2
    if table.gaps is not None or not table.timed or table.sampled or coarse:
        return
    begin = columns.arrival + (columns.wait if columns.wait is not None else 0)
    end = columns.arrival + columns.latency
    lost, events = in_log(begin, end, columns.base - columns.expected, usual)
    if not len(events):
        return
    columns.stalled = {STALL.id: lost}
    columns.base = columns.base - lost
    evidence[STALL.id] = (
        f"{len(events)} times no request ended although several were being served, "
        f"{from_ns(float(np.median(events[:, 1] - events[:, 0])))} in the median (a request takes "
        f"{from_ns(usual)}); the recording does not show what ran then."
    )


def _find_drift(columns: _Columns) -> _Drift | None:
    """A level of service, beyond the need of inputs, that rises and stays."""
    n = len(columns.base)
    step = max(n // _SAMPLE, 1)
    beyond = (columns.base[::step] - columns.expected[::step]).astype(np.float64)
    at = columns.arrival[::step].astype(np.float64)
    count = min(_WINDOWS, len(beyond) // _PER_WINDOW)
    if count < 8:
        return None
    edges = np.linspace(0, len(beyond), count + 1).astype(np.int64)
    values = np.array([float(np.median(beyond[a:b])) for a, b in pairwise(edges)])
    times = np.array([float(at[a:b].mean()) for a, b in pairwise(edges)])
    quarter = max(count // 4, 1)
    before, after = float(values[:quarter].mean()), float(values[-quarter:].mean())
    level = rising_level(values)
    spread = float(((values - values.mean()) ** 2).sum())
    rest = float(((values - level) ** 2).sum())
    stays = float(np.median(values[-max(count // 8, 2) :])) >= before + _LASTING * (after - before)
    if after - before <= _RISE * columns.typical or rest > (1 - _EXPLAINED) * spread or not stays:
        return None
    if rise_probability(values) > _SURE:
        return None
    place, residual = best_step(values)
    if residual < 0.5 * squares_left(values, times):
        rise = float(np.median(values[place:]) - np.median(values[:place]))
        return _Drift(at_ns=times, level=np.full(count, rise), step_ns=float(at[edges[place]]))
    return _Drift(at_ns=times, level=level - level[0], step_ns=None)


@dataclass(slots=True)
class _Ledger:
    """The columns, and the ledger's entries made from them."""

    table: RequestTable
    columns: _Columns
    model: WorkModel
    evidence: dict[str, str]
    tail_share: float
    seed: int
    causes: tuple[KnownCause, ...] = ()
    median_of: dict[str, int] = field(default_factory=dict)
    base_level: int = 0

    def accounts(self, notes: list[str]) -> Accounts:
        columns = self.columns
        self._find_traffic()
        level = columns.expected if columns.drift is None else columns.expected + columns.drift.of(columns.arrival)
        # The median residual of the model belongs to a quiet request.
        self.base_level = round(columns.typical + float(np.median(columns.base - level)))
        self.median_of = {name: round(float(np.median(part))) for name, part in columns.parts.items()}
        self.causes = self._known()
        reference = self.base_level + sum(self.median_of.values())
        nameable = {cause.id: MATERIAL for cause in self.causes if cause.id != UNEXPLAINED}
        self._sentences(notes)
        p50 = float(np.median(columns.latency)) / 1e6
        floors = {"input.size": _USUAL_OF_P50 * p50, "traffic.burst": self._chance_ms()}
        return Accounts(
            arrival_ns=columns.arrival,
            latency_ns=columns.latency,
            reference_ns=reference,
            causes=self.causes,
            entries=self.entries,
            evidence=self.evidence,
            nameable=nameable,
            floors_ms=floors,
            stages=self._stages(),
            models={"service": _quality(self.model)} if self.model.samples else {},
            ids=tuple(np.array(self.table.ids, dtype=object)[self.table.ok].tolist()) if self.table.ids else (),
            timed=self.table.timed,
            notes=tuple(notes),
            unread=self.table.unread,
        )

    def _find_traffic(self) -> None:
        columns = self.columns
        if columns.wait is None:
            return
        service = max(columns.slot_ns or columns.service_ns, 1.0)
        at_rest = waits_at_reference(columns.arrival, service, columns.servers)
        # What waits for prompts waits for those of others: nothing else holds them up.
        columns.traffic = np.minimum(at_rest, columns.wait) if columns.slot_ns is None else columns.wait
        lasting = max(min(MINUTE_NS, float(np.ptp(columns.arrival)) / 4), _LEAST_SERVICES * service)
        columns.overload = grew_for_good(columns.arrival, at_rest, lasting)

    def _chance_ms(self) -> float:
        columns, n = self.columns, len(self.columns.arrival)
        span = float(np.ptp(columns.arrival)) if n else 0.0
        if columns.wait is None or span <= 0:
            return 0.0
        service = columns.slot_ns or columns.service_ns
        load = n / span * service / columns.servers
        if not 0 < load < _BUSY:
            return 0.0
        return float(chance_wait_ns(n, span, service, columns.servers, self.tail_share, self.seed)) / 1e6

    def _known(self) -> tuple[KnownCause, ...]:
        columns = self.columns
        result: list[KnownCause] = []
        if columns.wait is not None:
            result += [CATALOGUE["traffic.burst"], CATALOGUE["traffic.overload"]]
        if self.model.accepted:
            result.append(CATALOGUE["input.size"])
        result += [cause for cause in (PREFILL, STALL) if cause.id in columns.stalled]
        result += [LATE if name == "dispatch" else _dependency(name) for name in columns.parts]
        if columns.drift is not None:
            result.append(CATALOGUE["drift.unknown"])
        return (*result, CATALOGUE[UNEXPLAINED])

    def extras(self, part: slice) -> dict[str, Ints]:
        """By cause, the service of each request beyond the reference, for a slice of requests."""
        columns = self.columns
        result: dict[str, Ints] = {}
        if self.model.accepted:
            result["input.size"] = np.rint(columns.expected[part] - columns.typical).astype(np.int64)
        for cause, lost in columns.stalled.items():
            result[cause] = lost[part]
        for name, values in columns.parts.items():
            result[_part_id(name)] = values[part] - self.median_of[name]
        if columns.drift is not None:
            result["drift.unknown"] = np.rint(columns.drift.of(columns.arrival[part])).astype(np.int64)
        known = result.get("input.size", 0) + result.get("drift.unknown", 0)
        result[UNEXPLAINED] = columns.base[part] - self.base_level - known
        return result

    def entries(self, part: slice) -> tuple[Ints, Ints]:
        """Own and propagated parts of a slice of requests."""
        columns = self.columns
        m = len(columns.latency[part])
        place = {cause.id: k for k, cause in enumerate(self.causes)}
        own, propagated = np.zeros((len(place), m), np.int64), np.zeros((len(place), m), np.int64)
        for cause, amount in self.extras(part).items():
            own[place[cause]] = amount
        if columns.wait is None or columns.traffic is None or columns.overload is None:
            return own, propagated
        traffic, overload = columns.traffic[part], columns.overload[part]
        own[place["traffic.burst"]] = np.where(overload, 0, traffic)
        own[place["traffic.overload"]] = np.where(overload, traffic, 0)
        self._divide(part, columns.wait[part] - traffic, place, propagated)
        return own, propagated

    def _divide(self, part: slice, waited: Ints, place: Mapping[str, int], propagated: Ints) -> None:
        """The wait beyond the traffic's, by what each cause added to the busy cycle so far."""
        columns = self.columns
        assert columns.wait is not None
        first = part.start or 0
        empty = np.flatnonzero(columns.wait[: first + 1] <= 0)
        since = int(empty[-1]) if len(empty) else 0
        whole = slice(since, first + len(waited))
        begins = columns.wait[whole] <= 0
        begins[0] = True
        start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        added = {}
        for cause, amount in self.extras(whole).items():
            running = np.concatenate([[0], np.cumsum(amount)])
            added[cause] = np.maximum(running[:-1] - running[start], 0)[first - since :]
        total = np.maximum(sum(added.values()), 1).astype(np.float64)
        for cause, amount in added.items():
            propagated[place[cause]] = np.floor(waited * (amount / total)).astype(np.int64)
        propagated[place[UNEXPLAINED]] += waited - propagated.sum(axis=0)

    def _stages(self) -> dict[str, Ints]:
        columns = self.columns
        stages = dict(columns.parts)
        if columns.wait is not None:
            stages["queue"] = columns.wait
        if stages or self.table.first_ns is not None or self.table.stages:
            stages["service"] = columns.latency - sum(stages.values())
        if self.table.stages:
            inside = {name: column[self.table.ok] for name, column in self.table.stages.items()}
            known = np.all([column >= 0 for column in inside.values()], axis=0)
            stages["other"] = np.where(known, np.maximum(stages["service"] - sum(inside.values()), 0), -1)
            stages |= inside
        if self.table.first_ns is not None:
            stages["first token"] = self.table.first_ns[self.table.ok]
        return stages

    def _sentences(self, notes: list[str]) -> None:
        columns, evidence = self.columns, self.evidence
        evidence["traffic.overload"] = evidence.get("traffic.burst", "")
        names = ", ".join((*columns.telling, *(["route"] if self.table.route is not None else [])))
        if self.model.accepted:
            evidence["input.size"] = (
                f"service follows {names} (R² {self.model.r2:.2f}): {from_ns(columns.typical)} in the median, "
                f"{from_ns(float(np.quantile(columns.expected, 0.99)))} at p99."
            )
        elif names and self.model.samples:
            notes.append(f"Service does not follow {names}: nothing is attributed to inputs.")
        for name, part in columns.parts.items():
            evidence[_part_id(name)] = (
                f"measured: {from_ns(float(np.median(part)))} in the median, "
                f"{from_ns(float(np.quantile(part, 0.99)))} at p99."
            )
        if columns.drift is not None:
            when = f" at {columns.drift.step_ns / 1e9:.0f} s, at once" if columns.drift.step_ns is not None else ""
            evidence["drift.unknown"] = (
                f"service for the same inputs rose by {from_ns(float(columns.drift.level[-1]))}{when}."
            )
        evidence[UNEXPLAINED] = self._remainder()

    def _remainder(self) -> str:
        columns = self.columns
        n = len(columns.base)
        step = max(n // 20_000, 1)
        rest = self.extras(slice(0, n, step))[UNEXPLAINED].astype(np.float64)
        stretch = raised_stretch(rest - rest.min()) if self.table.timed else None
        text = "nothing in the recording accounts for it"
        if stretch is None:
            return f"{text}."
        origin, last = columns.arrival[0], min(stretch.last * step, n - 1)
        begin, end = (float(columns.arrival[row] - origin) / 1e9 for row in (stretch.first * step, last))
        return f"{text}; it is larger from {begin:.3g} s to {end:.3g} s."


def _dependency(name: str) -> KnownCause:
    if name in CATALOGUE:
        return CATALOGUE[name]
    return KnownCause(
        _part_id(name),
        "measured",
        f"waited for {name}",
        happened=f"waiting for {name}",
        behind=f"one that waited for {name}",
    )


def _part_id(name: str) -> str:
    return LATE.id if name == "dispatch" else name if name in CATALOGUE else f"dependency.{name}"


def _quality(model: WorkModel) -> dict[str, Any]:
    return {
        "accepted": model.accepted,
        "r2": round(model.r2, 4),
        "residual_mad_ms": model.residual_mad / 1e6,
        "samples": model.samples,
    }


def _empty(table: RequestTable) -> Accounts:
    none = np.zeros(0, np.int64)
    return Accounts(
        arrival_ns=none,
        latency_ns=none,
        reference_ns=0,
        causes=(CATALOGUE[UNEXPLAINED],),
        entries=lambda _part: (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64)),
        evidence={},
        nameable={},
        timed=table.timed,
        notes=table.notes,
    )
