"""The queue of a service behind an address, or its batches, if the times of its answers show them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.evidence.intervals import NO_INTERVALS
from latfix.profilers.evidence.outside.event_loop import computes_in_loop
from latfix.profilers.evidence.outside.lock_waits import find_lock_waits
from latfix.profilers.evidence.outside.outside_view import Serving, as_served, presence
from latfix.profilers.evidence.outside.serving_processes import find_processes, laid_apart
from latfix.queueing.inference.batch_inference import infer_rule
from latfix.queueing.inference.queue_inference import Queue, infer_queue
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status

#: Share of queue waits with threads waiting for a lock, from which what looks like a queue is a lock.
_MOSTLY = 0.5
#: Largest share of answers that begin before a server was free for them: times of answers are not exact.
_TOO_EARLY = 0.02
#: The system's own gap between two answers.
_BETWEEN_ANSWERS_NS = 50_000


def with_queue(record: RunRecord) -> RunRecord:
    """The record; of a service behind an address with the waits in its queue that are inferred."""
    if not record.meta.is_http:
        return record
    apart = laid_apart(record, find_processes(record)[0])
    return as_served(apart, serving_of(apart))


def with_waits(record: RunRecord) -> RunRecord:
    """The record for a page: inferred waits are stages of requests, as in the ledger; batches stay as recorded."""
    if not record.meta.is_http:
        return record
    served = with_queue(record).requests
    waits = {name: served[name] for name in ("queue_ns", "batch_ns", "compute_ns")}
    return replace(record, requests={**record.requests, **waits})


def serving_of(record: RunRecord) -> Serving:
    """The servers behind one queue, and whether they take requests in batches.

    Requests that all need one lock look like a queue. If threads waited for a lock for most of the waiting time, it
    is a lock.
    """
    rows = record.requests
    usable = (rows["http_status"] > 0) & (rows["status"] == Status.OK)
    at, end = (times[usable] for times in presence(rows))
    streamed, first = (rows["chunks"] > 1).any(), np.maximum(end - rows["finish_ns"][usable], at)
    # Streams join and leave a batch at any time. A loop that computes answers those together that came meanwhile.
    if not streamed and not computes_in_loop(record.samples, at, end):
        order = np.argsort(at, kind="stable")
        if (rule := infer_rule(at[order], (first - at)[order], _BETWEEN_ANSWERS_NS)) is not None:
            return Serving(servers=rule.workers, rule=rule)
    queue, at_first = _queue(at, end, first), None if streamed else _queue(at, first, first)
    until_first = at_first is not None and (queue is None or at_first.misfit < queue.misfit)
    queue = at_first if until_first else queue
    if queue is None:
        return Serving()
    locked = int(find_lock_waits(record.samples, at, end, NO_INTERVALS).lock.sum())
    if locked > _MOSTLY * int(queue.wait_ns.sum()):
        return Serving()
    return Serving(servers=queue.servers, outside_ns=queue.outside_ns, until_first=until_first)


def _queue(at: Ints, free: Ints, first: Ints) -> Queue | None:
    """The queue, if all of it is known and answers do not begin before their requests would have been served.

    :param free: ``(n,)`` when an answer's server is free; ``first`` its first byte.
    """
    queue = infer_queue(at, free - at, _BETWEEN_ANSWERS_NS)
    if queue is None or queue.dependent:
        return None
    waited = queue.wait_ns > _BETWEEN_ANSWERS_NS
    early = (at + queue.wait_ns > first + _BETWEEN_ANSWERS_NS)[waited]
    return None if len(early) and np.mean(early) > _TOO_EARLY else queue
