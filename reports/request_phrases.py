"""Phrases of a request's story that the terminal and the page share. All figures in milliseconds.

Texts from outside come through as they are: whoever shows a phrase makes it safe.
"""

from __future__ import annotations

from collections.abc import Iterator

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import count, from_ns, share, significant
from latfix.results.request_explanation import Entry, Happening, Holder, StageTime, Story, Wait

#: Entries and causes below this are not told one by one.
SMALL_NS = 10_000
_CAUSES_TOLD = 3
_HAPPENINGS_TOLD = 6


def counted(number: int, what: str) -> str:
    """``1 fault``, ``4,476 faults``, ``2 batches``."""
    ending = "" if number == 1 else "es" if what.endswith("h") else "s"
    return f"{count(number)} {what}{ending}"


def _ms(ns: int) -> str:
    return significant(ns / 1e6)


def header_facts(story: Story) -> Iterator[tuple[str, str]]:
    """Names and values of what a reader must know before the timeline."""
    if story.faster_share is not None:
        place = story.ok_requests - (story.faster or 0)
        yield (
            "rank",
            (
                f"slower than {share(story.faster_share)} of the {count(story.ok_requests)} ok requests "
                f"(number {count(place)} from the slowest)"
            ),
        )
    when = significant(abs(story.arrival_ns) / 1e9, 5)
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
    words = f"{batch.batch_id} on worker {batch.worker}, {counted(batch.size, 'request')}"
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


def parts_words(stage: StageTime) -> str:
    """What a stage consists of: ``wait for a prepare thread 0.0788, own work 0.792``."""
    return ", ".join(f"{name} {_ms(ns)}" for name, ns in stage.parts)


def account_words(stage: StageTime) -> str:
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
    told = ", ".join(counted(number, name) for number, name in counts if number)
    return f"{words}; {told}" if told else words


def happening_words(stage: StageTime) -> Iterator[tuple[str, str, bool]]:
    """Events of a stage in words, with their kind and whether they ran in the request's own thread."""
    for event in stage.happenings[:_HAPPENINGS_TOLD]:
        yield _event_words(event), event.kind, event.own
    rest = stage.happenings[_HAPPENINGS_TOLD:]
    if rest:
        number, total = sum(event.count for event in rest), sum(event.duration_ns for event in rest)
        yield f"{count(number)} more events, {_ms(total)}", "note", False


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
    """The wait and since when its threads had been busy."""
    thread = "a worker" if wait.resource == "queue" else "a prepare thread"
    words = f"It waited {from_ns(wait.duration_ns)} for {thread}"
    if wait.busy_since_ns < wait.at_ns:
        words += f", busy without a break since {from_ns(wait.at_ns - wait.busy_since_ns)} before that wait began"
    if wait.idle_ns > SMALL_NS:
        words += f"; {from_ns(wait.idle_ns)} of it no recorded work covers"
    return words + "."


def holder_label(wait: Wait, holder: Holder) -> str:
    """``batch 60 (3)``, or the request that was being prepared."""
    if wait.resource == "queue":
        return f"batch {holder.label} ({count(holder.size)})"
    return holder.label


def why_words(causes: tuple[tuple[str, int], ...], holder: Holder | None = None) -> str:
    """The largest causes of a holder's excess, and what else is known of it."""
    large = [(name, ns) for name, ns in causes if abs(ns) >= SMALL_NS]
    told = large[:_CAUSES_TOLD]
    told += [pair for pair in large[_CAUSES_TOLD:] if pair[0] == UNEXPLAINED]
    words = [f"{name} {_ms(ns)}" for name, ns in told]
    if holder is not None:
        words += holder.facts
        if holder.overtook:
            words.append(f"{count(holder.overtook)} of it came later and went first")
        if not holder.within_ns:
            words.append("over before the wait")
    return ", ".join(words)


def entries_by_size(story: Story) -> tuple[list[Entry], list[Entry]]:
    """Entries that are shown one by one, the largest first, and those that are summed in one line."""
    shown = [entry for entry in story.entries if max(abs(entry.own_ns), abs(entry.propagated_ns)) >= SMALL_NS]
    return shown, [entry for entry in story.entries if entry not in shown]


def balance_words(story: Story) -> str:
    """The ledger's sum in whole nanoseconds, down to what is left of the latency."""
    assert story.reference_ns is not None
    entries = sum(entry.total_ns for entry in story.entries)
    return (
        f"latency {story.latency_ns:,} - quiet request {story.reference_ns:,} - entries {entries:,} = "
        f"{story.difference_ns:,} ns"
    )


def short_entries(story: Story) -> str:
    """The largest entries on one line."""
    return ", ".join(
        f"{entry.cause} {_ms(entry.total_ns)}{' (queue)' if abs(entry.propagated_ns) > abs(entry.own_ns) else ''}"
        for entry in story.entries[:_CAUSES_TOLD]
    )


def short_wait(story: Story) -> str:
    """The longest wait and the work that mattered most in it, on one line."""
    wait = max(story.waits, key=lambda wait: wait.duration_ns, default=None)
    if wait is None or not wait.holders or wait.duration_ns < max(SMALL_NS, 0.02 * story.latency_ns):
        return "nothing"
    worst = max(wait.holders, key=lambda holder: holder.within_ns + max(holder.excess_ns, 0))
    others = len(wait.holders) - 1 + (wait.others.count if wait.others else 0)
    more = f" and {count(others)} more" if others else ""
    why = why_words(worst.causes[:1]) if worst.excess_ns > 0 else ""
    took = f"{_ms(worst.held_ns)}, typical {_ms(worst.typical_ns)}"
    words = f"{_ms(wait.duration_ns)} behind {holder_label(wait, worst)}{more}: {took}"
    return f"{words}; {why}" if why else words
