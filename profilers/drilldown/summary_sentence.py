"""The summary of a request's explanation: why it was slow, in one or two sentences."""

from __future__ import annotations

from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED
from latfix.formatting import count, from_ns
from latfix.results.diagnosis import HARDLY_ABOVE
from latfix.results.request_explanation import Entry, Holder, Story

#: A request is not slow if its excess is below this share of the reference, as a tail is steady then, or within the
#: error of stamps.
_SLOW, _MINOR_NS = HARDLY_ABOVE, 10_000
#: Reasons that fit into one sentence.
_MOST_REASONS = 2
#: Reasons are listed until they reach this share of the excess; unexplained time is mentioned from the second share
#: on.
_ENOUGH, _WORTH = 0.75, 0.2


def closing_sentence(story: Story) -> str:
    """Why the request was slow, or how it ended."""
    if story.row is None:
        return "It was not recorded: it was in flight, or not yet sent, when the run stopped."
    if story.status != "ok":
        return _failed(story)
    if story.reference_ns is None:
        what = "a warm-up request" if story.warmup else "a request without a recorded batch"
        return f"It took {from_ns(story.latency_ns)}; {what} is not in the ledger."
    excess = story.latency_ns - story.reference_ns
    if excess <= max(_SLOW * story.reference_ns, _MINOR_NS):
        than = "no longer than" if excess <= 0 else f"hardly longer ({from_ns(excess)}) than"
        took, quiet = from_ns(story.latency_ns), from_ns(story.reference_ns)
        return f"It was not slow: it took {took}, {than} a quiet request ({quiet})."
    opening = f"It took {from_ns(story.latency_ns)}, {from_ns(excess)} more than a quiet request: "
    reasons = _reasons(story.entries, excess)
    sentence = opening + ", and ".join(reasons) + "." if reasons else opening + "no single cause stands out."
    return sentence + _culprit(story) + _unexplained(story, excess)


def _failed(story: Story) -> str:
    taken = [stage for stage in story.stages if stage.duration_ns > 0]
    ended = taken[-1].stage if taken else "admission"
    words = {
        "error": "It failed",
        "timeout": "Its caller gave up",
        "shed": "It was turned away",
        "unfinished": "The run ended while it was",
    }[story.status]
    longest = max(taken, key=lambda stage: stage.duration_ns, default=None)
    most = ""
    if longest is not None and longest.stage != ended and longest.duration_ns > 0.5 * story.latency_ns:
        most = f", most of it ({from_ns(longest.duration_ns)}) in {longest.stage}"
    deadline = f"; its deadline was {from_ns(story.deadline_ms * 1e6)}" if story.deadline_ms else ""
    reason = f": {story.error.rstrip('.')}" if story.error else ""
    if story.status == "shed":
        return f"{words} {from_ns(story.latency_ns)} after its arrival{reason}."
    return f"{words} in {ended} after {from_ns(story.latency_ns)}{most}{deadline}{reason}." + (
        _culprit(story) if story.status == "timeout" else ""
    )


def _reasons(entries: tuple[Entry, ...], excess: int) -> list[str]:
    """The largest entries as clauses, until they make up most of the excess."""
    reasons: list[str] = []
    listed = 0
    sides = [
        (ns, waits, entry.cause)
        for entry in entries
        for ns, waits in ((entry.own_ns, False), (entry.propagated_ns, True))
        if entry.cause != UNEXPLAINED
    ]
    for ns, waits, cause in sorted(sides, key=lambda side: -side[0]):
        if len(reasons) == _MOST_REASONS or listed >= _ENOUGH * excess or ns < 0.1 * excess:
            break
        known = CATALOGUE.get(cause)
        if waits:
            words = f"waiting behind {known.behind}" if known else f"waiting, for {cause}"
        else:
            words = known.happened if known else cause
        reasons.append(f"{from_ns(ns)} is {words}")
        listed += ns
    return reasons


def _unexplained(story: Story, excess: int) -> str:
    rest = sum(entry.total_ns for entry in story.entries if entry.cause == UNEXPLAINED)
    if abs(rest) < _WORTH * excess:
        return ""
    if rest < 0:
        return f" The causes above claim {from_ns(-rest)} more than it took, so they are uncertain."
    return f" No probe accounts for {from_ns(rest)} of it."


def _culprit(story: Story) -> str:
    """A sentence on the work ahead of it that took much longer than usual, if there is any."""
    wait = max(story.waits, key=lambda wait: wait.duration_ns, default=None)
    if wait is None or wait.duration_ns < _WORTH * story.latency_ns:
        return ""
    ahead = len(wait.holders) + (wait.others.count if wait.others else 0)
    what = {"queue": "batch", "server": "request"}.get(wait.resource, "prepare")
    worst = max(wait.holders, key=_weight, default=None)
    if worst is None:
        return ""
    requests = f"{count(worst.size)} request{'s' if worst.size != 1 else ''}"
    name = {"batch": f"batch {worst.label} ({requests})", "request": worst.label}.get(
        what, f"the prepare of {worst.label}"
    )
    thread = {"batch": "worker", "request": "server"}.get(what, "thread")
    many = f" {count(ahead)} {what}{'es' if what == 'batch' else 's'} ran ahead of it"
    if worst.excess_ns < 0.2 * worst.typical_ns:
        return f"{many}, none of which took much longer than usual." if ahead > 1 else ""
    why = next((cause for cause, ns in worst.causes if ns > 0.3 * worst.excess_ns), "")
    reason = f", mostly because of {why}" if why else ""
    opening = f"{many}; {name}" if ahead > 1 else f" Ahead of it, {name}"
    return (
        f"{opening} held the {thread} for {from_ns(worst.held_ns)}, where "
        f"{from_ns(worst.typical_ns)} is typical{reason}."
    )


def _weight(holder: Holder) -> int:
    return holder.within_ns + max(holder.excess_ns, 0)
