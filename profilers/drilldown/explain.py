"""The explanation of one request: its timeline, the work it waited behind, and its ledger entries.

Pure: the same record and ledger give the same explanations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.attribution.ledger import service_line
from latfix.profilers.drilldown.selection import Chosen, choose_slowest
from latfix.profilers.drilldown.service_costs import batch_costs, prepare_costs
from latfix.profilers.drilldown.summary_sentence import closing_sentence
from latfix.profilers.drilldown.timeline import EventIndex, timeline
from latfix.profilers.drilldown.wait_chain import Lanes
from latfix.profilers.evidence.outside.outside_view import presence
from latfix.profilers.evidence.units import gather
from latfix.results.diagnosis import Ledger
from latfix.results.request_explanation import BatchFacts, Entry, Story, Wait
from latfix.run_record.run_record import RunRecord
from latfix.stages import STATUS_NAMES, Status

#: Members of a batch that are listed.
_MOST_MEMBERS = 32
#: Explanations on a run's page, and the largest record that has them: a larger one takes too long to lay out.
_ON_PAGE, _LARGE = 20, 50_000


def tell(record: RunRecord, ledger: Ledger, chosen: Sequence[Chosen]) -> tuple[Story, ...]:
    """Explain the chosen requests, in the given order.

    :param ledger: of the same record; requests that are not in it have no entries.
    """
    if not chosen:
        return ()
    explainer = _Explainer(record, ledger)
    return tuple(explainer.story(one) for one in chosen)


def explain_slowest(record: RunRecord, ledger: Ledger) -> tuple[Story, ...]:
    """Explain the slowest requests for a run's page; nothing for a large record, which takes too long."""
    if len(record.requests["index"]) > _LARGE:
        return ()
    return tell(record, ledger, choose_slowest(record, _ON_PAGE))


class _Explainer:
    """The record laid out once for all explanations."""

    def __init__(self, record: RunRecord, ledger: Ledger) -> None:
        self.record, self.ledger = record, ledger
        self.evidence = evidence = gather(record)
        self.events = EventIndex(record)
        rows, batches = evidence.rows, evidence.batches
        self.enqueued, _ = presence(rows)
        handed = self.enqueued - rows["prepare_ns"]
        self.sorted_ok = np.sort(record.latencies_ns())
        line = service_line(evidence)
        freed = None if evidence.setup.outside else batches["free_ns"]  # not visible from outside
        self.workers = Lanes(batch_costs(evidence, line), batches["open_ns"], freed)
        self.pool = Lanes(prepare_costs(evidence, line), handed)

    def story(self, chosen: Chosen) -> Story:
        """The explanation of one request."""
        traffic, row = self.record.traffic, chosen.row
        request = traffic.request(chosen.index if chosen.index >= 0 else (-chosen.index - 1) % len(traffic))
        rows = self.evidence.rows
        index = chosen.index if row is None else int(rows["index"][row])
        reference, entries = self._ledger(index)
        status = "not recorded" if row is None else STATUS_NAMES[int(rows["status"][row])]
        latency = 0 if row is None else int(rows["latency_ns"][row])
        counted = row is not None and index >= 0 and int(rows["status"][row]) == Status.OK
        story = Story(
            id=request.id,
            index=index,
            row=row,
            arrival_ns=int(traffic.arrival_ns[chosen.index]) if row is None else int(rows["arrival_ns"][row]),
            latency_ns=latency,
            status=status,
            error=self.record.errors.get(index, ""),
            faster=int(np.searchsorted(self.sorted_ok, latency, side="left")) if counted else None,
            ok_requests=len(self.sorted_ok),
            warmup=row is not None and bool(rows["warmup"][row]),
            priority=request.priority,
            session=request.session,
            deadline_ms=request.deadline_ms,
            features=request.features,
            stages=() if row is None else timeline(self.evidence, self.events, row),
            batch=None if row is None else self._batch(row),
            waits=() if row is None else self._waits(row),
            reference_ns=reference,
            entries=entries,
            matches=chosen.matches,
        )
        return replace(story, sentence=closing_sentence(story))

    def _ledger(self, index: int) -> tuple[int | None, tuple[Entry, ...]]:
        ledger = self.ledger
        at = int(np.searchsorted(ledger.request, index))  # the ledger follows the record, which is sorted
        if at == len(ledger.request) or int(ledger.request[at]) != index:
            return None, ()
        entries = [
            Entry(
                cause=cause,
                own_ns=int(ledger.own_ns[k, at]),
                propagated_ns=int(ledger.propagated_ns[k, at]),
                evidence_class=ledger.classes[k],
            )
            for k, cause in enumerate(ledger.causes)
            if ledger.own_ns[k, at] or ledger.propagated_ns[k, at]
        ]
        return int(ledger.reference_ns), tuple(sorted(entries, key=lambda entry: -abs(entry.total_ns)))

    def _id(self, row: int) -> str:
        index, ids = int(self.evidence.rows["index"][row]), self.record.traffic.ids
        if index < 0:
            return f"{ids[(-index - 1) % len(ids)]} (warm-up)"
        return ids[index]

    def _members(self, batch: int) -> Ints:
        members = self.evidence.members
        first = int(members.first[batch])
        rows = members.order[first : first + int(members.count[batch])]
        return np.asarray(rows[np.argsort(self.evidence.ahead_in_batch[rows], kind="stable")])

    def _batch(self, row: int) -> BatchFacts | None:
        batch, batches = int(self.evidence.batch_of[row]), self.evidence.batches
        if batch < 0 or not self.evidence.setup.batched:
            return None
        real, padded = int(batches["real_elements"][batch]), int(batches["padded_elements"][batch])
        return BatchFacts(
            batch_id=int(batches["batch_id"][batch]),
            worker=int(self.evidence.units["compute"].thread[batch]),
            size=int(batches["size"][batch]),
            members=tuple(self._id(int(member)) for member in self._members(batch)[:_MOST_MEMBERS]),
            padding_share=max(padded - real, 0) / padded if padded > 0 and real > 0 else None,
            first_shape=bool(batches["first_shape"][batch]),
            retried=bool(batches["retried"][batch]),
            inferred=self.evidence.setup.outside,
        )

    def _waits(self, row: int) -> tuple[Wait, ...]:
        if self.evidence.setup.servers == 0:  # what it waited behind is unknown
            return ()
        rows, batch = self.evidence.rows, int(self.evidence.batch_of[row])
        enqueued = int(self.enqueued[row])
        handed = enqueued - int(rows["prepare_ns"][row])
        arrival = handed - int(rows["dispatch_ns"][row])
        begun = handed + int(rows["prepare_wait_ns"][row])
        taken = enqueued + int(rows["queue_ns"][row])
        if batch >= 0 and self.evidence.batches["retried"][batch]:  # alone, after its batch failed
            taken = max(taken, int(self.evidence.batches["open_ns"][batch]))
        resource = "queue" if self.evidence.setup.batched else "server"
        waits = (
            self.pool.wait("prepare", arrival, handed, begun, self._prepared),
            self.workers.wait(resource, arrival, enqueued, taken, partial(self._served, row)),
        )
        return tuple(wait for wait in waits if wait is not None)

    def _prepared(self, row: int, _since: int) -> tuple[str, int, int, tuple[str, ...]]:
        rows = self.evidence.rows
        failed = int(rows["status"][row]) == Status.ERROR and int(rows["batch_id"][row]) < 0
        return self._id(row), 1, 0, ("it failed",) if failed else ()

    def _served(self, row: int, batch: int, since: int) -> tuple[str, int, int, tuple[str, ...]]:
        batches, members = self.evidence.batches, self._members(batch)
        taken = int(self.enqueued[row]) + int(self.evidence.rows["queue_ns"][row])
        facts = []
        if batches["retried"][batch]:
            alone = int(batches["size"][batch]) == 1
            # Its members were then served in batches of their own: only the time shows which were in it.
            here = not alone and int(batches["open_ns"][batch]) <= taken <= int(batches["close_ns"][batch])
            whole = "failed as a whole, with this request in it" if here else "failed as a whole"
            facts.append("alone, after its batch failed" if alone else whole)
        if batches["first_shape"][batch]:
            facts.append("first batch of its shape")
        if batches["warmup"][batch]:
            facts.append("warm-up")
        size = int(batches["size"][batch])
        overtook = int(np.count_nonzero(self.enqueued[members] > since))
        label = str(int(batches["batch_id"][batch])) if self.evidence.setup.batched else self._id(int(members[0]))
        return label, size, overtook, tuple(facts)
