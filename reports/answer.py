"""What a reader must know first: did it get better, by how much, how sure, why, may I merge, what next.

The first screen of a page and of a pull request's summary, and the last screen of a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from latfix.formatting import (
    LATENCY_KEYS,
    LOST,
    finite,
    interval_bounds,
    key_label,
    milliseconds,
    percent,
    significant,
    speed_range,
    speed_words,
    uncertain,
    uncertain_bounds,
)
from latfix.reports.comparison_rows import (
    Change,
    GateRow,
    Ratio,
    comparison_change,
    gate_rows,
    optimization_change,
    ratio_of,
)
from latfix.reports.diagnosis_rows import cause_advice, closing_advice, focus_key
from latfix.reports.next_commands import optimize_command, replay_command, try_harder_command
from latfix.reports.plan_rows import best_seen, floor_words, kept_words, plan_is_empty
from latfix.reports.side_effects import side_effect_words
from latfix.reports.sweep_rows import SweepRows, largest_words
from latfix.reports.vocabulary import Severity, cause_words, change_severity, diagnosis_severity, verdict_words
from latfix.results.comparison import Comparison, Trial, TriedIdea
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import Optimization

#: Causes that are told as the reason.
_REASONS = 2
#: Times the percentile from which the slowest requests have a line of their own.
_FAR_BEYOND = 2.0
#: One more worker is told of where it would bring a percentile below this part of what it is.
_WORTH_A_WORKER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One question's answer.

    :param label: the question, in a word.
    :param is_command: the words are a command to type.
    """

    label: str
    words: str
    severity: Severity | None = None
    is_command: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A headline, and the lines below it in the order in which a reader asks."""

    headline: str
    severity: Severity
    lines: tuple[Line, ...]


def diagnosis_answer(found: Diagnosis, *, workload: str | None = None) -> Answer:
    """Of a single run.

    :param workload: what to type for it; its name where it is ``None``.
    """
    key, lines = focus_key(found), []
    value, bounds = found.latency_ms.get(key), found.latency_ci95_ms.get(key)
    if found.requests.get("ok"):
        if bounds is not None and finite(value) is not None and interval_bounds(bounds) is not None:
            once = _once(found)
            words = f"between {uncertain_bounds(bounds, ' and ')} ms (95 %, {once})"
            lines.append(Line(label="how sure", words=words.replace("between up to", "at most")))
            lines += [*_restarts(found), *_recorded(found)]
        lines += _reasons(found)
        if found.incident is not None:
            lines.append(Line(label="when", words=found.incident.sentence(key_label(key))))
    lines += _slowest(found, finite(value))
    lines += _capacity(found, key)
    for number, each in enumerate(found.advice[:_REASONS]):
        words = f"{each.server}: {each.change} (for {each.cause}; {each.server} by {each.told_by})"
        lines.append(Line(label="" if number else "try", words=words))
    proposed = f"{key_label(key)}<{significant(value, 2).replace(',', '')}ms" if finite(value) else ""
    lines += _merge(gate_rows(found.gates), proposed)
    if closing := closing_advice(found):
        lines.append(Line(label="next", words=closing))
    elif _is_replay(found) and any(entry.fixes for entry in cause_advice(found)):
        lines.append(Line(label="next", words=optimize_command(workload or found.workload), is_command=True))
    return Answer(headline=found.sentence, severity=diagnosis_severity(found), lines=tuple(lines))


def _slowest(found: Diagnosis, at_ms: float | None) -> Iterator[Line]:
    """The few requests far beyond the percentile, which the other lines are not about."""
    if found.largest is not None and at_ms is not None and found.largest.most_ms > _FAR_BEYOND * at_ms:
        yield Line(label="slowest", words=found.largest.sentence())


def _capacity(found: Diagnosis, key: str) -> Iterator[Line]:
    """What one more worker would give, where slow requests wait for one."""
    now, then = finite(found.latency_ms_ok.get(key)), finite(found.another_worker_ms.get(key))
    if now is not None and then is not None and then < _WORTH_A_WORKER * now:
        words = f"one more worker, as fast as now, would make {key_label(key)} about {significant(then, 2)} ms"
        yield Line(label="capacity", words=f"{words} (simulated; latfix try measures it)")


def _once(found: Diagnosis) -> str:
    """What the interval does not cover."""
    if _is_recording(found):
        return "this one recording"
    where = " on a disturbed machine" if found.disturbed else ""
    more = "; a restart may differ (--rounds 5)" if found.restarts is None and _is_replay(found) else ""
    return f"this one run{where}{more}"


def _restarts(found: Diagnosis) -> Iterator[Line]:
    """What other runs of the same service showed."""
    runs = found.restarts
    if runs is None:
        return
    several = "fresh processes" if runs.source == "rounds" else "earlier runs"
    values = ", ".join(LOST if value is None else significant(value) for value in runs.values_ms)
    words = f"{key_label(runs.key)} of {len(runs.values_ms)} {several}: {values} ms"
    if (bounds := runs.next_ms) is not None:
        words += f"; one more would be between {significant(bounds[0], 2)} and {significant(bounds[1], 2)} ms (95 %)"
    yield Line(label="restarts", words=words)


def _recorded(found: Diagnosis) -> Iterator[Line]:
    """What the same requests took where imported traffic was recorded."""
    pairs = [
        f"{key_label(key)} {significant(then)}, now {significant(now)} ms"
        for key in dict.fromkeys(("p50", focus_key(found)))
        if (then := finite(found.recorded_ms.get(key))) is not None
        and (now := finite(found.latency_ms.get(key))) is not None
    ]
    if pairs:
        yield Line(label="recorded", words="where the traffic was recorded " + "; ".join(pairs))


def _is_replay(found: Diagnosis) -> bool:
    """Whether it can be replayed again with a fix; a recording cannot."""
    return found.source is None or found.source.kind == "replay"


def _is_recording(found: Diagnosis) -> bool:
    """Whether latfix only read it; it replays against an address, too."""
    return not _is_replay(found) and (found.source is None or found.source.kind != "http")


def _reasons(found: Diagnosis) -> Iterator[Line]:
    """The largest named causes: what they are, what would be without them, and what treats them."""
    whole = f"the {found.unit}" if found.is_single else "the tail's excess" if found.is_timed else "the stalls"
    for number, cause in enumerate(cause_advice(found)[:_REASONS]):
        told = (cause.evidence.rstrip(".") if _is_recording(found) else cause.words) or "see its evidence"
        told += f"; cores went to {cause.culprit}" if cause.culprit else ""
        words = f"{cause.cause}, {percent(cause.share)} of {whole}: {told}"
        if number and _is_replay(found):
            yield Line(label="", words=words)
            continue
        if cause.predicted:
            words += f"; without it {cause.focus} would be {cause.predicted} ms"
        fixes = f"; fixes: {', '.join(cause.fixes)}" if cause.fixes else "; latfix has no fix for it"
        if not cause.fixes and not _is_replay(found):
            fixes = ""
        yield Line(label="" if number else "why", words=words + fixes)


def optimization_answer(found: Optimization, *, workload: str, plan: str) -> Answer:
    """Of an optimization.

    :param workload: what to type for it; ``plan`` the plan's path.
    """
    change = optimization_change(found)
    disturbed = [Line(label="disturbed", words=found.disturbed, severity="warn")] if found.disturbed else []
    lines = [*disturbed, *_sure(change, found.rounds), *_why(found)]
    if words := floor_words(found):
        lines.append(Line(label="limit", words=words))
    if found.rounds:
        lines.append(_side_effects(change))
    lines += _merge(gate_rows(found.gates), "p99<=baseline" if found.rounds else "")
    lines += _next(found, workload, plan)
    return Answer(headline=_headline(change, found), severity=change_severity(found.verdict), lines=tuple(lines))


def _headline(change: Change, found: Optimization) -> str:
    """Whether it got better, and by how much; without a final replay nothing has changed."""
    name, key = key_label(change.judged), change.judged
    if found.rounds:
        return change_headline(change, "disturbed" if _undone(found) else found.verdict)
    stays = f"{name} stays {milliseconds(change.before.latency_ms.get(key))}"
    if found.interrupted:
        return f"Interrupted before anything was proved: {stays}"
    if found.disturbed:
        return f"Disturbed, nothing is decided: {stays}"
    if found.verdict == "inconclusive":
        return f"Undecided: no fix was tried to the end, {stays}"
    return f"No fix is proved to help: {stays}"


def _undone(found: Optimization) -> bool:
    """Whether nothing was decided on a machine that others disturbed."""
    return bool(found.disturbed) and found.verdict != "improved"


def change_headline(change: Change, verdict: str) -> str:
    """``Better: p99 412 → 98 ms, 4.2 times faster``."""
    key = change.judged
    before, after = (arm.latency_ms.get(key) for arm in (change.before, change.after))
    words = "Undecided" if verdict in ("inconclusive", "undecided") else verdict_words(verdict).capitalize()
    moved = f"{key_label(key)} {significant(before)} → {milliseconds(after)}"
    return f"{words}: {moved}, {speed_words(change.ratio(key).value)}"


def _sure(change: Change, rounds: int) -> Iterator[Line]:
    """The interval of the figure that is judged, and of the mean, in words."""
    if not rounds:
        return
    step = change.ratio(change.judged)
    words = speed_range(step.ci95)
    if words:
        doubt = "" if step.decisive or _around_one(step) else "; so few restarts may differ by as much"
        yield Line(label="how sure", words=f"{words} (95 %, {rounds_words(rounds)}){doubt}")
    if change.judged != "mean" and (mean := change.ratio("mean")).value is not None:
        said = speed_range(mean.ci95)
        yield Line(label="mean", words=f"{speed_words(mean.value)}{f' ({said})' if said else ''}")


def _around_one(step: Ratio) -> bool:
    return step.ci95 is not None and step.ci95[0] <= 1 <= step.ci95[1]


def _why(found: Optimization) -> Iterator[Line]:
    cause = found.diagnosis.verdict if found.diagnosis is not None else ""
    against = f"{cause} ({cause_words(cause)})" if cause_words(cause) else ""
    if words := kept_words(found):
        yield Line(label="why", words=words + (f"; what made p99 was {against}" if against else ""))
    elif against:
        yield Line(label="why", words=f"p99 is made by {against}, and nothing tried was proved to mend it")
    if plan_is_empty(found) and (best := best_seen(found)):
        yield Line(label="best seen", words=best.words)


def _next(found: Optimization, workload: str, plan: str) -> Iterator[Line]:
    best = best_seen(found)
    if not plan_is_empty(found) and found.plan:
        yield Line(label="next", words=replay_command(workload, plan), is_command=True)
    elif best is not None:
        yield Line(label="decide it", words=try_harder_command(workload, best.fixes), is_command=True)
    elif found.diagnosis is not None:
        yield Line(label="next", words="more --budget, or the code that the diagnosis of the baseline points at")


def comparison_answer(found: Comparison) -> Answer:
    """Of two runs, or of a gate's rounds."""
    change = comparison_change(found)
    lines = [*_sure(change, found.rounds)]
    for number, why in enumerate(found.why):
        lines.append(Line(label="" if number else "why", words=why.sentence))
    lines.append(_side_effects(change))
    lines += _merge(gate_rows(found.gates), f"{key_label(change.judged)}<=baseline*1.1")
    if found.more_rounds:
        more = rounds_words(found.more_rounds)
        lines.append(Line(label="next", words=f"about {more} more of both on fresh processes would decide it"))
    return Answer(
        headline=change_headline(change, found.verdict),
        severity=change_severity(found.verdict),
        lines=tuple(lines),
    )


def sweep_answer(rows: SweepRows) -> Answer:
    """Of a sweep."""
    found = rows.found
    lines: list[Line] = []
    if rows.judged and found.best is None:
        for setting in rows.settings:
            if setting.found.largest is not None:
                known = largest_words(setting.found.largest)
                words = known if known.startswith(setting.status) else f"{known}, {setting.status}"
                lines.append(Line(label="largest" if not lines else "", words=f"{setting.found.label}: {words}"))
    knee = rows.best_setting()
    knee = knee if knee is not None and knee.found.knee is not None else rows.top_knee()
    if knee is not None:
        lines.append(Line(label="knee", words=f"{knee.knee_words()} with {knee.found.label}"))
    example = "" if not rows.judged else "--at-least RPS"
    if rows.gate is not None or example:
        gates = [] if rows.gate is None else [rows.gate]
        lines += _merge(gates, "") if gates else [Line(label="merge?", words=f"no gate was given: {example}")]
    return Answer(headline=rows.sentence(), severity=rows.severity(), lines=tuple(lines))


def trial_answer(found: Trial) -> Answer:
    """Of ideas side by side."""
    name, best = key_label(found.judged), next((idea for idea in found.ideas if idea.name == found.best), None)
    leads = best or _leading(found)
    if leads is None or leads.comparison is None:
        return Answer(headline=f"No idea was replayed, so none is better by {name}", severity="warn", lines=())
    step = ratio_of(leads.comparison.ratio.get(found.judged))
    gain = f"{name} {speed_words(step.value)}"
    if best is not None:
        headline = f"Best is {best.name}: {gain}"
    else:
        headline = f"No idea is proved better by {name}; {leads.name} looks best: {gain}"
    lines = []
    if words := speed_range(step.ci95):
        lines.append(Line(label="how sure", words=f"{words} (95 %, {rounds_words(found.rounds)})"))
    lines += [*_idea_lines(leads), _side_effects(comparison_change(leads.comparison))]
    more = leads.comparison.more_rounds
    if best is None and more:
        lines.append(Line(label="next", words=f"about {rounds_words(more)} more would decide it: a larger --budget"))
    return Answer(headline=headline, severity="calm" if best is None else "good", lines=tuple(lines))


def _leading(found: Trial) -> TriedIdea | None:
    """The idea with the least ratio of those within the limit of accuracy."""
    known = [
        (estimate.value, place, idea)
        for place, idea in enumerate(found.ideas)
        if idea.comparison is not None
        and idea.accurate is not False
        and (estimate := idea.comparison.ratio.get(found.judged)) is not None
        and estimate.value == estimate.value
    ]
    return min(known)[2] if known else None


def _idea_lines(idea: TriedIdea) -> Iterator[Line]:
    if idea.accurate is not None:
        said = "within its limit" if idea.accurate else "beyond its limit"
        yield Line(label="accuracy", words=f"{significant(idea.accuracy)}, {said}")


def rounds_words(number: int) -> str:
    """``1 round``, ``3 rounds``."""
    return "1 round" if number == 1 else f"{number} rounds"


def _side_effects(change: Change) -> Line:
    """What got worse beside, in one line."""
    words, worse = side_effect_words(change)
    return Line(label="worse", words=words, severity="warn" if worse else None)


def _merge(gates: Sequence[GateRow], example: str) -> Iterator[Line]:
    """May I merge? Each gate that did not pass, with its reason."""
    if not gates:
        if example:
            yield Line(label="merge?", words=f"no gate was given that would say, such as --gate '{example}'")
        return
    failed = [gate for gate in gates if gate.outcome == "failed"]
    undecided = [gate for gate in gates if gate.outcome == "undecided"]
    of = f"{len(gates)} gate{'' if len(gates) == 1 else 's'}"
    if failed:
        yield Line(label="merge?", words=f"no: {len(failed)} of {of} failed", severity="bad")
    elif undecided:
        yield Line(label="merge?", words=f"cannot tell: {len(undecided)} of {of} undecided", severity="warn")
    else:
        yield Line(label="merge?", words=f"yes: {of} passed", severity="good")
    for gate in (*failed, *undecided):
        word = "failed" if gate.outcome == "failed" else "cannot tell"
        reason = f": {gate.reason}" if gate.reason else ""
        yield Line(label="", words=f"{gate.gate} {word}{reason}", severity=gate.severity)


def latency_words(found: Diagnosis) -> list[str]:
    """Each latency of ``LATENCY_KEYS``, to the digit that its interval leaves open; none above the maximum."""
    most, words = found.latency_ms.get("max"), []
    for key in LATENCY_KEYS:
        value = found.latency_ms.get(key)
        rounded = uncertain(value, found.latency_ci95_ms.get(key))
        beyond = most is not None and rounded[:1].isdigit() and float(rounded.replace(",", "")) > most
        words.append(significant(value) if beyond or key == "max" else rounded)
    return words
