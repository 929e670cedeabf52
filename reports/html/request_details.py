"""One request's story on the page: a closed box with its timeline, what it waited behind, and its ledger."""

from __future__ import annotations

from latfix.formatting import NONE, count, from_ns, significant
from latfix.reports.elements import Column, Content, Html, element, joined, table
from latfix.reports.request_phrases import (
    account_words,
    balance_words,
    entries_by_size,
    happening_words,
    header_facts,
    holder_label,
    parts_words,
    wait_words,
    why_words,
)
from latfix.results.request_explanation import Entry, Holder, StageTime, Story, Wait
from latfix.stages import STAGES


def story_details(story: Story) -> Html:
    """The whole story of a request, folded under its id and latency."""
    parts: list[Content] = [element("p", story.sentence)]
    facts = list(header_facts(story))
    parts.append(element("p", "; ".join(f"{name}: {words}" for name, words in facts), class_="soft"))
    if story.stages:
        parts.append(_timeline(story))
    for wait in story.waits:
        if wait.holders:
            parts += [element("p", wait_words(wait)), _wait(story, wait)]
    if story.reference_ns is not None:
        parts += [_ledger(story), element("p", balance_words(story), class_="soft")]
    title = joined([element("code", story.id), f": {from_ns(story.latency_ns)}, {story.status}"])
    return element("details", element("summary", title), *parts)


def _ms(ns: int) -> str:
    return significant(ns / 1e6)


def _timeline(story: Story) -> Html:
    columns = [
        Column(title="stage", numeric=False),
        Column(title="from"),
        Column(title="took"),
        Column(title="when", numeric=False),
        Column(title="what the thread did", numeric=False),
    ]
    rows: list[list[Content]] = [
        [
            stage.stage,
            _ms(stage.at_ns),
            element("strong", _ms(stage.duration_ns)),
            _strip(stage, max(story.latency_ns, 1)),
            _did(stage),
        ]
        for stage in story.stages
    ]
    return table(f"Timeline of {story.id}, ms from its arrival", columns, rows)


def _strip(stage: StageTime, scale: int) -> Html:
    """Where in the request's life the stage lies."""
    left = min(max(stage.at_ns / scale, 0.0), 1.0) * 100
    width = max(min(max(stage.duration_ns / scale, 0.0) * 100, 100 - left), 0.3)
    position = STAGES.index(stage.stage)
    bar = element(
        "rect", x=f"{left:.1f}", y="0", width=f"{width:.1f}", height="8", style=f"fill: var(--stage-{position})"
    )
    return element("svg", bar, viewBox="0 0 100 8", preserveAspectRatio="none", class_="strip", aria_hidden="true")


def _did(stage: StageTime) -> Html:
    lines: list[Content] = [words for words in (parts_words(stage), account_words(stage)) if words]
    lines += [
        element("span", words, class_="bad" if kind == "error" else None if own else "soft")
        for words, kind, own in happening_words(stage)
    ]
    broken: list[Content] = []
    for line in lines:
        broken += [element("br"), line] if broken else [line]
    return joined(broken)


def _wait(story: Story, wait: Wait) -> Html:
    columns = [
        Column(title="work", numeric=False),
        Column(title="from"),
        Column(title="held"),
        Column(title="of the wait"),
        Column(title="typical"),
        Column(title="excess"),
        Column(title="why", numeric=False),
    ]
    rows: list[list[Content]] = [_holder(wait, holder) for holder in wait.holders]
    others = wait.others
    if others is not None:
        name = f"{count(others.count)} others"
        within, why = _ms(others.within_ns), why_words(others.causes)
        rows.append([name, "", _ms(others.held_ns), within, "", _ms(others.excess_ns), why])
    what = "was prepared before" if wait.resource == "prepare" else "waited behind"
    return table(f"What {story.id} {what}, ms", columns, rows)


def _holder(wait: Wait, holder: Holder) -> list[Content]:
    return [
        holder_label(wait, holder),
        _ms(holder.at_ns),
        _ms(holder.held_ns),
        _ms(holder.within_ns) if holder.within_ns else NONE,
        _ms(holder.typical_ns),
        element("strong", _ms(holder.excess_ns)),
        why_words(holder.causes, holder),
    ]


def _ledger(story: Story) -> Html:
    assert story.reference_ns is not None
    columns = [
        Column(title="entry", numeric=False),
        Column(title="ms"),
        Column(title="own"),
        Column(title="through the queue"),
        Column(title="sum so far"),
        Column(title="known by", numeric=False),
    ]
    shown, small = entries_by_size(story)
    total = story.reference_ns
    rows: list[list[Content]] = [["a quiet request", _ms(total), "", "", _ms(total), ""]]
    for entry in shown:
        total += entry.total_ns
        rows.append(_entry(entry, total))
    if small:
        own, queue = sum(entry.own_ns for entry in small), sum(entry.propagated_ns for entry in small)
        total += own + queue
        name = f"{count(len(small))} smaller {'entry' if len(small) == 1 else 'entries'}"
        rows.append([name, _ms(own + queue), _ms(own), _ms(queue), _ms(total), ""])
    rows.append(["latency", element("strong", _ms(story.latency_ns)), "", "", _ms(total), ""])
    return table(f"The ledger of {story.id}, ms", columns, rows)


def _entry(entry: Entry, total: int) -> list[Content]:
    queue = _ms(entry.propagated_ns) if entry.propagated_ns else NONE
    own = _ms(entry.own_ns) if entry.own_ns else NONE
    return [entry.cause, _ms(entry.total_ns), own, queue, _ms(total), entry.evidence_class]
