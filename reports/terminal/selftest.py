"""Terminal report of a self-test: progress by case, the scoreboard, and the conclusion."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import NONE, count, interval, milliseconds, share, significant, visible
from latfix.reports.terminal.widgets import SEVERITY_STYLE, Portable, heading, plain_table, safe
from latfix.reports.vocabulary import Severity
from latfix.results.selftest_scoreboard import CaseScore, Measure, Scoreboard, Share

_LISTED_WRONG = 12
_UNITS = {"ms": milliseconds, "share": share}


def render_scoreboard(board: Scoreboard) -> RenderableType:
    """Measures against their targets, causes one by one, wrong diagnoses, and the conclusion."""
    parts: list[RenderableType] = [_head(board), _measures(board), *_causes(board), *_wrong(board), *_limits(board)]
    parts += [Text(""), safe(board.sentence, f"bold {SEVERITY_STYLE[_severity(board)]}", limit=1000)]
    return Portable(Group(*parts))


def case_line(place: int, of: int, name: str, score: CaseScore | None) -> Text:
    """Progress line of one case: its name, and the outcome once scored."""
    line = Text.assemble((f"{place + 1}/{of} ", "dim"), visible(name, limit=80))
    if score is None:
        return line.append(" …", "dim")
    return line.append_text(Text(": ")).append_text(_outcome(score))


def minutes(seconds: float) -> str:
    """A duration, in seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _outcome(score: CaseScore) -> Text:
    if not score.counted:
        return Text("dropped: no injected fault was large enough", style="dim")
    if score.group == "quiet":
        if score.alarms:
            return safe(f"false alarm: {', '.join(score.alarms)}", SEVERITY_STYLE["bad"])
        return Text("correct: quiet", style=SEVERITY_STYLE["good"])
    if score.top_right:
        return safe(f"correct: {score.top}", SEVERITY_STYLE["good"])
    expected = " or ".join(score.right_tops)
    return safe(f"wrong: {score.top or 'no cause'} instead of {expected}", SEVERITY_STYLE["bad"])


def _head(board: Scoreboard) -> Text:
    faults = sum(case.faults for case in board.cases)
    dropped = sum(case.dropped for case in board.cases)
    uncounted = sum(not case.counted for case in board.cases)
    of = f" of {count(board.planned)} (interrupted)" if board.interrupted else ""
    text = f"Self-test: {count(len(board.cases))}{of} runs in {minutes(board.seconds)}, {count(faults)} faults, "
    text += f"{count(dropped)} dropped as too small"
    if uncounted:
        text += f", {count(uncounted)} runs dropped with them"
    return Text(f"{text}.")


def _measures(board: Scoreboard) -> RenderableType:
    table = plain_table()
    for name, right in (("measure", False), ("value", True), ("95 %", True), ("samples", True), ("target", False)):
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    table.add_column("")
    for measure in board.measures:
        table.add_row(
            safe(measure.words),
            safe(_value(measure)),
            NONE if measure.interval is None else interval([100 * end for end in measure.interval]),
            count(measure.count),
            safe(measure.bar, "dim"),
            _met(measure),
        )
    return table


def _value(measure: Measure) -> str:
    if measure.value is None:
        return NONE
    known = _UNITS.get(measure.unit)
    return known(measure.value) if known is not None else f"{significant(measure.value)} {measure.unit}"


def _met(measure: Measure) -> Text:
    if measure.met is None:
        return Text("too few" if measure.count else "not measured", style="dim")
    return Text("met", style=SEVERITY_STYLE["good"]) if measure.met else Text("missed", style=SEVERITY_STYLE["bad"])


def _causes(board: Scoreboard) -> list[RenderableType]:
    if not board.causes:
        return []
    table = plain_table()
    table.add_column("cause", no_wrap=True)
    for name in ("top if alone", "precision", "recall"):
        table.add_column(name, justify="right")
    table.add_column("mistaken for")
    for cause in board.causes:
        wrong = ", ".join(f"{name} {times}x" for name, times in sorted(cause.taken_for.items(), key=lambda p: -p[1]))
        table.add_row(
            safe(cause.cause), _part(cause.top1), _part(cause.precision), _part(cause.recall), safe(wrong or NONE)
        )
    return [heading("Cause by cause"), table]


def _part(found: Share) -> str:
    return NONE if not found.of else f"{found.hits}/{found.of}"


def _wrong(board: Scoreboard) -> list[RenderableType]:
    wrong = [case for case in board.cases if case.counted and (case.top_right is False or case.alarms)]
    if not wrong:
        return []
    lines: list[RenderableType] = [heading("Wrong diagnoses")]
    for case in wrong[:_LISTED_WRONG]:
        lines.append(Text("  ").append_text(safe(case.id)).append(": ").append_text(_outcome(case)))
    if len(wrong) > _LISTED_WRONG:
        lines.append(Text(f"  and {len(wrong) - _LISTED_WRONG} more (--json lists all)", style="dim"))
    return lines


def _limits(board: Scoreboard) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if board.not_injectable:
        lines.append(heading("Not injected here"))
    for cause, why in sorted(board.not_injectable.items()):
        lines.append(Text.assemble("  ", safe(cause), ": ", safe(why)))
    disturbed = sum(case.disturbed for case in board.cases)
    if disturbed:
        lines.append(
            Text(
                f"\nOther processes disturbed {count(disturbed)} of {count(len(board.cases))} runs. That effect is "
                "real but of unknown size, so it counts neither for nor against the diagnosis."
            )
        )
    alarms = [case for case in board.cases if set(case.traffic_alarms) - set(case.alarms)]
    if alarms:
        names = sorted({cause for case in alarms for cause in case.traffic_alarms})
        lines.append(
            Text.assemble(
                "\nQuiet runs that name ",
                safe(", ".join(names)),
                f": {len(alarms)}. Their arrivals are random, so these waits are real, not false alarms.",
            )
        )
    return lines


def _severity(board: Scoreboard) -> Severity:
    judged = [measure.met for measure in board.measures if measure.met is not None]
    if not judged:
        return "calm"
    return "good" if all(judged) else "warn"
