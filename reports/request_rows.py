"""Rows and phrases of a request's story for the terminal and the page, in milliseconds.

Text from outside is passed through unescaped; the caller makes it safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Ints
from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import NONE, count, counted, from_ns, moment, share, significant
from latfix.results.diagnosis import Ledger
from latfix.results.request_explanation import Happening, Holder, StageTime, Story, Wait
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES, STATUS_NAMES, stage_label

#: Smaller entries and causes are summed.
SMALL_NS = 10_000
_MOST_CAUSES = 3
_MOST_HAPPENINGS = 6


def _ms(ns: int) -> str:
    return significant(ns / 1e6)


def header_facts(story: Story) -> Iterator[tuple[str, str]]:
    """Facts about the request, by name, shown above its timeline."""
    if story.faster_share is not None:
        place = story.ok_requests - (story.faster or 0)
        yield "rank", f"number {count(place)} from the slowest of the {count(story.ok_requests)} ok requests"
    when = moment(abs(story.arrival_ns) / 1e6)
    yield "arrived", f"{when} s {'before' if story.arrival_ns < 0 else 'into'} the replay"
    if story.error:
        yield "error", story.error
    service = f"priority {story.priority}"
    if story.session is not None:
        service += f", session {story.session}"
    if story.deadline_ms is not None:
        service += f", deadline {from_ns(story.deadline_ms * 1e6)}"
    yield "service", service
    if story.features:
        yield "features", ", ".join(f"{name} {_value(value)}" for name, value in story.features.items())
    batch = story.batch
    if batch is not None:
        yield "batch", _batch_words(story)


def _value(value: int | float | str) -> str:
    return significant(value) if isinstance(value, float) else str(value)


def _batch_words(story: Story) -> str:
    batch = story.batch
    assert batch is not None
    inferred = ", inferred from answers" if batch.inferred else ""
    words = f"{batch.batch_id} on worker {batch.worker}{inferred}, {counted(batch.size, 'request')}"
    if batch.padding_share:
        words += f", {share(batch.padding_share)} of it padding"
    if batch.first_shape:
        words += ", the first of its shape"
    if batch.retried:
        words += ", alone after its batch failed"
    others = [name for name in batch.members if name != story.id]
    if others:
        more = batch.size - 1 - len(others)
        words += f"; with {', '.join(others)}" + (f" and {count(more)} more" if more > 0 else "")
    return words


def _account_words(stage: StageTime) -> str:
    """What the thread did: on-CPU, run-queue delay, blocked, faults, switches."""
    account = stage.account
    if account is None:
        return ""
    words = f"{account.thread}: on-CPU {_ms(account.cpu_ns)}, run queue {_ms(account.runq_ns)}, "
    words += f"blocked {_ms(account.blocked_ns)}"
    counts = [
        (account.majflt, "major fault"),
        (account.minflt, "fault"),
        (account.vcsw, "voluntary switch"),
        (account.icsw, "involuntary switch"),
    ]
    shown = ", ".join(counted(number, name) for number, name in counts if number)
    return f"{words}; {shown}" if shown else words


def stage_lines(stage: StageTime) -> list[tuple[str, str]]:
    """Lines on what happened in a stage, each with its tone: empty, ``own``, ``other`` or ``error``."""
    parts = ", ".join(f"{name} {_ms(ns)}" for name, ns in stage.parts)  # wait for a prepare thread 0.0788, …
    lines = [(words, "") for words in (parts, _account_words(stage)) if words]
    for event in stage.happenings[:_MOST_HAPPENINGS]:
        lines.append((_event_words(event), "error" if event.kind == "error" else "own" if event.own else "other"))
    rest = stage.happenings[_MOST_HAPPENINGS:]
    if rest:
        number, total = sum(event.count for event in rest), sum(event.duration_ns for event in rest)
        lines.append((f"{count(number)} more events, {_ms(total)}", "other"))
    return lines


def _event_words(event: Happening) -> str:
    names = {"gc": "collection", "compile": "compilation", "span": "span", "spike": "slow probe", "error": "error"}
    words = names.get(event.kind, event.kind)
    times = f"{count(event.count)} x " if event.count > 1 else ""
    what = f" {event.what}" if event.what else ""
    if event.kind == "error":
        return f"error:{what}"
    where = f" in {event.where}" if event.where and not event.own else "" if event.own else " in another thread"
    return f"{times}{words}{what} {_ms(event.duration_ns)}{where}"


def wait_words(wait: Wait) -> str:
    """The wait, and how long its threads had been busy before."""
    thread = {"queue": "a worker", "server": "a server"}.get(wait.resource, "a prepare thread")
    words = f"It waited {from_ns(wait.duration_ns)} for {thread}"
    if wait.busy_since_ns < wait.at_ns:
        words += f", busy without a break since {from_ns(wait.at_ns - wait.busy_since_ns)} before that wait began"
    if wait.idle_ns > SMALL_NS:
        words += f"; no recorded work covers {from_ns(wait.idle_ns)} of it"
    return words + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRow:
    """Work that occupied a thread while a request waited; the last row may sum the remainder.

    :param slow: true if it took over a fifth longer than typical.
    """

    work: str
    begun: str
    held: str
    within: str
    typical: str
    excess: str
    why: str
    slow: bool = False
    is_sum: bool = False


def holder_rows(wait: Wait) -> list[HolderRow]:
    """The work that a request waited behind, in order of time."""
    rows = [
        HolderRow(
            work=_holder_label(wait, holder),
            begun=_ms(holder.at_ns),
            held=_ms(holder.held_ns),
            within=_nonzero(holder.within_ns),
            typical=_ms(holder.typical_ns),
            excess=_ms(holder.excess_ns),
            why=why_words(holder.causes, holder),
            slow=holder.excess_ns > 0.2 * max(holder.typical_ns, 1),
        )
        for holder in wait.holders
    ]
    if wait.others is not None:
        rows.append(
            HolderRow(
                work=f"{count(wait.others.count)} others",
                begun="",
                held=_ms(wait.others.held_ns),
                within=_nonzero(wait.others.within_ns),
                typical="",
                excess=_ms(wait.others.excess_ns),
                why=why_words(wait.others.causes),
                is_sum=True,
            )
        )
    return rows


def _holder_label(wait: Wait, holder: Holder) -> str:
    """``batch 60 (3)``, or the request that was being prepared."""
    if wait.resource == "queue":
        return f"batch {holder.label} ({count(holder.size)})"
    return holder.label


def why_words(causes: tuple[tuple[str, int], ...], holder: Holder | None = None) -> str:
    """The largest causes of the work's excess, and other facts about it."""
    large = [(name, ns) for name, ns in causes if abs(ns) >= SMALL_NS]
    shown = large[:_MOST_CAUSES] + [pair for pair in large[_MOST_CAUSES:] if pair[0] == UNEXPLAINED]
    words = [f"{name} {_ms(ns)}" for name, ns in shown]
    if holder is not None:
        words += holder.facts
        if holder.overtook:
            words.append(f"{count(holder.overtook)} of its requests arrived later and went first")
        if not holder.within_ns:
            words.append("ended before the wait")
    return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One row of a request's ledger, from a quiet request down to the latency.

    :param so_far: the sum down to this row.
    :param own_ns: for a bar, like ``propagated_ns``; zero in rows without one.
    """

    entry: str
    total: str
    so_far: str
    own: str = ""
    queue: str = ""
    known_by: str = ""
    own_ns: int = 0
    propagated_ns: int = 0
    is_sum: bool = False


def ledger_rows(story: Story) -> list[LedgerRow]:
    """The ledger: entries by size, the small ones summed."""
    assert story.reference_ns is not None
    large = [entry for entry in story.entries if max(abs(entry.own_ns), abs(entry.propagated_ns)) >= SMALL_NS]
    small = [entry for entry in story.entries if entry not in large]
    total = story.reference_ns
    rows = [LedgerRow(entry="a quiet request", total=_ms(total), so_far=_ms(total))]
    for entry in large:
        total += entry.total_ns
        rows.append(
            LedgerRow(
                entry=entry.cause,
                total=_ms(entry.total_ns),
                own=_nonzero(entry.own_ns),
                queue=_nonzero(entry.propagated_ns),
                so_far=_ms(total),
                known_by=entry.evidence_class,
                own_ns=entry.own_ns,
                propagated_ns=entry.propagated_ns,
            )
        )
    if small:
        own, queue = sum(entry.own_ns for entry in small), sum(entry.propagated_ns for entry in small)
        total += own + queue
        rows.append(
            LedgerRow(
                entry=f"{count(len(small))} smaller {'entry' if len(small) == 1 else 'entries'}",
                total=_ms(own + queue),
                own=_nonzero(own),
                queue=_nonzero(queue),
                so_far=_ms(total),
                is_sum=True,
            )
        )
    return [*rows, LedgerRow(entry="latency", total=_ms(story.latency_ns), so_far=_ms(total))]


def _nonzero(ns: int) -> str:
    return _ms(ns) if ns else NONE


def balance_words(story: Story) -> str:
    """The ledger's sum in whole nanoseconds, and its difference from the latency."""
    assert story.reference_ns is not None
    entries = sum(entry.total_ns for entry in story.entries)
    return (
        f"latency {story.latency_ns:,} - quiet request {story.reference_ns:,} - entries {entries:,} = "
        f"{story.difference_ns:,} ns"
    )


def short_entries(story: Story) -> str:
    """The largest entries on one line."""
    entries = story.entries[:_MOST_CAUSES]
    return ", ".join(_entry_words(entry.cause, entry.own_ns, entry.propagated_ns) for entry in entries)


def short_wait(story: Story) -> str:
    """The longest wait and the work that contributed most to it, on one line."""
    wait = max(story.waits, key=lambda wait: wait.duration_ns, default=None)
    if wait is None or not wait.holders or wait.duration_ns < max(SMALL_NS, 0.02 * story.latency_ns):
        return "nothing"
    worst = max(wait.holders, key=lambda holder: holder.within_ns + max(holder.excess_ns, 0))
    others = len(wait.holders) - 1 + (wait.others.count if wait.others else 0)
    more = f" and {count(others)} more" if others else ""
    why = why_words(worst.causes[:1]) if worst.excess_ns > 0 else ""
    took = f"{_ms(worst.held_ns)}, typical {_ms(worst.typical_ns)}"
    words = f"{_ms(wait.duration_ns)} behind {_holder_label(wait, worst)}{more}: {took}"
    return f"{words}; {why}" if why else words


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRow:
    """One of the slowest requests of a run.

    :param index: its position in the schedule.
    :param stages: milliseconds by stage.
    :param entries: the largest of its ledger: cause, own and propagated nanoseconds; ``None`` if it has none.
    """

    index: int
    id: str
    arrival_s: float
    latency_ms: float
    status: str
    error: str
    stages: dict[str, float]
    entries: list[tuple[str, int, int]] | None

    def cause_words(self) -> str:
        """The largest entries of its ledger."""
        return ", ".join(_entry_words(*entry) for entry in self.entries or ())

    def stage_words(self) -> str:
        """The three largest stages."""
        largest = sorted(self.stages, key=lambda stage: -self.stages[stage])[:3]
        return ", ".join(f"{stage} {significant(self.stages[stage])}" for stage in largest if self.stages[stage] > 0)

    def strip(self) -> list[tuple[float, float, int]]:
        """Start and width in percent, and number, of each visible stage of a stacked bar."""
        total = sum(value for value in self.stages.values() if value > 0) or 1.0
        parts, left = [], 0.0
        for number, value in enumerate(self.stages.values()):
            width = max(value, 0.0) / total * 100
            if width >= 0.5:
                parts.append((left, width, number))
            left += width
        return parts


def described_rows(record: RunRecord, ledger: Ledger | None, rows: Sequence[int]) -> list[SlowRow]:
    """Some rows of a record, each with its stages and causes."""
    requests, ids = record.requests, record.traffic.ids
    places = {} if ledger is None else _places(ledger, requests["index"][rows])
    described = []
    for row in rows:
        index = int(requests["index"][row])
        described.append(
            SlowRow(
                index=index,
                id=ids[index] if 0 <= index < len(ids) else f"#{index}",
                arrival_s=int(requests["arrival_ns"][row]) / 1e9,
                latency_ms=int(requests["latency_ns"][row]) / 1e6,
                status=STATUS_NAMES[int(requests["status"][row])],
                error=record.errors.get(index, ""),
                stages={
                    stage_label(stage, outside=record.meta.is_http): int(requests[f"{stage}_ns"][row]) / 1e6
                    for stage in STAGES
                },
                entries=_largest_entries(ledger, places[index]) if ledger is not None and index in places else None,
            )
        )
    return described


def _places(ledger: Ledger, indexes: Ints) -> dict[int, int]:
    """Positions of requests in the ledger, by index."""
    found = np.flatnonzero(np.isin(ledger.request, indexes))
    return dict(zip(ledger.request[found].tolist(), found.tolist(), strict=True))


def _largest_entries(ledger: Ledger, place: int) -> list[tuple[str, int, int]]:
    """What made the request slower; causes that made it faster are in its story."""
    own, propagated = ledger.own_ns[:, place], ledger.propagated_ns[:, place]
    order = np.argsort(-(own + propagated), kind="stable")[:_MOST_CAUSES]
    return [(ledger.causes[k], int(own[k]), int(propagated[k])) for k in order if own[k] + propagated[k] > 0]


def _entry_words(cause: str, own_ns: int, propagated_ns: int) -> str:
    return f"{cause} {_ms(own_ns + propagated_ns)}{' (queue)' if abs(propagated_ns) > abs(own_ns) else ''}"
