"""Annotations of a GitHub Actions run: workflow commands, one per line, the most urgent first."""

from __future__ import annotations

from collections.abc import Iterator

from latfix.formatting import visible
from latfix.reports.ci.ci_summary import Summary

_LONGEST = 1000


def annotation_lines(summary: Summary) -> Iterator[str]:
    """An ``error`` for a failed run and each failed gate, a ``warning`` for each undecided one, and a ``notice``.

    GitHub shows at most ten of each level in a step.
    """
    title = f"latfix {summary.command} {summary.workload}".rstrip()
    if summary.failure:
        yield _command("error", title, summary.failure)
    for outcome, gate in summary.findings():
        level = "error" if outcome == "failed" else "warning"
        yield _command(level, f"gate {gate.gate} {outcome}", gate.reason)
    for gate_text in summary.unjudged:
        yield _command("warning", f"gate {gate_text} not evaluated", summary.failure or "the run did not finish")
    words = "; ".join(part for part in (summary.sentence.rstrip("."), summary.gate_words()) if part)
    if words:
        yield _command("notice", title, words)


def _command(level: str, title: str, message: str) -> str:
    title = _escaped(visible(title, limit=200)).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped(visible(message, limit=_LONGEST))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
