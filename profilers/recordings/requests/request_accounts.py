"""The ledger of a table of requests: measured parts, work by input, the queue, stalls, drift, the remainder.

Measured parts are used unmodified. A queue is inferred only if the recording confirms it
(:mod:`latfix.queueing.inference.queue_inference`); otherwise its waits are part of the remainder, ``unexplained``.

A wait is divided as in latfix's own record: the wait that would remain with every service at reference is the
traffic's, the remainder belongs to the requests ahead. That remainder is divided in proportion to the time that each
cause added to the busy cycle so far. The exact division (:mod:`latfix.profilers.attribution.wait_attribution`)
differs little, but takes seconds per million requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, KnownCause
from latfix.formatting import counted, from_ns, rate, share, shown
from latfix.profilers.attribution.wait_attribution import grew_for_good
from latfix.profilers.causes.drift.trend_tests import Rise, best_step, met_few, rises, squares_left
from latfix.profilers.evidence.predictive_features import likeliest_features, numeric, possible_features
from latfix.profilers.evidence.run_baselines import ordinary_mean_of_wide
from latfix.profilers.evidence.work_model import WorkModel, fit_work_model, folds_of
from latfix.profilers.evidence.work_shapes import Sample, Term, earned_terms, of_requests
from latfix.profilers.recordings.requests.findings import DOMINANT, MATERIAL, Accounts
from latfix.profilers.recordings.requests.recorded_waits import Log, Wait, closed_note, find_wait
from latfix.profilers.recordings.requests.remainder import (
    ATTEMPT,
    NOTHING_KNOWN,
    Codes,
    attempt_words,
    culprit_among,
    remainder_words,
    rhythm,
)
from latfix.profilers.recordings.requests.request_table import RETRY, RequestTable
from latfix.profilers.recordings.requests.shared_batches import FittedBatches
from latfix.profilers.recordings.requests.shared_stalls import in_log, in_streams, times_words
from latfix.profilers.recordings.requests.shared_steps import shared_steps
from latfix.profilers.recordings.requests.text_source import LONGEST_NS, UNITS_NS, map_option
from latfix.queueing.closed_loop import in_flight
from latfix.queueing.inference.queue_inference import chance_wait_ns, served_from
from latfix.queueing.two_stage_queue import MINUTE_NS
from latfix.statistics.change_points import rising_level
from latfix.statistics.distributions import poisson_at_least

#: A column is a part of the latency if it fits into so many, but for rounding, which grow by as much, or nearly.
_WITHIN, _ROUNDED, _AS_MUCH = 0.995, 1.01, 0.1
#: Requests by which the terms of models are selected, and that are predicted at once; routes with a column of their
#: own; the most features that are used without selection. All bound time and memory.
_SELECTED, _AT_ONCE, _ROUTES, _FEW = 4_000, 500_000, 24, 3
#: Requests whose remainder is searched for what stands out.
_SEARCHED = 20_000
#: Stalls are claimed if they cost this many times as much as in the first services in random order, and in that of
#: neighbors, and if a random order has so many that cost nearly as much with at most this probability. Short logs are
#: put in so many orders.
_TOGETHER, _SHUFFLED, _NEIGHBORS, _CHANCE, _MOST_TIMES, _FEWER_TIMES = 2.0, 200_000, 32, 0.01, 50, 8
#: Drift: windows and their least requests; the least rise as a share of a typical service.
_WINDOWS, _PER_WINDOW, _RISE = 24, 12, 0.1
#: A backlog that grows for a quarter of the log, a minute at most, and at least so many services, is no burst.
_LEAST_SERVICES = 20
#: Arrivals at most this share above capacity are as many as can be served.
_SAME_RATE = 0.02
#: Inputs differ in any traffic: their cause is named beyond this share of p50.
_USUAL_OF_P50 = 0.1
#: A route is named from this many times a typical service.
_SLOWER = 1.5
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
BATCH_SIZE = CATALOGUE["batching.size"]
#: Parts of the latency outside of the service, by their names.
PARTS = {
    "dispatch": KnownCause(
        "client.late",
        "measured",
        "the load generator sent it late",
        happened="the load generator sending requests late",
        behind="one that was sent late",
    ),
    "client.queue": KnownCause(
        "client.queue",
        "measured",
        "the client itself held it back: its own queue, or no free connection",
        happened="the client's own queue, or no free connection",
        behind="one that the client held back",
    ),
    "network.transfer": KnownCause(
        "network.transfer",
        "measured",
        "the request or the answer took longer to transfer",
        happened="transferring the request and the answer",
        behind="one that took long to transfer",
    ),
    RETRY: KnownCause(
        "dependency.retry",
        "measured",
        "waited for a server that did not answer well, before it was sent to the next",
        happened="waiting for a server before the one that answered",
        behind="one that was sent to several servers",
    ),
}
FIRST_BYTE = KnownCause(
    "service.first_byte",
    "measured",
    "waited for the first byte of the answer: the service, or the way there and back",
    happened="waiting for the first byte of the answer (the service, or the way there and back)",
    behind="one that waited for the first byte of its answer",
)


#: Lost nanoseconds ``(n,)`` by cause, and the evidence of each.
_Stalls = tuple[dict[str, Ints], dict[str, str]]


def account_for_requests(table: RequestTable, *, tail_share: float, seed: int) -> Accounts:
    """The ledger of a table's requests that ended ok.

    :param tail_share: share of requests in the tail, for the wait that chance produces there.
    """
    if not table.ok.any():
        return _empty(table)
    log = Log.of(table)
    stalled, evidence = _stalls_of_streams(log)
    wait = find_wait(log)
    left = _without_waits(log, wait, stalled)
    service = _fit_service(log, wait, left)
    of_log, why = _stalls_of_log(log, wait, left, service)
    left = replace(left, base=left.base - sum(of_log.values()), stalled=stalled | of_log)
    levels = _levels(log, wait, left, service)
    traffic = _traffic(log, wait, service.batches, levels)
    division = _Division(log=log, wait=wait, left=left, service=service, levels=levels, traffic=traffic)
    return _accounts(division, {**evidence, **wait.known, **why}, tail_share, seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What is left of the latency for service.

    :param base: ``(n,)`` nanoseconds without parts, waits and stalls.
    :param parts: ``(n,)`` each, measured parts that do not overlap the wait.
    :param stalled: ``(n,)`` each, time lost in shared stalls, by cause.
    """

    base: Ints
    parts: Mapping[str, Ints]
    stalled: Mapping[str, Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """The service that inputs need. Nanoseconds.

    :param terms: that predict it besides routes.
    :param expected: ``(n,)`` what each request's input needs; ``typical`` the median.
    :param sharing: ``(n,)`` beyond it because others share the batch; ``None`` without batches.
    :param of_quiet: of a quiet request, including its usual waits for dependencies.
    """

    terms: tuple[Term, ...]
    model: WorkModel
    batches: FittedBatches | None
    expected: Floats
    sharing: Ints | None
    typical: float
    of_quiet: float
    notes: tuple[str, ...]

    def beyond(self, left: _Left) -> Floats:
        """``(n,)`` service beyond what inputs and a shared batch explain."""
        return left.base - self.expected - (0 if self.sharing is None else self.sharing)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Levels:
    """The service of a quiet request. Nanoseconds.

    :param drift: how its level rises over the log; ``None`` if it does not.
    :param base: without its parts, whose medians are ``parts``.
    :param outside: median of what the wait for an answer's first byte does not contain.
    :param scatter: mean of the ordinary scatter of service around the level.
    :param occupied: for which a request at reference occupies its server.
    """

    drift: Rise | None
    base: int
    parts: Mapping[str, int]
    outside: int
    scatter: int
    occupied: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """The wait that remains with every service at reference, ``(n,)``; ``overload`` True if it grew for good."""

    wait: Ints
    overload: Bools


def _stalls_of_streams(log: Log) -> _Stalls:
    """Stalls that open streams share."""
    table, gaps = log.every, log.every.gaps
    if gaps is None or not table.timed:
        return {}, {}
    first = None if table.first_ns is None else np.where(table.first_ns >= 0, table.arrival_ns + table.first_ns, -1)
    ended = table.arrival_ns + np.maximum(table.latency_ns, 0)
    stalls = in_streams(table.arrival_ns, gaps, first, ended, table.steps)
    lost = {PREFILL.id: stalls.prefill_ns[table.ok], STALL.id: stalls.other_ns[table.ok]}
    evidence = {}
    for cause, which, ending in (
        (PREFILL.id, stalls.by_prefill, "each ended by a prompt's first token."),
        (STALL.id, ~stalls.by_prefill, "without a prompt at that time."),
    ):
        events = stalls.events[which]
        if len(events):
            evidence[cause] = (
                f"{times_words(events[:, 0])} most open streams stood still together, "
                f"{from_ns(float(np.median(events[:, 1] - events[:, 0])))} in the median (usually "
                f"{from_ns(stalls.usual_ns)} from chunk to chunk), {ending}"
            )
    shared = None if first is None else shared_steps(gaps, first, ended, stalls.usual_ns)
    if shared is not None:
        lost[BATCH_SIZE.id] = shared.lost_ns[table.ok]
        evidence[BATCH_SIZE.id] = (
            f"each further open stream adds {from_ns(shared.each_ns)} to the {from_ns(stalls.usual_ns)} from "
            f"chunk to chunk; {counted(shared.usual, 'stream')} are usually open."
        )
    return lost, evidence


def _without_waits(log: Log, wait: Wait, stalled: Mapping[str, Ints]) -> _Left:
    """The latency without waits, stalls and parts; these are capped so that they do not overlap the wait.

    The wait for something outside, if idle time shows one, becomes a part.
    """
    table, parts = log.table, dict(log.parts)
    base = log.base - sum(stalled.values()) - wait.inferred_ns
    if wait.cores is not None and "host.contention" in parts:  # also waits for threads of the service
        parts["host.contention"] = np.maximum(parts["host.contention"] - wait.inferred_ns, 0)
    if wait.ns is not None and parts:
        base = log.latency - wait.ns - wait.window
        for name, part in parts.items():
            parts[name] = np.minimum(part, base)
            base = base - parts[name]
        base = base - sum(stalled.values())
    if table.idle_ns is not None and table.idle_alone is not None:
        queued = wait.queued
        outside = np.where(table.idle_alone, table.idle_ns, 0) if queued is None else table.idle_ns - queued
        part = parts["external.dependency"] = np.clip(outside, 0, np.maximum(base, 0))
        base = base - part
    return _Left(base=base, parts=parts, stalled=stalled)


def _fit_service(log: Log, wait: Wait, left: _Left) -> _Service:
    """Fit the service that inputs need."""
    terms, design_of, notes = _design(log, wait, left.base)
    base, batches, sharing = left.base, None, None
    if wait.batches is not None:
        batches, expected, sharing = wait.batches.fit(design_of, base)
        model = batches.model
    else:
        n, some = len(base), slice(None, None, log.step)
        time = np.maximum(base[some], 0).astype(np.float64)
        model = fit_work_model(design_of(some), time, time > 0)
        expected, fold = np.empty(n), folds_of(n)
        for first in range(0, n, _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            expected[part] = np.minimum(model.predict(design_of(part), fold[part]), LONGEST_NS)
    typical = float(np.median(expected))
    usual = sum(float(np.median(part)) for name, part in left.parts.items() if name != "dispatch")
    return _Service(
        terms=terms,
        model=model,
        batches=batches,
        expected=expected,
        sharing=sharing,
        typical=typical,
        of_quiet=typical + usual,
        notes=notes,
    )


def _design(log: Log, wait: Wait, base: Ints) -> tuple[tuple[Term, ...], Callable[[Any], Floats], tuple[str, ...]]:
    """The terms that predict service, a function from a slice of requests to design columns, and notes."""
    table = log.table
    # What no size is would dwarf all others.
    features = {
        name: np.where(np.abs(column) <= LONGEST_NS, column, np.nan)
        for name, column in {**table.features, **table.possible}.items()
    }
    sample = of_requests(base, _SELECTED) if wait.batches is None else wait.batches.sampled(base, _SELECTED)
    route = table.route
    common = [] if route is None else np.argsort(-np.bincount(route[:: log.step]))[:_ROUTES].tolist()

    def kinds(part: Any) -> dict[str, Floats]:
        codes = () if route is None else route[part]
        return {f"route {table.routes[code]}": np.asarray(codes == code, dtype=np.float64) for code in common}

    values, routes = possible_features(features, sample.rows), kinds(sample.rows)
    values = {name: values[name] for name in likeliest_features(values, [sample.time_ns[sample.unit]])}
    named = [name for name in values if name in table.features]
    given = [Term((name,)) for name in (*routes, *(named if len(named) <= _FEW else ()))]
    terms, notes = earned_terms(values, routes, given, sample), list[str]()
    if times := dict(_times_among(log, terms, {**values, **routes}, sample)):
        notes += [
            f"{name} is probably a part of the latency in {unit}, so it is not used as an input of the "
            f"work. If it is a wait for something, add {map_option(name, unit)}."
            for name, unit in times.items()
        ]
        values = {name: x for name, x in values.items() if name not in times}
        terms = earned_terms(values, routes, given, sample)
    terms = terms[len(routes) :]
    used = {name for term in terms for name in term.inputs} & set(features)
    if found := [name for name in table.possible if name in used]:
        notes.append(
            f"Columns used as inputs of the work, because service follows them: {', '.join(found)}. To choose "
            f"others, name them: {map_option(found[0])}."
        )

    def design(part: Any) -> Floats:
        each = {name: numeric(features[name], part) for name in used} | kinds(part)
        columns = [np.ones(len(base[part])), *(term.column(each) for term in terms)]
        return np.stack([*columns, *(each[name] for name in routes)], axis=1)

    return terms, design, tuple(notes)


def _times_among(
    log: Log, terms: Sequence[Term], values: Mapping[str, Floats], sample: Sample
) -> Iterator[tuple[str, str]]:
    """Possible inputs that are parts of the latency, and in which unit: service grows by as much."""
    for name in dict.fromkeys(name for term in terms for name in term.inputs if name in log.table.possible):
        others = [term.column(values) for term in terms if name not in term.inputs]
        design = sample.design_of(np.column_stack([np.ones(len(sample.rows)), *others, values[name]]))
        grows = fit_work_model(design, sample.time_ns, sample.time_ns > 0).coefficients.mean(axis=0)[-1]
        for unit in ("ns", "us", "ms", "s"):
            within = values[name] * UNITS_NS[unit] <= _ROUNDED * log.latency[sample.rows]
            if abs(float(grows) / UNITS_NS[unit] - 1) <= _AS_MUCH and np.mean(within) >= _WITHIN:
                yield name, unit


def _stalls_of_log(log: Log, wait: Wait, left: _Left, service: _Service) -> _Stalls:
    """Times in which no request of a log without streams ended."""
    table, usual = log.table, service.of_quiet
    if table.gaps is not None or not log.complete or table.resolution_ns > usual / 2:
        return {}, {}
    if service.batches is not None:
        lost, count = service.batches.standstills()
        if not count:
            return {}, {}
        return {STALL.id: lost}, {
            STALL.id: f"{counted(count, 'batch')} took {from_ns(float(np.median(lost[lost > 0])))} longer than its "
            "size and inputs explain, for all members together: a stall, or a member that needed more work; the "
            "recording does not show which."
        }
    begin = log.arrival + (0 if wait.queued is None else wait.queued)
    beyond = service.beyond(left)
    lost, events, cost = in_log(begin, log.arrival + log.latency, beyond, usual)
    if not len(events):
        return {}, {}
    # In any order, and among neighbors: services may be longer for a while without standing still together.
    n, rng = min(len(begin), _SHUFFLED), np.random.default_rng(0)
    times = min(_SHUFFLED // n, _MOST_TIMES)
    orders = [rng.permutation(n) for _ in range(times)]
    moved = [np.arange(n) + rng.uniform(0, _NEIGHBORS, n) for _ in range(min(times, _FEWER_TIMES))]

    def lost_in(order: Ints) -> Ints:
        return in_log(*_reordered(log, wait, begin, order), beyond[: len(order)][order], usual)[2]

    any_order = [lost_in(order) for order in orders]
    near = [lost_in(np.argsort(places, kind="stable")) for places in moved]
    chance = max(float(np.mean([each.sum() for each in costs])) for costs in (any_order, near))
    alike = np.count_nonzero(np.concatenate(any_order) >= np.median(cost) / _TOGETHER) / times * len(begin) / n
    if lost[:_SHUFFLED].sum() < _TOGETHER * chance or poisson_at_least(len(events), alike) > _CHANCE:
        return {}, {}
    return {STALL.id: lost}, {
        STALL.id: f"{times_words(events[:, 0])} no request ended although several "
        f"were being served, {from_ns(float(np.median(events[:, 1] - events[:, 0])))} in the median (a request "
        f"takes {from_ns(usual)}); the recording does not show what ran then."
    }


def _reordered(log: Log, wait: Wait, begin: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Begin and end of the first services if they came in another order: long ones coincide by chance then."""
    rows = slice(0, len(order))
    service = (log.arrival + log.latency - begin)[rows][order]
    if wait.queued is not None:
        begin = served_from(log.arrival[rows], np.maximum(service - wait.outside_ns, 0), wait.servers)
    elif log.closed is not None and log.closed.known_by == "steady":  # like so many servers that are never idle
        begin = served_from(np.zeros_like(service), service, log.closed.users)
    else:
        begin = begin[rows]
    return begin, begin + service


def _drift(log: Log, wait: Wait, left: _Left, service: _Service) -> Rise | None:
    """A level of service, beyond the need of inputs, that rises and stays."""
    rows = np.arange(0, len(left.base), log.step)
    if wait.ns is None and log.table.timed:  # only those are comparable that met few others
        met = in_flight(log.arrival, log.latency)[rows]
        rows = rows[met_few(log.arrival[rows], met, np.ones(len(rows), bool))]
    beyond = service.beyond(left)[rows].astype(np.float64)
    at = log.arrival[rows].astype(np.float64)
    count = min(_WINDOWS, len(beyond) // _PER_WINDOW)
    if not log.table.timed or count < 8:
        return None
    edges = np.linspace(0, len(beyond), count + 1).astype(np.int64)
    values = np.array([float(np.median(beyond[a:b])) for a, b in pairwise(edges)])
    times = np.array([float(at[a:b].mean()) for a, b in pairwise(edges)])
    if not rises(values, _RISE * service.typical):
        return None
    place, residual = best_step(values)
    if residual < 0.5 * squares_left(values, times):
        rise = float(np.median(values[place:]) - np.median(values[:place]))
        return Rise(times, np.full(count, rise), float(at[edges[place]]))
    level = rising_level(values)
    return Rise(times, level - level[0], None)


def _levels(log: Log, wait: Wait, left: _Left, service: _Service) -> _Levels:
    drift, rest = _drift(log, wait, left, service), service.beyond(left)
    if drift is not None:
        rest = rest - drift.at(log.arrival)
    # The median residual of the model belongs to a quiet request.
    base = round(service.typical + float(np.median(rest)))
    rest = rest[:: log.step] - (base - service.typical)
    scatter = round(ordinary_mean_of_wide(rest / max(service.of_quiet, 1.0)) * service.of_quiet)
    return _Levels(
        drift=drift,
        base=base,
        parts={name: round(float(np.median(part))) for name, part in left.parts.items()},
        outside=0 if log.outside is None else round(float(np.median(log.outside))),
        scatter=scatter,
        occupied=max(wait.slot_ns or service.of_quiet + scatter - wait.outside_ns, 1.0),
    )


def _traffic(log: Log, wait: Wait, batches: FittedBatches | None, levels: _Levels) -> _Traffic | None:
    """The wait that remains with every service at reference; ``None`` if no wait is known."""
    if wait.ns is None:
        return None
    occupied = levels.occupied
    if batches is not None:
        at_rest = batches.waits_at_rest(log.arrival, levels.scatter)
        occupied = float(batches.by_size[-1]) + levels.scatter
    else:
        at_rest = wait.at_rest(log.arrival, occupied)
    if log.closed is not None:  # the next arrival depends on the answers: those ahead count
        ahead = np.maximum(in_flight(log.arrival, log.latency) - wait.servers + 1, 0)
        at_rest = np.rint(ahead * (occupied / wait.servers)).astype(np.int64)
    lasting = max(min(MINUTE_NS, float(np.ptp(log.arrival)) / 4), _LEAST_SERVICES * occupied)
    # The batch in progress is no backlog.
    backlog_ns = at_rest if batches is None else np.maximum(at_rest - round(occupied), 0)
    if wait.cores is not None:  # what comes later is none either
        there = in_flight(log.arrival, at_rest + round(occupied))
        backlog_ns = np.maximum(there - wait.cores, 0) * occupied / wait.cores
    overload = grew_for_good(log.arrival, backlog_ns, lasting)
    # Prompts wait for other prompts only, so their whole wait is the traffic's.
    return _Traffic(
        wait=np.minimum(at_rest, wait.ns) if wait.slot_ns is None else wait.ns,
        overload=np.ones_like(overload) if wait.always_busy else overload,
    )


@dataclass(frozen=True, kw_only=True)
class _Division:
    """Each request's latency, divided among causes."""

    log: Log
    wait: Wait
    left: _Left
    service: _Service
    levels: _Levels
    traffic: _Traffic | None

    @property
    def by_input(self) -> bool:
        """True if the model of service has inputs besides the number of requests in a batch."""
        return self.service.model.accepted and (bool(self.service.terms) or self.log.table.route is not None)

    @property
    def rest(self) -> str:
        """The cause of what nothing explains. Beside that of a first byte, what is outside of it is unexplained."""
        return UNEXPLAINED if self.log.answer is None else FIRST_BYTE.id

    @cached_property
    def components(self) -> tuple[tuple[KnownCause, Callable[[slice], Ints] | None], ...]:
        """Causes, each with the service beyond the reference of a slice of requests; ``None`` for waits."""
        return tuple(self._components())

    @property
    def causes(self) -> tuple[KnownCause, ...]:
        """All causes, ``unexplained`` last."""
        return (*(cause for cause, _ in self.components), CATALOGUE[UNEXPLAINED])

    def _components(self) -> Iterator[tuple[KnownCause, Callable[[slice], Ints] | None]]:
        wait, service, left, drift = self.wait, self.service, self.left, self.levels.drift
        if wait.batches is not None and service.sharing is not None:
            yield replace(CATALOGUE["batching.window"], evidence_class="modelled"), wait.batches.window.__getitem__
            yield BATCH_SIZE, service.sharing.__getitem__
        if wait.ns is not None:
            yield CATALOGUE["traffic.burst"], None
            yield CATALOGUE["traffic.overload"], None
        if self.by_input:
            needed = service.expected
            yield CATALOGUE["input.size"], lambda part: np.rint(needed[part] - service.typical).astype(np.int64)
        for cause in (PREFILL, STALL, BATCH_SIZE):
            if cause.id in left.stalled:
                yield cause, left.stalled[cause.id].__getitem__
        for name, taken in left.parts.items():
            usual = self.levels.parts[name]
            yield _cause_of(name), lambda part, taken=taken, usual=usual: taken[part] - usual  # type: ignore[misc]
        if self.log.outside is not None:
            yield FIRST_BYTE, None
        if drift is not None:
            arrival = self.log.arrival
            yield CATALOGUE["drift.unknown"], lambda part: np.rint(drift.at(arrival[part])).astype(np.int64)

    def extras(self, part: slice) -> dict[str, Ints]:
        """By cause, the service of each request beyond the reference, for a slice of requests."""
        result = {cause.id: amount(part) for cause, amount in self.components if amount is not None}
        # The base is without stalls.
        within = {"input.size", BATCH_SIZE.id, "drift.unknown"} - set(self.left.stalled)
        known = sum(result.get(cause, 0) for cause in within)
        rest = self.left.base[part] - self.levels.base - known
        result[self.rest] = rest
        if self.log.outside is not None:
            result[UNEXPLAINED] = self.log.outside[part] - self.levels.outside
            result[self.rest] = rest - result[UNEXPLAINED]
        return result

    def entries(self, part: slice) -> tuple[Ints, Ints]:
        """Own and propagated parts of a slice of requests."""
        m = len(self.log.latency[part])
        place = {cause.id: k for k, cause in enumerate(self.causes)}
        own, propagated = np.zeros((len(place), m), np.int64), np.zeros((len(place), m), np.int64)
        for cause, amount in self.extras(part).items():
            own[place[cause]] = amount
        if self.wait.ns is None or self.traffic is None:
            return own, propagated
        traffic, overload = self.traffic.wait[part], self.traffic.overload[part]
        own[place["traffic.burst"]] = np.where(overload, 0, traffic)
        own[place["traffic.overload"]] = np.where(overload, traffic, 0)
        waited = self.wait.ns[part] - traffic
        for cause, amount in self._divided(part, waited, self.wait.ns <= 0).items():
            propagated[place[cause]] = amount
        propagated[place[UNEXPLAINED]] += waited - propagated.sum(axis=0)
        return own, propagated

    def _divided(self, part: slice, waited: Ints, empty: Bools) -> dict[str, Ints]:
        """The wait beyond the traffic's, by the time that each cause added to the busy cycle so far.

        Requests that share cores also wait for those that come later, and the longer the more they need themselves.

        :param empty: ``(n,)`` True for requests that did not wait, with which a busy cycle begins.
        """
        first = part.start or 0
        last = first + len(waited)
        until = np.arange(first, last)
        if self.wait.cores is not None:
            until = np.searchsorted(self.log.arrival, self.log.arrival[part] + self.log.latency[part])
        since = int(np.flatnonzero(empty[: first + 1])[-1]) if empty[: first + 1].any() else 0
        whole = slice(since, max(int(until.max(initial=0)), last))
        begins = empty[whole].copy()
        begins[0] = True
        start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))[first - since : last - since]
        added = {}
        extras = self.extras(whole)
        extras[self.rest] = extras[self.rest] - self.levels.scatter  # part of the reference
        for shared in ("batching.window", "batching.size"):
            extras.pop(shared, None)  # likewise: the batches ahead have their size there
        for cause, amount in extras.items():
            running = np.concatenate([[0], np.cumsum(amount)])
            added[cause] = np.maximum(running[until - since] - running[start], 0)
        total = np.maximum(sum(added.values()), 1).astype(np.float64)
        return {cause: np.floor(waited * (each / total)).astype(np.int64) for cause, each in added.items()}


def _accounts(division: _Division, evidence: dict[str, str], tail_share: float, seed: int) -> Accounts:
    """The ledger with its evidence.

    :param evidence: of stalls and of the wait.
    """
    log, wait, model = division.log, division.wait, division.service.model
    notes = [*log.table.notes, *wait.notes, *division.service.notes]
    if log.closed is not None:
        notes.append(closed_note(log.closed))
    if (without := _without_inputs(division)) is not None:
        notes.append(without)
    return Accounts(
        arrival_ns=log.arrival,
        latency_ns=log.latency,
        reference_ns=division.levels.base + sum(division.levels.parts.values()),
        causes=division.causes,
        entries=division.entries,
        evidence={**evidence, **_evidence(division, evidence, tail_share)},
        nameable={
            cause.id: DOMINANT if cause is FIRST_BYTE else MATERIAL
            for cause in division.causes
            if cause.id != UNEXPLAINED
        },
        floors_ms={
            "input.size": _USUAL_OF_P50 * (float(np.median(log.latency)) / 1e6),
            "traffic.burst": _chance_ms(division, tail_share, seed),
        },
        stages=_stages(log, wait, division.left),
        models={"service": model.quality()} if model.samples else {},
        ids=log.table.ids if len(set(log.every.ids)) > 1 else (),
        timed=log.table.timed,
        notes=tuple(notes),
        culprit=_culprit(division, tail_share),
        unread=log.table.unread,
    )


def _chance_ms(division: _Division, tail_share: float, seed: int) -> float:
    """The wait in the tail that chance produces."""
    wait, batches, levels = division.wait, division.service.batches, division.levels
    arrival = division.log.arrival
    n, span = len(arrival), float(np.ptp(arrival))
    if wait.ns is None or span <= 0:
        return 0.0
    if batches is not None:
        busy = n / span / batches.rate >= _BUSY
        return 0.0 if busy else batches.chance_wait_ns(span, levels.scatter, tail_share, seed) / 1e6
    if not 0 < n / span * levels.occupied / wait.at_once < _BUSY:
        return 0.0
    return chance_wait_ns(n, span, lambda at: wait.at_rest(at, levels.occupied), tail_share, seed) / 1e6


def _stages(log: Log, wait: Wait, left: _Left) -> dict[str, Ints]:
    stages, table = dict(left.parts), log.table
    if wait.queued is not None:
        stages["queue"] = wait.queued
    if wait.batches is not None:
        stages["batch"] = wait.batches.window
    if stages or table.first_ns is not None or table.stages:
        stages["service"] = log.latency - sum(stages.values())
    if table.stages:
        known = np.all([column >= 0 for column in table.stages.values()], axis=0)
        stages["other"] = np.where(known, np.maximum(stages["service"] - sum(table.stages.values()), 0), -1)
        stages |= table.stages
    if table.first_ns is not None:
        stages["first token"] = table.first_ns
    return stages


def _without_inputs(division: _Division) -> str | None:
    """A note if the service follows none of the recorded inputs."""
    table, terms = division.log.table, division.service.terms
    route = ["route"] if table.route is not None else []
    if division.by_input or not (terms or route) or not division.service.model.samples:
        return None
    known = {*table.features, *table.possible}
    inputs = dict.fromkeys(name for term in terms for name in term.inputs if name in known)
    return f"The service time does not follow {', '.join((*inputs, *route))}: nothing is attributed to inputs."


def _evidence(division: _Division, known: Mapping[str, str], tail_share: float) -> dict[str, str]:
    """By cause, the sentences in addition to those of stalls and of the wait, which are ``known``."""
    log, service, drift = division.log, division.service, division.levels.drift
    evidence = {} if service.batches is None else service.batches.evidence()
    evidence["traffic.overload"] = _capacity(division) + {**known, **evidence}.get("traffic.burst", "")
    if division.by_input:
        route = ["route"] if log.table.route is not None else []
        words = ", ".join((*dict.fromkeys(term.words for term in service.terms), *route))
        evidence["input.size"] = (
            f"service follows {words} (R² {service.model.r2:.2f}): {from_ns(service.typical)} in the median, "
            f"{from_ns(float(np.quantile(service.expected, 0.99)))} at p99{_slowest_route(division)}."
        )
    for name, part in division.left.parts.items():
        words = ""
        if name == RETRY and log.table.attempt is not None:
            words = attempt_words(part, tail_share, log.table.attempt, log.table.attempts)
        evidence[_cause_of(name).id] = f"{'; '.join(filter(None, (_measured(part), words)))}."
    if drift is not None:
        when = f" at {drift.step / 1e9:.0f} s, at once" if drift.step is not None else ""
        evidence["drift.unknown"] = f"service for the same inputs rose by {from_ns(float(drift.level[-1]))}{when}."
    evidence[UNEXPLAINED] = "the latency beyond its parts in the recording."
    evidence[division.rest] = _remainder(division, tail_share)
    return evidence


def _capacity(division: _Division) -> str:
    """What arrived during the overload, and what could be served; empty without an overload."""
    if division.traffic is None or not division.traffic.overload.any():
        return ""
    log, wait, batches, occupied = division.log, division.wait, division.service.batches, division.levels.occupied
    came = log.arrival[division.traffic.overload]
    arrived, serve = len(came) / max(float(np.ptp(came)), 1.0), wait.at_once / occupied
    if batches is not None:
        return f"{rate(arrived * 1e9)} arrived and {rate(batches.rate * 1e9)} are served with large batches; "
    who = f"{wait.servers} at once" if wait.cores is None else f"{wait.cores:.1f} cores"
    text = f"{rate(arrived * 1e9)} arrived and {who} serve {rate(serve * 1e9)}"
    if log.closed is not None:
        return f"{text}: clients wait for an answer before they send again, so more servers would get more; "
    if arrived > serve * (1 + _SAME_RATE):
        return f"{text}: {int(arrived * occupied) + 1} would keep up; "
    return f"{text}; "


def _slowest_route(division: _Division) -> str:
    """The route that adds most time to the service of a typical request; empty if none is clearly slower."""
    table, some, typical = division.log.table, slice(None, None, division.log.step), division.service.typical
    if table.route is None:
        return ""
    route, base = table.route[some], division.left.base[some].astype(np.float64)
    usual = {int(code): float(np.median(base[route == code])) for code in np.unique(route)}
    added = {code: (each - typical) * np.count_nonzero(route == code) for code, each in usual.items()}
    most = max(added, key=lambda code: added[code])
    if len(usual) < 2 or usual[most] < _SLOWER * typical:
        return ""
    named, of_all = table.routes[most], float(np.mean(route == most))
    return f"; {shown(named, 60)} takes {from_ns(usual[most])} in the median ({share(of_all)} of the requests)"


def _labels(table: RequestTable, some: slice) -> dict[str, tuple[Codes, tuple[str, ...]]]:
    """By kind of label, that of each of some requests, and all of them in words."""
    columns = {
        "route": (table.route, table.routes),
        "server": (table.server, table.servers),
        ATTEMPT: (table.attempt, table.attempts),
    }
    return {name: (code[some], words) for name, (code, words) in columns.items() if code is not None}


def _searched(division: _Division) -> slice:
    """Some of all requests, evenly, in which labels of the slow ones are searched."""
    count = len(division.left.base)
    return slice(0, count, max(count // _SEARCHED, 1))


def _culprit(division: _Division, tail_share: float) -> tuple[str, str]:
    """Which server or route has nearly all of the unexplained time, and a clause on it; empty without one."""
    some = _searched(division)
    named = {name: label for name, label in _labels(division.log.table, some).items() if name != ATTEMPT}
    return culprit_among(division.extras(some)[division.rest], tail_share, named)


def _remainder(division: _Division, tail_share: float) -> str:
    log, base, table = division.log, division.left.base, division.log.table
    some, first = _searched(division), slice(0, _SEARCHED)
    opening = NOTHING_KNOWN
    if log.answer is not None:
        opening = f"{_measured(log.answer)}; here without what inputs or a queue explain"
    rest = division.extras(some)[division.rest]
    found = [
        _slow_service(division, rest, base[some]),
        rhythm(
            division.extras(first)[division.rest],
            log.arrival[first] if table.timed else None,
            _labels(table, first),
            log.resolution_ns,
        ),
    ]
    opening = "; ".join([opening, *filter(None, found)])
    arrival = log.arrival[some] if table.timed else None
    return remainder_words(rest, tail_share, arrival, _labels(table, some), opening)


def _slow_service(division: _Division, rest: Ints, service: Ints) -> str:
    """What others waited behind, if their wait is known: half of the unexplained time is in longer services."""
    weight = np.maximum(rest - division.levels.scatter, 0)
    if division.wait.queued is None or not weight.any():
        return ""
    order = np.argsort(service, kind="stable")
    running = np.cumsum(weight[order])
    long, typical = float(service[order][int(np.searchsorted(running, running[-1] / 2))]), division.service.typical
    return f"services that are slow themselves take about {from_ns(long)}, typical ones {from_ns(typical)}"


def _measured(part: Ints) -> str:
    middle, late = np.quantile(part, (0.5, 0.99)).tolist()
    return f"measured: {from_ns(middle)} in the median, {from_ns(late)} at p99"


def _cause_of(name: str) -> KnownCause:
    """The cause that a measured part of the latency stands for."""
    return (
        PARTS.get(name)
        or CATALOGUE.get(name)
        or KnownCause(
            f"dependency.{name}",
            "measured",
            f"waited for {name}",
            happened=f"waiting for {name}",
            behind=f"one that waited for {name}",
        )
    )


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
