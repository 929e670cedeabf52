"""The Markdown summary for a pull request: verdict, gates, before and after, causes, fixes.

Text from outside (names, reasons, notes) is escaped so that GitHub-flavored Markdown shows it literally: every
character with a meaning there becomes a character reference, so that nothing ends a table cell, starts markup or
HTML, links, or mentions a user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    NONE,
    count,
    finite,
    interval,
    key_label,
    milliseconds,
    rate,
    ratio,
    share,
    significant,
    visible,
)
from latfix.reports.answer import Answer
from latfix.reports.ci.ci_summary import Summary
from latfix.reports.comparison_rows import Change
from latfix.reports.vocabulary import verdict_words
from latfix.results.diagnosis import CauseSummary

#: GitHub shows no larger summary on a run's page.
GITHUB_BYTES = 1_000_000
_LONGEST = 600
_MOST_ROWS = 40
#: Causes below this share of the tail are counted, not listed.
_LEAST_SHARE = 0.01
_PLAIN = frozenset(" ,;%'/?()")
#: Characters without meaning between two letters or digits, as in ``python.gc``, ``98.0`` and ``error_rate``.
_INSIDE = frozenset(".-_")
#: Characters without meaning between a letter or digit and a blank or the end.
_AFTER = frozenset(".:")
#: Characters that GitHub joins with the following text even as references: a mention, an issue, an emoji, a link.
_JOINING = frozenset("@#:")
#: ``GH-12`` links an issue, like ``#12``.
_GITHUB_ISSUE = re.compile(r"(?<![A-Za-z0-9])gh-(?=[0-9])", re.IGNORECASE)
#: Output of :func:`_code` and :func:`_character`; escaped text cannot match these.
_NAME, _REFERENCE = re.compile("<code>(.*?)</code>"), re.compile("&#([0-9]+);")
_OUTCOMES = {"passed": "passed", "failed": "**FAILED**", "undecided": "undecided"}


def markdown(summary: Summary) -> str:
    """The document. Starts with a heading, ends with a line break."""
    name = f": {_code(summary.workload)}" if summary.workload else ""  # a kept comparison has none
    device = f" on {text(summary.device, limit=60)}" if summary.device else ""
    parts = [
        [f"## latfix {summary.command}{name}{device} {_headline(summary)}"],
        _paragraphs(summary),
        _answer(summary.answer),
        _gates(summary),
        _change(summary.change) if summary.change is not None else _run(summary),
        _causes(summary),
        _steps(summary),
        [f"- {text(_stopped(note))}" for note in summary.notes[:_MOST_ROWS]],
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def plain_markdown(summary: Summary) -> str:
    """The document without HTML and character references, for other readers.

    Characters with a meaning are escaped by a backslash; names are in backticks.
    """
    parts = _NAME.split(markdown(summary).replace("<!-- -->", ""))
    parts[::2] = (_REFERENCE.sub(lambda found: f"\\{chr(int(found[1]))}", part) for part in parts[::2])
    names = (_REFERENCE.sub(lambda found: chr(int(found[1])), part) for part in parts[1::2])
    # Backticks allow no escapes, except of the character that ends a table cell.
    parts[1::2] = (f"`{name.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if name else "" for name in names)
    return "".join(parts)


def text(value: object, *, limit: int = _LONGEST) -> str:
    """Text from outside, escaped to be shown literally, on one line."""
    shown = visible(value, limit=limit)
    return "".join(_character(shown, k) for k in range(len(shown)))


def _character(shown: str, k: int) -> str:
    character = shown[k]
    if not character.isascii() or character.isalnum() or character in _PLAIN:
        return character
    before, behind = shown[max(k - 1, 0) : k], shown[k + 1 : k + 2]
    word = before.isascii() and before.isalnum()
    if character in _INSIDE and word and behind.isascii() and behind.isalnum() and not _begins_link(shown, k):
        return character
    if character in _AFTER and word and behind in ("", " ") and not shown[:k].isdigit():  # 1. would begin a list
        return character
    joins = character in _JOINING or (character == "-" and _begins_link(shown, k))
    return f"&#{ord(character)};" + ("<!-- -->" if joins else "")


def _begins_link(shown: str, k: int) -> bool:
    """True if the dot or hyphen at ``k`` would start a link: ``www.``, ``GH-12``."""
    if shown[k] == "-":
        return k >= 2 and _GITHUB_ISSUE.match(shown, k - 2) is not None
    return shown[max(k - 3, 0) : k].lower() == "www"


def _code(value: object, *, limit: int = 200) -> str:
    return f"<code>{text(value, limit=limit)}</code>"


def _headline(summary: Summary) -> str:
    if summary.failure:
        return "— failed"
    words = summary.title or (verdict_words(summary.verdict) if summary.verdict else "")
    return f"— {text(words)}" if words else ""


def _paragraphs(summary: Summary) -> list[str]:
    lines = []
    if summary.failure:
        lines.append(f"**Failed:** {text(_stopped(summary.failure))}")
    if summary.sentence:
        lines += [*([""] if lines else []), text(_stopped(summary.sentence))]
    words = summary.gate_words()
    if words:
        lines += [*([""] if lines else []), f"**{text(words[0].upper() + words[1:])}**"]
    return lines


def _answer(answer: Answer | None) -> list[str]:
    """The lines of the answer; the reasons of gates are in the table of gates."""
    known = [] if answer is None else zip(answer.lines, answer.labeled(), strict=True)
    lines = [labeled for line, labeled in known if line.label or labeled.label != "gates"]
    return [
        f"- **{text(line.label)}** {_code(line.words, limit=_LONGEST) if line.is_command else text(line.words)}"
        for line in lines
    ]


def _stopped(sentence: str) -> str:
    """The sentence with a full stop; ``p99`` at its start stays lowercase."""
    return sentence if sentence[-1:] in ".!?…" else f"{sentence}."


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    """A table; the first ``left`` columns are text, the others figures."""
    rule = ["---" if k < left else "---:" for k in range(len(columns))]
    lines = [columns, rule, *rows]
    return [f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines] if len(lines) > 2 else []


def _gates(summary: Summary) -> list[str]:
    rows = [(_code(gate.gate), _OUTCOMES[gate.outcome], text(gate.reason)) for gate in summary.gates[:_MOST_ROWS]]
    rows += [(_code(gate), "not evaluated", "the run did not finish") for gate in summary.unjudged[:_MOST_ROWS]]
    return _table(("gate", "outcome", "why"), rows, left=3)


def _run(summary: Summary) -> list[str]:
    arm = summary.run
    if arm is None or all(value is None for value in arm.latency_ms.values()):
        return []
    bounds = arm.latency_ci95_ms
    rows = [(f"{key_label(key)}, ms", words, interval(bounds.get(key))) for key, words in arm.latency_words().items()]
    rows.append(("throughput", rate(arm.throughput_rps), ""))
    rows += [(f"requests {name}", count(number), "") for name, number in arm.requests.items()]
    if arm.accuracy is not None:
        rows.append(("accuracy", significant(arm.accuracy), ""))
    return _table(("figure", "value", "95 % interval"), rows)


def _change(change: Change) -> list[str]:
    rows = []
    for row in change.rows():
        shown = "" if row.ratio is None else ratio(row.ratio.value, "×")
        decisive = row.ratio is not None and row.ratio.decisive
        rows.append((row.name, row.before, row.after, f"**{shown}**" if decisive else shown, row.note))
    return _table(("figure", change.before.label, change.after.label, "ratio", "95 % interval"), rows)


def _causes(summary: Summary) -> list[str]:
    worth = [cause for cause in summary.causes if cause.named or abs(finite(cause.tail_share) or 0.0) >= _LEAST_SHARE]
    rows = [
        (
            _code(cause.cause),
            " ".join(_code(fix) for fix in cause.fixes[:8]) or NONE,
            "named" if cause.named else "",
            *_size(cause),
        )
        for cause in worth[:_MOST_ROWS]
    ]
    if rows and len(worth) < len(summary.causes):
        rows.append((f"{len(summary.causes) - len(worth)} smaller causes", "", "", "", "", ""))
    return _table(("cause of the tail", "fixes", " ", "mean in the tail, ms", "95 % interval", "share"), rows, left=3)


def _size(cause: CauseSummary) -> tuple[str, str, str]:
    """Milliseconds, interval and share; where causes claim more than the excess, nothing is left unexplained."""
    if cause.cause == UNEXPLAINED and cause.tail_ms < 0:
        return f"about 0 (causes overlap by {milliseconds(-cause.tail_ms)})", "", ""
    return significant(cause.tail_ms), interval(cause.ci95_ms), share(cause.tail_share)


def _steps(summary: Summary) -> list[str]:
    rows = [
        (
            _code(step.fix),
            f"**{step.words}**" if step.status == "kept" else text(step.words),
            text(step.reason),
            ratio(step.mean.value, "×"),
            step.p99.words(),
            significant(step.p99_ms),
        )
        for step in summary.steps[:_MOST_ROWS]
    ]
    return _table(("fix", "status", "why", "mean", "p99", "p99, ms"), rows, left=3)
