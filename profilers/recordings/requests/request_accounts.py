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
from dataclasses import replace
from functools import partial
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
from latfix.profilers.evidence.work_model import fit_work_model, folds_of
from latfix.profilers.evidence.work_shapes import Sample, Term, earned_terms, of_requests
from latfix.profilers.recordings.requests.findings import DOMINANT, MATERIAL, Accounts
from latfix.profilers.recordings.requests.remainder import NOTHING_KNOWN, remainder_words, rhythm
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.shared_batches import SharedBatches
from latfix.profilers.recordings.requests.shared_stalls import in_log, in_streams, times_words
from latfix.profilers.recordings.requests.shared_steps import shared_steps
from latfix.profilers.recordings.requests.text_source import LONGEST_NS, UNITS_NS, map_option, resolution_ns
from latfix.queueing.closed_loop import ClosedLoop, find_closed_loop, in_flight
from latfix.queueing.inference.batch_inference import infer_rule
from latfix.queueing.inference.queue_inference import (
    Queue,
    chance_wait_ns,
    infer_prompt_queue,
    infer_queue,
    served_from,
    waits_at_reference,
)
from latfix.queueing.inference.sharing_inference import equal_work_waits, infer_sharing
from latfix.queueing.two_stage_queue import MINUTE_NS
from latfix.statistics.change_points import rising_level
from latfix.statistics.distributions import poisson_at_least

#: A column is a part of the latency if it fits into so many, but for rounding, which grow by as much, or nearly.
_WITHIN, _ROUNDED, _AS_MUCH = 0.995, 1.01, 0.1
#: Requests that models are fitted to, by which their terms are selected, and that are predicted at once; routes with
#: a column of their own; the most features that are used without selection.
_SAMPLE, _SELECTED, _AT_ONCE, _ROUTES, _FEW = 100_000, 4_000, 500_000, 24, 3
#: Requests whose remainder is searched for what stands out.
_SEARCHED = 20_000
#: Stalls are claimed if they cost this many times as much as in the first services in random order, and in that of
#: neighbors, and if a random order has so many that cost nearly as much with at most this probability. Short logs are
#: put in so many orders.
_TOGETHER, _SHUFFLED, _NEIGHBORS, _CHANCE, _MOST_TIMES, _FEWER_TIMES = 2.0, 200_000, 32, 0.01, 50, 8
#: Drift: windows and their least requests; the least rise as a share of a typical service.
_WINDOWS, _PER_WINDOW, _RISE = 24, 12, 0.1
#: Arrivals at most this share above capacity are as many as can be served.
_SAME_RATE = 0.02
#: A backlog that grows for a quarter of the log, a minute at most, and at least so many services, is no burst.
_LEAST_SERVICES = 20
#: Inputs differ in any traffic: their cause is named beyond this share of p50.
_USUAL_OF_P50 = 0.1
#: A route is named from this many times a typical service.
_SLOWER = 1.5
#: Times are too coarse to show a queue if a unit is more than this share of a typical latency, or of two requests.
_COARSE = 0.25
#: A wait behind the measured one is added from this share of it; the share of a service that may overlap the next.
_MORE, _OVERLAP = 0.1, 0.15
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
#: Parts of the latency at the client, by their names.
CLIENT = {
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
}
FIRST_BYTE = KnownCause(
    "service.first_byte",
    "measured",
    "waited for the first byte of the answer: the service, or the way there and back",
    happened="waiting for the first byte of the answer (the service, or the way there and back)",
    behind="one that waited for the first byte of its answer",
)


def account_for_requests(table: RequestTable, *, tail_share: float, seed: int) -> Accounts:
    """The ledger of a table's requests that ended ok.

    :param tail_share: share of requests in the tail, for the wait that chance produces there.
    """
    if not table.ok.any():
        return _empty(table)
    ledger = _Ledger(table)
    ledger.find_stalls_of_streams()
    ledger.find_queue()
    ledger.make_room()
    ledger.fit()
    ledger.find_stalls_of_log()
    ledger.find_drift()
    ledger.find_levels()
    ledger.find_traffic()
    return ledger.accounts(tail_share, seed)


class _Ledger:
    """The ok requests of a table, what is inferred about them, and the entries; columns are ``(n,)`` nanoseconds.

    :ivar table: the requests that ended ok; ``every`` with the others.
    :ivar parts: measured parts of the latency; ``base`` the remaining latency, less what is inferred so far.
    :ivar answer: the wait for the first byte of the answer; ``None`` if it is not known. What nothing explains of it
        is the cause ``rest``; what is ``outside`` of it beyond the median is unexplained.
    :ivar stalled: time lost in shared stalls, by cause.
    :ivar wait: in the queue, or for others that share the ``cores``; of it, ``traffic`` remains with every service at
        reference; ``overload`` True if that grew too long for a burst. ``None`` if neither is known.
    :ivar expected: service that a request's input needs; ``typical`` its median. ``sharing`` the service beyond it
        because others share the batch; ``None`` without batches.
    :ivar base_level: service of a quiet request without its parts, whose medians are ``median_of``.
    :ivar scatter_ns: mean of the ordinary scatter of service around the level.
    """

    def __init__(self, table: RequestTable) -> None:
        self.every, self.ok = table, table.ok
        self.table = table = table if self.ok.all() else table.take(np.flatnonzero(self.ok))
        self.arrival, self.latency = table.arrival_ns, table.latency_ns
        self.parts = {name: np.maximum(column, 0) for name, column in table.parts.items()}
        self.base: Ints = self.latency - sum(self.parts.values()) if self.parts else self.latency.copy()
        self.resolution_ns = max(table.resolution_ns, resolution_ns(self.latency))
        self.step = max(len(self.latency) // _SAMPLE, 1)
        answer = table.stages.get(table.answer_stage)
        self.answer: Ints | None = None if answer is None else np.maximum(answer, 0)
        self.rest = UNEXPLAINED if answer is None else FIRST_BYTE.id
        self.outside: Ints | None = None if self.answer is None else self.base - self.answer
        self.stalled: dict[str, Ints] = {}
        self.wait: Ints | None = None
        self.traffic: Ints | None = None
        self.overload: Bools | None = None
        self.servers = 1
        self.cores: float | None = None
        self.always_busy = False
        self.closed = None
        if table.timed and not table.sampled:
            self.closed = find_closed_loop(self.arrival, self.latency, table.user)
        self.slot_ns: float | None = None
        self.outside_ns = 0
        self.batches: SharedBatches | None = None
        self.sharing: Ints | None = None
        self.drift: Rise | None = None
        self.evidence: dict[str, str] = {}
        self.notes = list(table.notes)

    @property
    def service_ns(self) -> float:
        """Service of a quiet request, including its usual waits for dependencies."""
        return self.typical + sum(float(np.median(part)) for name, part in self.parts.items() if name != "dispatch")

    @property
    def _queued(self) -> Ints | None:
        """The wait before service; ``None`` if it is not known, or requests share the cores."""
        return self.wait if self.cores is None else None

    @property
    def _at_once(self) -> float:
        """Requests that are served at full speed."""
        return self.servers if self.cores is None else self.cores

    @property
    def by_input(self) -> bool:
        """True if the model of service has inputs besides the number of requests in a batch."""
        return self.model.accepted and (bool(self.terms) or self.table.route is not None)

    def _design(self) -> tuple[tuple[Term, ...], Callable[[Any], Floats]]:
        """The terms that predict service, and a function from a slice of requests to design columns."""
        table = self.table
        # What no size is would dwarf all others.
        features = {
            name: np.where(np.abs(column) <= LONGEST_NS, column, np.nan)
            for name, column in {**table.features, **table.possible}.items()
        }
        batches, base = self.batches, self.base
        sample = of_requests(base, _SELECTED) if batches is None else batches.sampled(base, _SELECTED)
        route = table.route
        common = [] if route is None else np.argsort(-np.bincount(route[:: self.step]))[:_ROUTES].tolist()

        def kinds(part: Any) -> dict[str, Floats]:
            codes = () if route is None else route[part]
            return {f"route {table.routes[code]}": np.asarray(codes == code, dtype=np.float64) for code in common}

        values, routes = possible_features(features, sample.rows), kinds(sample.rows)
        values = {name: values[name] for name in likeliest_features(values, [sample.time_ns[sample.unit]])}
        named = [name for name in values if name in table.features]
        given = [Term((name,)) for name in (*routes, *(named if len(named) <= _FEW else ()))]
        terms = earned_terms(values, routes, given, sample)
        if times := dict(self._times_among(terms, {**values, **routes}, sample)):
            self.notes += [
                f"{name} is probably a part of the latency in {unit}, so it is not used as an input of the "
                f"work. If it is a wait for something, add {map_option(name, unit)}."
                for name, unit in times.items()
            ]
            values = {name: x for name, x in values.items() if name not in times}
            terms = earned_terms(values, routes, given, sample)
        terms = terms[len(routes) :]
        used = {name for term in terms for name in term.inputs} & set(features)
        if found := [name for name in table.possible if name in used]:
            self.notes.append(
                f"Columns used as inputs of the work, because service follows them: {', '.join(found)}. To choose "
                f"others, name them: {map_option(found[0])}."
            )

        def design(part: Any) -> Floats:
            each = {name: numeric(features[name], part) for name in used} | kinds(part)
            columns = [np.ones(len(base[part])), *(term.column(each) for term in terms)]
            return np.stack([*columns, *(each[name] for name in routes)], axis=1)

        return terms, design

    def _times_among(
        self, terms: Sequence[Term], values: Mapping[str, Floats], sample: Sample
    ) -> Iterator[tuple[str, str]]:
        """Possible inputs that are parts of the latency, and in which unit: service grows by as much."""
        for name in dict.fromkeys(name for term in terms for name in term.inputs if name in self.table.possible):
            others = [term.column(values) for term in terms if name not in term.inputs]
            design = sample.design_of(np.column_stack([np.ones(len(sample.rows)), *others, values[name]]))
            grows = fit_work_model(design, sample.time_ns, sample.time_ns > 0).coefficients.mean(axis=0)[-1]
            for unit in ("ns", "us", "ms", "s"):
                within = values[name] * UNITS_NS[unit] <= _ROUNDED * self.latency[sample.rows]
                if abs(float(grows) / UNITS_NS[unit] - 1) <= _AS_MUCH and np.mean(within) >= _WITHIN:
                    yield name, unit

    def find_stalls_of_streams(self) -> None:
        """Subtract stalls that open streams share."""
        table, gaps = self.every, self.every.gaps
        if gaps is None or not table.timed:
            return
        first = (
            None if table.first_ns is None else np.where(table.first_ns >= 0, table.arrival_ns + table.first_ns, -1)
        )
        ended = table.arrival_ns + np.maximum(table.latency_ns, 0)
        stalls = in_streams(table.arrival_ns, gaps, first, ended, table.steps)
        self.stalled = {PREFILL.id: stalls.prefill_ns[self.ok], STALL.id: stalls.other_ns[self.ok]}
        self.base = self.base - sum(self.stalled.values())
        for cause, which, ending in (
            (PREFILL.id, stalls.by_prefill, "each ended by a prompt's first token."),
            (STALL.id, ~stalls.by_prefill, "without a prompt at that time."),
        ):
            events = stalls.events[which]
            if len(events):
                self.evidence[cause] = (
                    f"{times_words(events[:, 0])} most open streams stood still together, "
                    f"{from_ns(float(np.median(events[:, 1] - events[:, 0])))} in the median (usually "
                    f"{from_ns(stalls.usual_ns)} from chunk to chunk), {ending}"
                )
        shared = None if first is None else shared_steps(gaps, first, ended, stalls.usual_ns)
        if shared is not None:
            self.stalled[BATCH_SIZE.id] = shared.lost_ns[self.ok]
            self.base = self.base - self.stalled[BATCH_SIZE.id]
            self.evidence[BATCH_SIZE.id] = (
                f"each further open stream adds {from_ns(shared.each_ns)} to the {from_ns(stalls.usual_ns)} from "
                f"chunk to chunk; {counted(shared.usual, 'stream')} are usually open."
            )

    def find_queue(self) -> None:
        """The wait for service: measured, inferred from arrivals and ends, or both if more is behind the measured."""
        measured = self.parts.pop("queue", None)
        if self._find_batches(measured):
            return
        queue, why_not = self._infer(measured)
        if measured is not None:
            self._use_measured(measured, queue)
        elif queue is not None:
            self._use_inferred(queue)
        elif not self._find_sharing():
            self.notes.append(why_not)

    def _at_server(self, measured: Ints | None) -> tuple[Ints, Ints]:
        """Arrival at what is behind a measured wait and the load generator, and the remaining latency."""
        before = self.parts.get("dispatch", np.zeros_like(self.latency))
        before = before if measured is None else before + measured
        return self.arrival + before, self.latency - before

    def _find_batches(self, measured: Ints | None) -> bool:
        """Use the batches that the log shows, if any."""
        table = self.table
        if not table.timed or table.sampled or table.first_ns is not None:
            return False
        arrival, latency = self._at_server(measured)
        if (rule := infer_rule(arrival, latency, self.resolution_ns)) is None:
            return False
        self.batches = SharedBatches(rule.batches(arrival, latency), arrival, latency)
        self.wait = self.batches.behind if measured is None else self.batches.behind + measured
        self.base = self.base - self.batches.behind - self.batches.window
        self.servers = rule.workers
        return True

    def _find_sharing(self) -> bool:
        """Use the waits for others that share the cores, if the log shows them."""
        table = self.table
        if not table.timed or table.sampled or table.first_ns is not None or self.closed is not None:
            return False
        sharing = infer_sharing(*self._at_server(None), self.resolution_ns)
        if sharing is None:
            return False
        self.cores, self.wait = sharing.cores, sharing.wait_ns
        self.base = self.base - self.wait
        if "host.contention" in self.parts:  # also waits for threads of the service
            self.parts["host.contention"] = np.maximum(self.parts["host.contention"] - self.wait, 0)
        self.evidence["traffic.burst"] = (
            f"inferred: requests slow each other down as if they shared {self.cores:.1f} cores; without "
            "that, those that met many others take as long as those that met few"
        )
        return True

    def _infer(self, measured: Ints | None) -> tuple[Queue | None, str]:
        """The queue behind a measured wait, and a note if there is none."""
        table, latency, queue = self.table, self.latency, None
        if not table.timed:
            return None, "Arrivals have no times: a queue, bursts and drift cannot be detected."
        unseparated = "Waits in a queue are not separated from service: "
        if table.sampled:
            return None, f"{unseparated}that needs every request, not a sample."
        why = (
            "no single first-come, first-served queue with a fixed number of servers fits (nor would one if several "
            "stages queue in series, or if the latency rises and falls by itself)"
        )
        if table.first_ns is None:
            queue = infer_queue(*self._at_server(measured), self.resolution_ns)
        elif measured is None and (table.first_ns >= 0).all():
            queue = infer_prompt_queue(self.arrival, table.first_ns)
        apart = float(np.ptp(self.arrival)) / max(len(latency), 1)
        if self.resolution_ns > _COARSE * min(float(np.median(latency)), 2 * apart):
            known = f"arrivals and latencies are known to {from_ns(self.resolution_ns)} only"
            why = f"{known}; log finer times (microseconds; nginx: $msec in a JSON log)"
        elif table.first_ns is not None:
            why = "streams share a batch, and the recording does not show when each began"
        return queue, f"{unseparated}{why}."

    def _use_measured(self, measured: Ints, behind: Queue | None) -> None:
        """Use the measured wait, and what is inferred behind it: a proxy's wait is not the server's."""
        self.wait = measured
        if behind is not None and behind.wait_ns.sum() > _MORE * measured.sum():
            self.wait = measured + behind.wait_ns
            self.base = self.base - behind.wait_ns
            self.servers, self.outside_ns = behind.servers, behind.outside_ns
            which = "a wait is measured, more" if measured.any() else "the recorded queue is empty, one"
            self.evidence["traffic.burst"] = f"{which} is inferred behind it: {_confirmed(behind)}"
            return
        begin, service = self.arrival + measured, self.latency - measured
        # A request may spend a little time outside the server after the next one began.
        overlap = max(self.resolution_ns, round(_OVERLAP * float(np.median(service))))
        order = np.argsort(begin, kind="stable")
        serving = in_flight(begin[order], service[order] - overlap) + 1
        waited = measured[order] > overlap
        self.servers = max(int(np.quantile(serving[waited] if waited.any() else serving, 0.9)), 1)
        self.evidence["traffic.burst"] = f"the wait is measured; {self.servers} requests were served at once"

    def _use_inferred(self, queue: Queue) -> None:
        self.wait, self.servers, self.slot_ns = queue.wait_ns, queue.servers, queue.slot_ns
        self.always_busy, self.outside_ns = queue.always, queue.outside_ns
        self.base = self.base - queue.wait_ns
        self.evidence["traffic.burst"] = f"inferred: {_confirmed(queue)}"
        if queue.dependent:
            self.notes.append(
                "One queue does not fit entirely: service still grows with the number in flight. Requests slow "
                "each other, service changes over time, or a second stage queues behind the first; its wait is "
                "then part of service."
            )
        if queue.slot_ns is not None:
            self.evidence["traffic.burst"] = (
                f"inferred: prompts were computed in batches, one after the other; {share(queue.waited)} of requests "
                f"waited for batches ahead; one request occupies the engine for {from_ns(queue.slot_ns)}."
            )

    def make_room(self) -> None:
        """Cap parts so that they do not overlap the wait, and add the wait for something outside as a part."""
        if self.wait is not None and self.parts:
            remaining = self.latency - self.wait
            for name, part in self.parts.items():
                self.parts[name] = np.minimum(part, remaining)
                remaining = remaining - self.parts[name]
            self.base = remaining - sum(self.stalled.values())
        if self.table.idle_ns is not None and self.table.idle_alone is not None:
            idle = self.table.idle_ns
            queued = self._queued
            outside = np.where(self.table.idle_alone, idle, 0) if queued is None else idle - queued
            part = self.parts["external.dependency"] = np.clip(outside, 0, np.maximum(self.base, 0))
            self.base = self.base - part

    def fit(self) -> None:
        """Fit the service that inputs need, and set the expectation of each request."""
        self.terms, design_of = self._design()
        if self.batches is not None:
            self.model, self.expected, self.sharing = self.batches.fit(design_of, self.base)
        else:
            n, some = len(self.base), slice(None, None, self.step)
            time = np.maximum(self.base[some], 0).astype(np.float64)
            self.model = fit_work_model(design_of(some), time, time > 0)
            self.expected, fold = np.empty(n), folds_of(n)
            for first in range(0, n, _AT_ONCE):
                part = slice(first, first + _AT_ONCE)
                self.expected[part] = np.minimum(self.model.predict(design_of(part), fold[part]), LONGEST_NS)
        self.typical = float(np.median(self.expected))

    def find_stalls_of_log(self) -> None:
        """Subtract times in which no request of a log without streams ended."""
        table, usual = self.table, self.service_ns
        if table.gaps is not None or not table.timed or table.sampled or table.resolution_ns > usual / 2:
            return
        if self.batches is not None:
            self._find_stalls_of_batches(self.batches)
            return
        begin = self.arrival + (0 if self._queued is None else self._queued)
        beyond = self._beyond()
        lost, events, cost = in_log(begin, self.arrival + self.latency, beyond, usual)
        if not len(events):
            return
        # In any order, and among neighbors: services may be longer for a while without standing still together.
        n, rng = min(len(begin), _SHUFFLED), np.random.default_rng(0)
        times = min(_SHUFFLED // n, _MOST_TIMES)
        any_order = [self._by_chance(begin, beyond, usual, rng.permutation(n)) for _ in range(times)]
        moved = [np.arange(n) + rng.uniform(0, _NEIGHBORS, n) for _ in range(min(times, _FEWER_TIMES))]
        near = [self._by_chance(begin, beyond, usual, np.argsort(places, kind="stable")) for places in moved]
        chance = max(float(np.mean([each.sum() for each in orders])) for orders in (any_order, near))
        alike = np.count_nonzero(np.concatenate(any_order) >= np.median(cost) / _TOGETHER) / times * len(begin) / n
        if lost[:_SHUFFLED].sum() < _TOGETHER * chance or poisson_at_least(len(events), alike) > _CHANCE:
            return
        self.stalled = {STALL.id: lost}
        self.base = self.base - lost
        self.evidence[STALL.id] = (
            f"{times_words(events[:, 0])} no request ended although several "
            f"were being served, {from_ns(float(np.median(events[:, 1] - events[:, 0])))} in the median (a request "
            f"takes {from_ns(usual)}); the recording does not show what ran then."
        )

    def _find_stalls_of_batches(self, batches: SharedBatches) -> None:
        lost, times = batches.standstills()
        if not times:
            return
        self.stalled = {STALL.id: lost}
        self.base = self.base - lost
        self.evidence[STALL.id] = (
            f"{counted(times, 'batch')} took {from_ns(float(np.median(lost[lost > 0])))} longer than its size and "
            "inputs explain, for all members together: a stall, or a member that needed more work; the recording "
            "does not show which."
        )

    def _by_chance(self, begin: Ints, beyond: Floats, usual: float, order: Ints) -> Ints:
        """Nanoseconds lost in each stall if the same services came in another order: long ones that coincide."""
        rows = slice(0, len(order))
        service = (self.arrival + self.latency - begin)[rows][order]
        if self._queued is not None:
            begin = served_from(self.arrival[rows], np.maximum(service - self.outside_ns, 0), self.servers)
        elif self.closed is not None and self.closed.known_by == "steady":  # like so many servers that are never idle
            begin = served_from(np.zeros_like(service), service, self.closed.users)
        else:
            begin = begin[rows]
        return in_log(begin, begin + service, beyond[rows][order], usual)[2]

    def _comparable(self) -> Ints:
        """Rows of a sample whose service shows drift."""
        rows = np.arange(0, len(self.base), self.step)
        if self.wait is not None or not self.table.timed:
            return rows
        met = in_flight(self.arrival, self.latency)[rows]
        return rows[met_few(self.arrival[rows], met, np.ones(len(rows), bool))]

    def _beyond(self) -> Floats:
        """``(n,)`` service beyond what inputs and a shared batch explain."""
        return self.base - self.expected - (0 if self.sharing is None else self.sharing)

    def find_drift(self) -> None:
        """Find a level of service, beyond the need of inputs, that rises and stays."""
        rows = self._comparable()
        beyond = self._beyond()[rows].astype(np.float64)
        at = self.arrival[rows].astype(np.float64)
        count = min(_WINDOWS, len(beyond) // _PER_WINDOW)
        if not self.table.timed or count < 8:
            return
        edges = np.linspace(0, len(beyond), count + 1).astype(np.int64)
        values = np.array([float(np.median(beyond[a:b])) for a, b in pairwise(edges)])
        times = np.array([float(at[a:b].mean()) for a, b in pairwise(edges)])
        if not rises(values, _RISE * self.typical):
            return
        level = rising_level(values)
        self.drift = Rise(times, level - level[0], None)
        place, residual = best_step(values)
        if residual < 0.5 * squares_left(values, times):
            rise = float(np.median(values[place:]) - np.median(values[:place]))
            self.drift = Rise(times, np.full(count, rise), float(at[edges[place]]))

    def find_levels(self) -> None:
        """Set the levels of a quiet request, and the mean of ordinary scatter around them."""
        rest = self._beyond() if self.drift is None else self._beyond() - self.drift.at(self.arrival)
        # The median residual of the model belongs to a quiet request.
        self.base_level = round(self.typical + float(np.median(rest)))
        self.median_of = {name: round(float(np.median(part))) for name, part in self.parts.items()}
        self.usual_outside = 0 if self.outside is None else round(float(np.median(self.outside)))
        self.components = tuple(self._components())
        self.causes = (*(cause for cause, _ in self.components), CATALOGUE[UNEXPLAINED])
        rest = rest[:: self.step] - (self.base_level - self.typical)
        self.scatter_ns = round(ordinary_mean_of_wide(rest / max(self.service_ns, 1.0)) * self.service_ns)

    @property
    def _occupied_ns(self) -> float:
        """Time for which a request at reference occupies its server."""
        return max(self.slot_ns or self.service_ns + self.scatter_ns - self.outside_ns, 1.0)

    def _waits_at_rest(self, arrival: Ints) -> Ints:
        """``(m,)`` waits of requests with these arrivals if each occupied its server, or its core, for as long."""
        service = self._occupied_ns
        if self.cores is not None:
            waits = equal_work_waits(arrival.astype(np.float64), service, self.cores)
            return np.asarray(np.rint(waits), dtype=np.int64)
        backlog = int(self.wait[: self.servers].max()) if self.always_busy and self.wait is not None else 0
        return waits_at_reference(arrival, service, self.servers, backlog)

    def find_traffic(self) -> None:
        """Set the wait that remains with every service at reference."""
        if self.wait is not None:
            service = self._occupied_ns
            if self.batches is not None:
                at_rest = self.batches.waits_at_rest(self.arrival, self.scatter_ns)
                service = float(self.batches.by_size[-1]) + self.scatter_ns
            else:
                at_rest = self._waits_at_rest(self.arrival)
            if self.closed is not None:  # the next arrival depends on the answers: those ahead count
                ahead = np.maximum(in_flight(self.arrival, self.latency) - self.servers + 1, 0)
                at_rest = np.rint(ahead * (service / self.servers)).astype(np.int64)
            # Prompts wait for other prompts only, so their whole wait is the traffic's.
            self.traffic = np.minimum(at_rest, self.wait) if self.slot_ns is None else self.wait
            lasting = max(min(MINUTE_NS, float(np.ptp(self.arrival)) / 4), _LEAST_SERVICES * service)
            # The batch in progress is no backlog.
            backlog_ns = at_rest if self.batches is None else np.maximum(at_rest - round(service), 0)
            if self.cores is not None:  # what comes later is none either
                there = in_flight(self.arrival, at_rest + round(service))
                backlog_ns = np.maximum(there - self.cores, 0) * service / self.cores
            self.overload = grew_for_good(self.arrival, backlog_ns, lasting)
            if self.always_busy:
                self.overload[:] = True

    def accounts(self, tail_share: float, seed: int) -> Accounts:
        self._describe(tail_share)
        model, table = self.model, self.table
        p50 = float(np.median(self.latency)) / 1e6
        return Accounts(
            arrival_ns=self.arrival,
            latency_ns=self.latency,
            reference_ns=self.base_level + sum(self.median_of.values()),
            causes=self.causes,
            entries=self.entries,
            evidence=self.evidence,
            nameable={
                cause.id: DOMINANT if cause is FIRST_BYTE else MATERIAL
                for cause in self.causes
                if cause.id != UNEXPLAINED
            },
            floors_ms={"input.size": _USUAL_OF_P50 * p50, "traffic.burst": self._chance_ms(tail_share, seed)},
            stages=self._stages(),
            models={"service": model.quality()} if model.samples else {},
            ids=table.ids if len(set(self.every.ids)) > 1 else (),
            timed=table.timed,
            notes=tuple(self.notes),
            unread=table.unread,
        )

    def _chance_ms(self, tail_share: float, seed: int) -> float:
        n, span = len(self.arrival), float(np.ptp(self.arrival))
        if self.wait is None or span <= 0:
            return 0.0
        service = self._occupied_ns
        if self.batches is not None:
            busy = n / span / self.batches.rate >= _BUSY
            return 0.0 if busy else self.batches.chance_wait_ns(span, self.scatter_ns, tail_share, seed) / 1e6
        if not 0 < n / span * service / self._at_once < _BUSY:
            return 0.0
        return chance_wait_ns(n, span, self._waits_at_rest, tail_share, seed) / 1e6

    def _components(self) -> Iterator[tuple[KnownCause, Callable[[slice], Ints] | None]]:
        """Causes, each with the service beyond the reference of a slice of requests; ``None`` for waits."""
        if self.batches is not None and self.sharing is not None:
            yield replace(CATALOGUE["batching.window"], evidence_class="modelled"), self.batches.window.__getitem__
            yield BATCH_SIZE, self.sharing.__getitem__
        if self.wait is not None:
            yield CATALOGUE["traffic.burst"], None
            yield CATALOGUE["traffic.overload"], None
        if self.by_input:
            yield CATALOGUE["input.size"], lambda part: np.rint(self.expected[part] - self.typical).astype(np.int64)
        for cause in (PREFILL, STALL, BATCH_SIZE):
            if cause.id in self.stalled:
                yield cause, self.stalled[cause.id].__getitem__
        for name in self.parts:
            yield _cause_of(name), partial(self._beyond_usual, name)
        if self.answer is not None:
            yield FIRST_BYTE, None
        if (drift := self.drift) is not None:
            yield CATALOGUE["drift.unknown"], lambda part: np.rint(drift.at(self.arrival[part])).astype(np.int64)

    def _beyond_usual(self, name: str, part: slice) -> Ints:
        return self.parts[name][part] - self.median_of[name]

    def extras(self, part: slice) -> dict[str, Ints]:
        """By cause, the service of each request beyond the reference, for a slice of requests."""
        result = {cause.id: amount(part) for cause, amount in self.components if amount is not None}
        within = {"input.size", BATCH_SIZE.id, "drift.unknown"} - set(self.stalled)  # the base is without these
        known = sum(result.get(cause, 0) for cause in within)
        rest = self.base[part] - self.base_level - known
        result[self.rest] = rest
        if self.outside is not None:
            result[UNEXPLAINED] = self.outside[part] - self.usual_outside
            result[self.rest] = rest - result[UNEXPLAINED]
        return result

    def entries(self, part: slice) -> tuple[Ints, Ints]:
        """Own and propagated parts of a slice of requests."""
        m = len(self.latency[part])
        place = {cause.id: k for k, cause in enumerate(self.causes)}
        own, propagated = np.zeros((len(place), m), np.int64), np.zeros((len(place), m), np.int64)
        for cause, amount in self.extras(part).items():
            own[place[cause]] = amount
        if self.wait is None or self.traffic is None or self.overload is None:
            return own, propagated
        traffic, overload = self.traffic[part], self.overload[part]
        own[place["traffic.burst"]] = np.where(overload, 0, traffic)
        own[place["traffic.overload"]] = np.where(overload, traffic, 0)
        self._divide(part, self.wait[part] - traffic, place, propagated)
        return own, propagated

    def _divide(self, part: slice, waited: Ints, place: Mapping[str, int], propagated: Ints) -> None:
        """Divide the wait beyond the traffic's, by the time that each cause added to the busy cycle so far.

        Requests that share cores also wait for those that come later, and the longer the more they need themselves.
        """
        first = part.start or 0
        last = first + len(waited)
        until = np.arange(first, last)
        empty: Bools = (self.wait if self.wait is not None else self.latency) <= 0
        if self.cores is not None:
            until = np.searchsorted(self.arrival, self.arrival[part] + self.latency[part])
        since = int(np.flatnonzero(empty[: first + 1])[-1]) if empty[: first + 1].any() else 0
        whole = slice(since, max(int(until.max(initial=0)), last))
        begins = empty[whole].copy()
        begins[0] = True
        start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))[first - since : last - since]
        added = {}
        extras = self.extras(whole)
        extras[self.rest] = extras[self.rest] - self.scatter_ns  # part of the reference
        for shared in ("batching.window", "batching.size"):
            extras.pop(shared, None)  # likewise: the batches ahead have their size there
        for cause, amount in extras.items():
            running = np.concatenate([[0], np.cumsum(amount)])
            added[cause] = np.maximum(running[until - since] - running[start], 0)
        total = np.maximum(sum(added.values()), 1).astype(np.float64)
        for cause, amount in added.items():
            propagated[place[cause]] = np.floor(waited * (amount / total)).astype(np.int64)
        propagated[place[UNEXPLAINED]] += waited - propagated.sum(axis=0)

    def _stages(self) -> dict[str, Ints]:
        stages, table = dict(self.parts), self.table
        if self._queued is not None:
            stages["queue"] = self._queued
        if self.batches is not None:
            stages["batch"] = self.batches.window
        if stages or table.first_ns is not None or table.stages:
            stages["service"] = self.latency - sum(stages.values())
        if table.stages:
            known = np.all([column >= 0 for column in table.stages.values()], axis=0)
            stages["other"] = np.where(known, np.maximum(stages["service"] - sum(table.stages.values()), 0), -1)
            stages |= table.stages
        if table.first_ns is not None:
            stages["first token"] = table.first_ns
        return stages

    def _describe(self, tail_share: float) -> None:
        """Add the remaining sentences of evidence, and notes."""
        evidence = self.evidence
        if self.batches is not None:
            evidence.update(self.batches.evidence())
        if self.closed is not None:
            self.notes.append(_closed_note(self.closed))
        evidence["traffic.overload"] = self._capacity() + evidence.get("traffic.burst", "")
        route = ["route"] if self.table.route is not None else []
        if self.by_input:
            words = ", ".join((*dict.fromkeys(term.words for term in self.terms), *route))
            evidence["input.size"] = (
                f"service follows {words} (R² {self.model.r2:.2f}): {from_ns(self.typical)} in the median, "
                f"{from_ns(float(np.quantile(self.expected, 0.99)))} at p99{self._slowest_route()}."
            )
        elif (self.terms or route) and self.model.samples:
            known = {*self.table.features, *self.table.possible}
            inputs = dict.fromkeys(name for term in self.terms for name in term.inputs if name in known)
            names = ", ".join((*inputs, *route))
            self.notes.append(f"The service time does not follow {names}: nothing is attributed to inputs.")
        for name, part in self.parts.items():
            evidence[_cause_of(name).id] = f"{_measured(part)}."
        if self.drift is not None:
            when = f" at {self.drift.step / 1e9:.0f} s, at once" if self.drift.step is not None else ""
            evidence["drift.unknown"] = (
                f"service for the same inputs rose by {from_ns(float(self.drift.level[-1]))}{when}."
            )
        evidence[UNEXPLAINED] = "the latency beyond its parts in the recording."
        evidence[self.rest] = self._remainder(tail_share)

    def _slowest_route(self) -> str:
        """The route that adds most time to the service of a typical request; empty if none is clearly slower."""
        if self.table.route is None:
            return ""
        route = self.table.route[:: self.step]
        base = self.base[:: self.step].astype(np.float64)
        usual = {int(code): float(np.median(base[route == code])) for code in np.unique(route)}
        added = {code: (each - self.typical) * np.count_nonzero(route == code) for code, each in usual.items()}
        most = max(added, key=lambda code: added[code])
        if len(usual) < 2 or usual[most] < _SLOWER * self.typical:
            return ""
        named, of_all = self.table.routes[most], float(np.mean(route == most))
        return f"; {shown(named, 60)} takes {from_ns(usual[most])} in the median ({share(of_all)} of the requests)"

    def _capacity(self) -> str:
        """What arrived during the overload, and what could be served; empty without an overload."""
        if self.overload is None or not self.overload.any():
            return ""
        came, each = self.arrival[self.overload], self._occupied_ns
        arrived, serve = len(came) / max(float(np.ptp(came)), 1.0), self._at_once / each
        if self.batches is not None:
            full = rate(self.batches.rate * 1e9)
            return f"{rate(arrived * 1e9)} arrived and {full} are served with large batches; "
        who = f"{self.servers} at once" if self.cores is None else f"{self.cores:.1f} cores"
        text = f"{rate(arrived * 1e9)} arrived and {who} serve {rate(serve * 1e9)}"
        if self.closed is not None:
            return f"{text}: clients wait for an answer before they send again, so more servers would get more; "
        if arrived > serve * (1 + _SAME_RATE):
            return f"{text}: {int(arrived * each) + 1} would keep up; "
        return f"{text}; "

    def _remainder(self, tail_share: float) -> str:
        table, some = self.table, slice(0, len(self.base), max(len(self.base) // _SEARCHED, 1))
        columns = {"route": (table.route, table.routes), "server": (table.server, table.servers)}
        labels = {name: (code[some], words) for name, (code, words) in columns.items() if code is not None}
        arrival = self.arrival[some] if table.timed else None
        opening = NOTHING_KNOWN
        if self.answer is not None:
            opening = f"{_measured(self.answer)}; here without what inputs or a queue explain"
        rest = self.extras(some)[self.rest]
        first = slice(0, _SEARCHED)
        found = [
            self._slow_service(rest, self.base[some]),
            rhythm(self.extras(first)[self.rest], self.arrival[first] if table.timed else None),
        ]
        opening = "; ".join([opening, *filter(None, found)])
        return remainder_words(rest, tail_share, arrival, labels, opening)

    def _slow_service(self, rest: Ints, service: Ints) -> str:
        """What others waited behind, if their wait is known: half of the unexplained time is in longer services."""
        weight = np.maximum(rest - self.scatter_ns, 0)
        if self._queued is None or not weight.any():
            return ""
        order = np.argsort(service, kind="stable")
        running = np.cumsum(weight[order])
        long = float(service[order][int(np.searchsorted(running, running[-1] / 2))])
        return f"services that are slow themselves take about {from_ns(long)}, typical ones {from_ns(self.typical)}"


def _measured(part: Ints) -> str:
    middle, late = np.quantile(part, (0.5, 0.99)).tolist()
    return f"measured: {from_ns(middle)} in the median, {from_ns(late)} at p99"


def _closed_note(loop: ClosedLoop) -> str:
    known = {
        "ids": "no user's requests overlap",
        "steady": "the number in flight hardly changes",
        "limit": f"never more than {loop.users} are in flight, often as many",
    }[loop.known_by]
    who = "" if loop.known_by == "ids" else " (or a server that takes no more at a time)"
    return (
        f"Closed loop: {counted(loop.users, 'user')} each wait for an answer before the next request: {known}{who}. "
        "Waits are hidden at the client, as a slow answer delays what would have arrived (coordinated omission): "
        "independent arrivals at this rate would wait longer."
    )


def _confirmed(queue: Queue) -> str:
    if queue.always:
        return (
            f"{queue.servers} served at once, first come, first served, all the time: no request found a free server "
            "(the number of servers follows from the order and the times of ends)"
        )
    return (
        f"{queue.servers} served at once, first come, first served; {share(queue.waited)} waited, "
        f"with the same service as those that found an idle server (within {queue.misfit:.2f}x)"
    )


def _cause_of(name: str) -> KnownCause:
    """The cause that a measured part of the latency stands for."""
    return (
        CLIENT.get(name)
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
