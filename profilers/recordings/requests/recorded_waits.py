"""The requests of a recording that ended ok, and their wait for service: measured, inferred, or both.

A wait is inferred only if the recording confirms it: batches, a queue in front of servers, or shared cores
(:mod:`latfix.queueing.inference`). Otherwise it stays in the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import counted, from_ns, share
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.shared_batches import SharedBatches
from latfix.profilers.recordings.requests.text_source import resolution_ns
from latfix.queueing.closed_loop import ClosedLoop, find_closed_loop, in_flight
from latfix.queueing.inference.batch_inference import infer_rule
from latfix.queueing.inference.queue_inference import Queue, infer_prompt_queue, infer_queue, waits_at_reference
from latfix.queueing.inference.sharing_inference import equal_work_waits, infer_sharing

#: Requests that models are fitted to, for time.
_SAMPLE = 100_000
#: Times are too coarse to show a queue if a unit is more than this share of a typical latency, or of two requests:
#: then which request waited behind which is a matter of rounding.
_COARSE = 0.25
#: A wait behind the measured one is added from this share of it, as a measured wait is not exact either.
_MORE = 0.1
#: The share of a service that may overlap the next: a request may spend a little time outside the server.
_OVERLAP = 0.15


@dataclass(frozen=True)
class Log:
    """The requests of a table that ended ok. Columns are ``(n,)`` nanoseconds.

    :param every: the table with all requests; ``table`` with these.
    :param parts: measured parts of the latency but ``queue``, which is the wait for service.
    """

    every: RequestTable
    table: RequestTable
    parts: Mapping[str, Ints]
    queue: Ints | None

    @classmethod
    def of(cls, every: RequestTable) -> Log:
        """At least one request must have ended ok."""
        table = every if every.ok.all() else every.take(np.flatnonzero(every.ok))
        parts = {name: np.maximum(column, 0) for name, column in table.parts.items()}
        queue = parts.pop("queue", None)
        return cls(every, table, parts, queue)

    @property
    def arrival(self) -> Ints:
        return self.table.arrival_ns

    @property
    def latency(self) -> Ints:
        return self.table.latency_ns

    @cached_property
    def base(self) -> Ints:
        """The latency without measured parts."""
        return self.latency - sum(self.parts.values()) - (0 if self.queue is None else self.queue)

    @cached_property
    def resolution_ns(self) -> int:
        """The unit of the recorded times."""
        return max(self.table.resolution_ns, resolution_ns(self.latency))

    @property
    def step(self) -> int:
        """Every so many requests are a sample, to which models are fitted."""
        return max(len(self.latency) // _SAMPLE, 1)

    @cached_property
    def answer(self) -> Ints | None:
        """``(n,)`` the wait for the first byte of the answer; ``None`` if it is not known."""
        answer = self.table.stages.get(self.table.answer_stage)
        return None if answer is None else np.maximum(answer, 0)

    @cached_property
    def outside(self) -> Ints | None:
        """``(n,)`` what that wait does not contain."""
        return None if self.answer is None else self.base - self.answer

    @property
    def complete(self) -> bool:
        """True if it has every request with its time, as inferring what requests do to each other needs."""
        return self.table.timed and not self.table.sampled

    @cached_property
    def closed(self) -> ClosedLoop | None:
        """The clients, if each waits for an answer before its next request."""
        return find_closed_loop(self.arrival, self.latency, self.table.user) if self.complete else None

    @cached_property
    def at_server(self) -> tuple[Ints, Ints]:
        """Arrival at what is behind the load generator and a measured wait, and the remaining latency."""
        before = self.parts.get("dispatch", np.zeros_like(self.latency))
        before = before if self.queue is None else before + self.queue
        return self.arrival + before, self.latency - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The wait for service.

    :param ns: ``(n,)`` in the queue, or for others that share the ``cores``; ``None`` if neither is known.
    :param inferred_ns: ``(n,)`` the part of the latency that was inferred to be waiting, also for a batch to fill.
    :param servers: requests that are served at once; ``cores`` that requests share instead of queueing.
    :param always_busy: no request found a free server.
    :param slot_ns: time for which a prompt occupies the engine.
    :param outside_ns: time of a request before and after its server.
    :param known: how it is known; ``notes`` why it is not, or not all of it.
    """

    ns: Ints | None = None
    inferred_ns: Ints | int = 0
    servers: int = 1
    cores: float | None = None
    always_busy: bool = False
    slot_ns: float | None = None
    outside_ns: int = 0
    batches: SharedBatches | None = None
    known: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def window(self) -> Ints | int:
        """Nanoseconds for which a request's batch waited to fill: ``(n,)``, or 0 without batches."""
        return 0 if self.batches is None else self.batches.window

    @property
    def queued(self) -> Ints | None:
        """The wait before service; ``None`` if it is not known, or requests share the cores."""
        return self.ns if self.cores is None else None

    @property
    def at_once(self) -> float:
        """Requests that are served at full speed."""
        return self.servers if self.cores is None else self.cores

    def at_rest(self, arrival: Ints, occupied_ns: float) -> Ints:
        """``(m,)`` waits of requests with these arrivals if each occupied its server, or its core, for as long."""
        if self.cores is not None:
            waits = equal_work_waits(arrival.astype(np.float64), occupied_ns, self.cores)
            return np.asarray(np.rint(waits), dtype=np.int64)
        backlog = int(self.ns[: self.servers].max()) if self.always_busy and self.ns is not None else 0
        return waits_at_reference(arrival, occupied_ns, self.servers, backlog)


def find_wait(log: Log) -> Wait:
    """The wait for service: measured, inferred from arrivals and ends, or both if more is behind the measured."""
    if (found := _in_batches(log)) is not None:
        return found
    queue, why_not = _queue_behind(log)
    if log.queue is not None:
        return _measured(log, log.queue, queue)
    if queue is not None:
        return _inferred(queue)
    return _for_shared_cores(log) or Wait(notes=(why_not,))


def _in_batches(log: Log) -> Wait | None:
    """The waits for the batches that the log shows, if any."""
    if not log.complete or log.table.first_ns is not None:
        return None
    arrival, latency = log.at_server
    if (rule := infer_rule(arrival, latency, log.resolution_ns)) is None:
        return None
    batches = SharedBatches.of(rule.batches(arrival, latency), arrival, latency)
    return Wait(
        ns=batches.behind if log.queue is None else batches.behind + log.queue,
        inferred_ns=batches.behind + batches.window,
        servers=rule.workers,
        batches=batches,
    )


def _for_shared_cores(log: Log) -> Wait | None:
    """The waits for others that share the cores, if the log shows them."""
    if not log.complete or log.table.first_ns is not None or log.closed is not None:
        return None
    if (sharing := infer_sharing(*log.at_server, log.resolution_ns)) is None:
        return None
    known = (
        f"inferred: requests slow each other down as if they shared {sharing.cores:.1f} cores; without "
        "that, those that met many others take as long as those that met few"
    )
    return Wait(ns=sharing.wait_ns, inferred_ns=sharing.wait_ns, cores=sharing.cores, known={"traffic.burst": known})


def _queue_behind(log: Log) -> tuple[Queue | None, str]:
    """The queue behind a measured wait, and a note if there is none."""
    table, queue = log.table, None
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
        queue = infer_queue(*log.at_server, log.resolution_ns)
    elif log.queue is None and (table.first_ns >= 0).all():
        queue = infer_prompt_queue(log.arrival, table.first_ns)
    apart = float(np.ptp(log.arrival)) / max(len(log.latency), 1)
    if log.resolution_ns > _COARSE * min(float(np.median(log.latency)), 2 * apart):
        known = f"arrivals and latencies are known to {from_ns(log.resolution_ns)} only"
        why = f"{known}; log finer times (microseconds; nginx: $msec in a JSON log)"
    elif table.first_ns is not None:
        why = "streams share a batch, and the recording does not show when each began"
    return queue, f"{unseparated}{why}."


def _measured(log: Log, measured: Ints, behind: Queue | None) -> Wait:
    """The measured wait, and what is inferred behind it: a proxy's wait is not the server's."""
    if behind is not None and behind.wait_ns.sum() > _MORE * measured.sum():
        which = "a wait is measured, more" if measured.any() else "the recorded queue is empty, one"
        return Wait(
            ns=measured + behind.wait_ns,
            inferred_ns=behind.wait_ns,
            servers=behind.servers,
            outside_ns=behind.outside_ns,
            known={"traffic.burst": f"{which} is inferred behind it: {_confirmed(behind)}"},
        )
    begin, service = log.arrival + measured, log.latency - measured
    overlap = max(log.resolution_ns, round(_OVERLAP * float(np.median(service))))
    order = np.argsort(begin, kind="stable")
    serving = in_flight(begin[order], service[order] - overlap) + 1
    waited = measured[order] > overlap
    servers = max(int(np.quantile(serving[waited] if waited.any() else serving, 0.9)), 1)
    known = f"the wait is measured; {servers} requests were served at once"
    return Wait(ns=measured, servers=servers, known={"traffic.burst": known})


def _inferred(queue: Queue) -> Wait:
    known, notes = f"inferred: {_confirmed(queue)}", list[str]()
    if queue.dependent:
        notes.append(
            "One queue does not fit entirely: service still grows with the number in flight. Requests slow "
            "each other, service changes over time, or a second stage queues behind the first; its wait is "
            "then part of service."
        )
    if queue.slot_ns is not None:
        known = (
            f"inferred: prompts were computed in batches, one after the other; {share(queue.waited)} of requests "
            f"waited for batches ahead; one request occupies the engine for {from_ns(queue.slot_ns)}."
        )
    return Wait(
        ns=queue.wait_ns,
        inferred_ns=queue.wait_ns,
        servers=queue.servers,
        always_busy=queue.always,
        slot_ns=queue.slot_ns,
        outside_ns=queue.outside_ns,
        known={"traffic.burst": known},
        notes=tuple(notes),
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


def closed_note(loop: ClosedLoop) -> str:
    """A note on clients that wait for an answer before the next request."""
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
