"""The answer block: the result in one headline, then its interval, reasons, side effects, gates and next step.

It is the first screen of a page, the top of a pull request's summary, and the last screen of a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    LOST,
    NONE,
    counted,
    finite,
    key_label,
    milliseconds,
    percent,
    percentile_label,
    rounded_up,
    significant,
    speed_range,
    speed_words,
    uncertain_bounds,
)
from latfix.gates.bounds import Held, figure_bounds
from latfix.gates.evaluate import evaluate
from latfix.gates.subject import GateSubject
from latfix.gates.syntax import parse_gate
from latfix.lower_bound import AtLeast
from latfix.reports.comparison_rows import (
    Change,
    GateRow,
    comparison_change,
    gate_rows,
    optimization_change,
    ratio_of,
    result_words,
)
from latfix.reports.diagnosis_rows import (
    cause_actions,
    cause_advice,
    closing_advice,
    is_replay,
    unread_option,
)
from latfix.reports.next_commands import (
    map_command,
    optimize_command,
    replay_command,
    resume_command,
    try_harder_command,
)
from latfix.reports.plan_rows import best_candidate, floor_words, kept_words, plan_is_empty
from latfix.reports.side_effects import FEW_ROUNDS, side_effect_words
from latfix.reports.sweep_rows import SweepRows, largest_words
from latfix.reports.vocabulary import Severity, cause_words, change_severity, diagnosis_severity, verdict_words
from latfix.results.comparison import Comparison, Trial, TriedIdea
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import Optimization
from latfix.statistics.percentiles import percentile_key

#: Share of the excess from which what is known of unexplained time is shown.
_MOSTLY = 0.5
#: The next step after a replay that was too late to mean anything.
_QUIETER = "repeat it on a quieter machine: this replay was too late for its figures to mean anything"
#: Causes listed as the reason.
_REASONS = 2
#: The slowest requests get their own line if the maximum exceeds the percentile by this factor.
_FAR_BEYOND = 2.0
#: One more worker is suggested if it would reduce the percentile to less than this share.
_WORTH_A_WORKER = 0.8
_NEXT = "next step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One labeled line of the answer.

    :param label: empty where the line continues the one above.
    :param is_command: the words are a command to type.
    """

    label: str
    words: str
    severity: Severity | None = None
    is_command: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A headline and the lines below it."""

    headline: str
    severity: Severity
    lines: tuple[Line, ...]

    def labeled(self) -> Iterator[Line]:
        """The lines, each with its label: that of the line above where it continues one."""
        label = ""
        for line in self.lines:
            label = line.label or label
            yield replace(line, label=label)


def diagnosis_answer(found: Diagnosis, *, workload: str | None = None) -> Answer:
    """The answer for a single run.

    :param workload: the workload as a user types it; ``None`` for its name.
    """
    key, lines = percentile_key(found.percentile), []
    value, bounds = found.latency_ms.get(key), found.latency_ci95_ms.get(key)
    if found.requests.get("ok"):
        if finite(value) is not None and (known := uncertain_bounds(bounds)) != NONE:
            lines.append(Line(label="95 % interval", words=f"{known} ms, from {_sample(found)}"))
        lines += [*_restarts(found), *_recorded(found)]
        lines += _objective(GateSubject.from_diagnosis(found), key, found.slo_ms)
        lines += _reasons(found)
        if found.incident is not None:
            outside = found.source is not None and found.source.kind == "http"
            lines.append(Line(label="when", words=found.incident.sentence(key_label(key), outside=outside)))
    lines += _slowest(found, finite(value))
    lines += _capacity(found, key)
    for number, each in enumerate(found.advice[:_REASONS]):
        recognized = f"; {each.server} recognized by {each.told_by}" if each.told_by else ""
        words = f"{each.server}: {each.change} (against {each.cause}{recognized})"
        lines.append(Line(label="" if number else "try", words=words))
    passing = _passing_gate(GateSubject.from_diagnosis(found), key)
    example = passing if found.slo_ms is None else f"--gate '{_goal(key, found.slo_ms)}'"
    lines += _gates(gate_rows(found.gates), example)
    if not found.trustworthy:
        lines.append(Line(label=_NEXT, words=_QUIETER))
    elif found.source is not None and (option := unread_option(found)):
        lines.append(Line(label=_NEXT, words=map_command(found.source.path, option), is_command=True))
    elif closing := closing_advice(found):
        lines.append(Line(label=_NEXT, words=closing))
    elif is_replay(found) and any(entry.fixes for entry in cause_advice(found)):
        lines.append(Line(label=_NEXT, words=optimize_command(workload or found.workload), is_command=True))
    elif _is_recording(found) and found.verdict != "steady":
        action = next((action for action in cause_actions(found).values() if action), "")
        lines += [Line(label=_NEXT, words=action)] if action else []
    return Answer(headline=found.sentence, severity=diagnosis_severity(found), lines=tuple(lines))


def _passing_gate(subject: GateSubject, key: str) -> str:
    """An option with a gate above the percentile and its interval, which this run passes; empty if there is none."""
    value = subject.latency_ms.get(key, math.nan)
    if isinstance(value, AtLeast) or not value > 0:
        return ""
    gate = parse_gate(_goal(key, value))
    bounds = figure_bounds(Held(gate=gate, subject=subject, figure=value)) or (value, value)
    if not math.isfinite(bounds[1]):
        return ""
    text = f"{key_label(key)}<{rounded_up(max(value, bounds[1]))}ms"
    return f"--gate '{text}'" if evaluate(parse_gate(text), subject).passed else ""


def _goal(key: str, limit_ms: float) -> str:
    """The workload's objective as a gate."""
    return f"{key_label(key)}<{limit_ms:.12g}ms"


def _objective(subject: GateSubject, key: str, limit_ms: float | None) -> Iterator[Line]:
    """Whether the percentile meets the workload's limit, as a gate would decide it; without an exit code."""
    value = subject.latency_ms.get(key)
    if limit_ms is None or value is None or math.isnan(value):
        return
    result = evaluate(parse_gate(_goal(key, limit_ms)), subject)
    words = f"{key_label(key)} {milliseconds(value)}, limit {milliseconds(limit_ms)}"
    if result.passed is None:
        why = result.reason.partition(f"limit {result.gate.show(limit_ms)}")[2].lstrip(",: ") or result.reason
        yield Line(label="objective", words=f"{words}: undecided, {why}", severity="warn")
    elif result.passed:
        yield Line(label="objective", words=f"{words}: met", severity="good")
    else:
        yield Line(label="objective", words=f"{words}: missed", severity="bad")


def _slowest(found: Diagnosis, at_ms: float | None) -> Iterator[Line]:
    """Requests far beyond the percentile, which the other lines do not cover."""
    if found.largest is not None and at_ms is not None and found.largest.most_ms > _FAR_BEYOND * at_ms:
        yield Line(label="slowest", words=found.largest.sentence())


def _capacity(found: Diagnosis, key: str) -> Iterator[Line]:
    """The predicted gain of one more worker, where slow requests wait for one."""
    now, then = finite(found.latency_ms_ok.get(key)), finite(found.another_worker_ms.get(key))
    if now is not None and then is not None and then < _WORTH_A_WORKER * now:
        words = f"one more worker of the same speed would bring {key_label(key)} to about {significant(then, 2)} ms"
        yield Line(label="capacity", words=f"{words} (simulated; latfix try measures it)")


def _sample(found: Diagnosis) -> str:
    """What the interval rests on, and so what it does not cover."""
    if _is_recording(found):
        return "this one recording"
    where = " on a disturbed machine" if found.disturbed else ""
    alone = found.restarts is None and is_replay(found)
    moved = "; a restart may move it further, --rounds 5 measures how far"
    return f"this one run{where}{moved if alone else ''}"


def _restarts(found: Diagnosis) -> Iterator[Line]:
    """The percentile in other runs of the same service."""
    runs = found.restarts
    if runs is None:
        return
    several = "fresh processes" if runs.source == "rounds" else "earlier runs"
    values = ", ".join(LOST if value is None else significant(value) for value in runs.values_ms)
    words = f"{key_label(runs.key)} of {len(runs.values_ms)} {several}: {values} ms"
    if (bounds := runs.next_ms) is not None:
        words += f"; expected of the next: {significant(bounds[0], 2)} to {significant(bounds[1], 2)} ms (95 %)"
    yield Line(label="restarts", words=words)


def _recorded(found: Diagnosis) -> Iterator[Line]:
    """Latency of the same requests when the imported traffic was recorded."""
    pairs = [
        f"{key_label(key)} {significant(then)} ms, now {significant(now)} ms"
        for key in dict.fromkeys(("p50", percentile_key(found.percentile)))
        if (then := finite(found.recorded_ms.get(key))) is not None
        and (now := finite(found.latency_ms.get(key))) is not None
    ]
    if pairs:
        yield Line(label="recorded", words="when the traffic was recorded: " + "; ".join(pairs))


def _is_recording(found: Diagnosis) -> bool:
    """True if latfix only read it: neither replayed it nor sent it to an address."""
    return not is_replay(found) and (found.source is None or found.source.kind != "http")


def _reasons(found: Diagnosis) -> Iterator[Line]:
    """The largest named causes, each with the predicted latency without it and its fixes."""
    whole = f"the {found.unit}" if found.is_single else "the tail's excess"
    for number, cause in enumerate(cause_advice(found)[:_REASONS]):
        reason = (cause.evidence.rstrip(".") if _is_recording(found) else cause.words) or "see its evidence"
        takers = [each.rpartition(", ")[0] or each for each in cause.culprit.split("; ")]  # without their cores
        if cause.culprit and not all(taker in found.disturbed for taker in takers):
            reason += f"; {'cores used by' if cause.cause == 'host.contention' else 'mostly at'} {cause.culprit}"
        part = f", {percent(cause.share)} of {whole}" if found.is_timed else ""
        words = f"{cause.cause}{part}: {reason}"
        if number and is_replay(found):
            yield Line(label="", words=words)
            continue
        if cause.predicted:
            words += f"; without it {cause.focus} would be {cause.predicted} ms"
        fixes = f"; fixes: {', '.join(cause.fixes)}" if cause.fixes else "; latfix has no fix for it" * cause.unfixed
        yield Line(label="" if number else "why", words=words + fixes)
    rest = next((cause for cause in found.causes if cause.cause == UNEXPLAINED), None)
    if rest is None or rest.tail_share < _MOSTLY:
        return
    kind, known = "replay" if found.source is None else found.source.kind, rest.evidence.partition("; ")[2]
    evidence = {"http": rest.evidence, "requests": known, "replay": known}.get(kind, "")
    if evidence:
        yield Line(label="unexplained", words=f"{percent(rest.tail_share)} of {whole}: {evidence.rstrip('.')}")


def optimization_answer(found: Optimization, *, workload: str, plan: str) -> Answer:
    """The answer for an optimization.

    :param workload: the workload as a user types it; ``plan`` the plan's path.
    """
    change = optimization_change(found)
    lines = [*_disturbed(found.disturbed), *_sure(change, found.rounds)]
    arm, key, goal = found.before, change.judged, finite(found.objective.get("slo_ms"))
    if key != percentile_key(finite(found.objective.get("percentile")) or 99.0):
        goal = None  # it is of another figure than the judged one
    lines += [*_objective((arm if plan_is_empty(found) else found.after).gate_subject(), key, goal), *_why(found)]
    if words := floor_words(found):
        lines.append(Line(label="lower bound", words=words))
    if found.rounds and not plan_is_empty(found):
        lines.append(_side_effects(change))
    example = "--gate 'p99<=baseline'" if found.rounds else _passing_gate(arm.gate_subject(), key)
    lines += _gates(gate_rows(found.gates), example if goal is None else f"--gate '{_goal(key, goal)}'")
    lines += _next(found, workload, plan)
    return Answer(headline=_headline(change, found), severity=change_severity(found.verdict), lines=tuple(lines))


def _disturbed(words: str) -> Iterator[Line]:
    """What others did to the replays, before any figure that they may have changed."""
    if words:
        yield Line(label="disturbed", words=words, severity="warn")


def _headline(change: Change, found: Optimization) -> str:
    """The verdict and its size; without a final replay nothing has changed."""
    name, key = key_label(change.judged), change.judged
    if found.rounds:
        verdict = "disturbed" if found.disturbed and found.verdict != "improved" else found.verdict
        return _refuted(change, found, verdict) if plan_is_empty(found) else change_headline(change, verdict)
    stays = f"{name} stays {milliseconds(change.before.latency_ms.get(key))}"
    if found.interrupted:
        return f"Interrupted before any fix was proved: {stays}"
    if found.disturbed:
        return f"Undecided, other processes disturbed the replays: {stays}"
    if found.verdict == "inconclusive":
        return f"Undecided, no fix was measured to the end: {stays}"
    return f"No fix is proved to help: {stays}"


def _refuted(change: Change, found: Optimization, verdict: str) -> str:
    """What the final replay tested, how it ended, and what remains."""
    name, value = key_label(change.judged), change.ratio(change.judged).value
    idle = {step.fix for step in found.steps if step.status == "not_effective"} & set(found.proved)
    speed = "lost requests" if value is None else f"was {speed_words(value)}"
    how = "took no effect" if idle else f"{speed} ({name} {change.moved(change.judged)})"
    best, tried = best_candidate(found), " + ".join(found.proved) or "what the search kept"
    left = f"the first settings, {name} {milliseconds(change.before.latency_ms.get(change.judged))}"
    return (
        f"{_opening(verdict)}: in the final replay, {tried} {how}, so the plan changes nothing; best so far: "
        f"{best[1] if best else left}"
    )


def _opening(verdict: str) -> str:
    return "Undecided" if verdict in ("inconclusive", "undecided") else verdict_words(verdict).capitalize()


def change_headline(change: Change, verdict: str) -> str:
    """``Better: p99 412 → 98 ms, 4.2 times faster``."""
    key = change.judged
    moved = f"{key_label(key)} {change.moved(key)}"
    ratio = change.ratio(key).value  # unknown if the figure falls among lost requests
    return f"{_opening(verdict)}: {moved}" + (f", {speed_words(ratio)}" if ratio is not None else "")


def _sure(change: Change, rounds: int) -> Iterator[Line]:
    """The intervals of the judged figure and of the mean, in words."""
    if not rounds:
        return
    step = change.ratio(change.judged)
    words = speed_range(step.ci95)
    if words:
        doubt = f"; {FEW_ROUNDS}" if step.doubtful else ""
        yield Line(label="95 % interval", words=f"{words}, from {counted(rounds, 'round')}{doubt}")
    if change.judged != "mean" and (mean := change.ratio("mean")).value is not None:
        bounds = speed_range(mean.ci95) + (f"; {FEW_ROUNDS}" if mean.doubtful else "")
        words = f"{speed_words(mean.value)}{f' ({bounds})' if bounds else ''}"
        yield Line(label="mean", words="; ".join(filter(None, (words, change.survivors))))


def _why(found: Optimization) -> Iterator[Line]:
    cause = found.diagnosis.verdict if found.diagnosis is not None else ""
    against = f"{cause} ({cause_words(cause)})" if cause_words(cause) else ""
    tail = percentile_label(finite(found.objective.get("percentile")) or 99.0)
    if words := kept_words(found):
        yield Line(label="why", words=words + (f"; main cause of {tail} before: {against}" if against else ""))
    elif against:
        yield Line(label="why", words=f"main cause of {tail}: {against}; no fix is proved to reduce it")
    if plan_is_empty(found) and not found.rounds and (best := best_candidate(found)):
        yield Line(label="best candidate", words=best[1])


def _next(found: Optimization, workload: str, plan: str) -> Iterator[Line]:
    best = best_candidate(found)
    if not plan_is_empty(found) and found.plan and found.verdict == "inconclusive":
        yield Line(label=_NEXT, words=resume_command(workload, str(Path(plan).parent)), is_command=True)
        yield Line(label="", words="with the other options of this run, if it had any")
    elif not plan_is_empty(found) and found.plan:
        yield Line(label=_NEXT, words=replay_command(workload, plan), is_command=True)
    elif best is not None:
        yield Line(label=_NEXT, words=try_harder_command(workload, best[0]), is_command=True)
    elif found.disturbed and found.verdict == "inconclusive":
        yield Line(label=_NEXT, words="repeat it on a quieter machine, or with a larger --budget")
    elif found.diagnosis is not None:
        yield Line(label=_NEXT, words="a larger --budget, or change the code that the baseline's diagnosis names")


def comparison_answer(found: Comparison) -> Answer:
    """The answer for two runs, or for the rounds of ``latfix gate``."""
    change = replace(comparison_change(found), judged=_open_key(found))
    if found.same_run:
        words = "compare runs of two services, or two runs of one: the same run has no difference to show"
        figure = f"{key_label(change.judged)} {milliseconds(change.before.latency_ms.get(change.judged))}"
        headline = f"The same run, compared with itself: {figure}"
        gates = _gates(gate_rows(found.gates), "")
        return Answer(headline=headline, severity="warn", lines=(*gates, Line(label=_NEXT, words=words)))
    lines = [*_disturbed(found.disturbed), *_sure(change, found.rounds), *_changes(found), _side_effects(change)]
    lines += _gates(gate_rows(found.gates), f"--gate '{key_label(change.judged)}<=baseline*1.1'")
    if more := found.rounds_to_decide:
        rounds = f"about {counted(more, 'more round')} of both"
        words = f"{rounds} runs, in fresh processes, would decide it"
        if found.more_by:
            words = f"{_more_rounds(found, more)}: {rounds} would decide it"
        lines.append(Line(label=_NEXT, words=words))
    verdict, severity = result_words(found)
    return Answer(headline=change_headline(change, verdict), severity=severity, lines=tuple(lines))


def _more_rounds(found: Comparison, more: int) -> str:
    """The option with which the same command takes so many more rounds."""
    if found.more_by == "--rounds":
        return f"--rounds {found.rounds + more}"
    if found.round_s is None:
        return "a larger --budget"
    return f"--budget {math.ceil((found.rounds + more) * found.round_s / 60)}m"


def _open_key(found: Comparison) -> str:
    """The latency that the result is about: of a gate that failed, else of an undecided one, else the judged one."""
    for outcome in (False, None):
        metrics = [each.gate.metric for each in found.gates if each.passed is outcome]
        if metrics:
            known = (key for key in (found.judged, *metrics) if key in metrics and key in found.ratio)
            return next(known, found.judged)
    return found.judged


def _changes(found: Comparison) -> Iterator[Line]:
    """Which stages and causes changed each latency, in milliseconds."""
    for number, change in enumerate(found.why):
        yield Line(label="" if number else "why", words=change.sentence)


def sweep_answer(rows: SweepRows) -> Answer:
    """The answer for a sweep."""
    found = rows.found
    lines: list[Line] = []
    if rows.judged and found.best is None:
        for setting in rows.settings:
            if setting.found.largest is not None:
                known = largest_words(setting.found.largest)
                words = known if known.startswith(setting.status) else f"{known}, {setting.status}"
                lines.append(Line(label="largest load" if not lines else "", words=f"{setting.label}: {words}"))
    if (knee := rows.shown_knee()) is not None:
        lines.append(Line(label="knee", words=f"{knee.knee_words()} with {knee.label}"))
    if rows.gate is not None or rows.judged:
        lines += _gates([] if rows.gate is None else [rows.gate], "--at-least RPS")
    return Answer(headline=rows.sentence(), severity=rows.severity(), lines=(*_disturbed(found.disturbed), *lines))


def trial_answer(found: Trial) -> Answer:
    """The answer for the ideas of ``latfix try``."""
    name, best = key_label(found.judged), next((idea for idea in found.ideas if idea.name == found.best), None)
    leads = found.leader
    if leads is None or leads.comparison is None:
        return Answer(headline="No idea was replayed", severity="warn", lines=tuple(_disturbed(found.disturbed)))
    step = ratio_of(leads.comparison.ratio.get(found.judged))
    gain = f"{name} {speed_words(step.value)}" if step.value is not None else f"{name} not known"
    if best is not None:
        headline = f"Best idea: {best.name}, {gain}"
    else:
        nearest = "nearest" if step.value is not None and step.value >= 1 else "best so far"
        limit = " within the accuracy limit" if leads.comparison.verdict == "better" else ""
        headline = f"No idea is proved to improve {name}{limit}; {nearest}: {leads.name}, {gain}"
    change = comparison_change(leads.comparison)
    # Of some ideas, rounds may be left out.
    lines = [*_disturbed(found.disturbed), *_sure(change, leads.comparison.rounds), *_changes(leads.comparison)]
    if accuracy := accuracy_words(leads):
        lines.append(Line(label="accuracy", words=f"{significant(leads.accuracy)}, {accuracy[0]}"))
    lines.append(_side_effects(change))
    more = leads.comparison.more_rounds
    if best is None and more:
        words = f"{_more_rounds(leads.comparison, more)}: about {counted(more, 'more round')} would decide it"
        lines.append(Line(label=_NEXT, words=words))
    return Answer(headline=headline, severity="calm" if best is None else "good", lines=tuple(lines))


def accuracy_words(idea: TriedIdea) -> tuple[str, Severity | None] | None:
    """How an idea's accuracy compares with the limit, and the color; ``None`` if it was not measured."""
    if idea.accurate is None:
        return ("too few requests to tell", "warn") if idea.accuracy_reason else None
    return ("within the limit", None) if idea.accurate else ("beyond the limit", "bad")


def _side_effects(change: Change) -> Line:
    """Every figure that got worse, in one line."""
    words, worse = side_effect_words(change)
    return Line(label="side effects", words=words, severity="warn" if worse else None)


def _gates(gates: Sequence[GateRow], example: str) -> Iterator[Line]:
    """How many gates passed, and each that did not, with its reason.

    :param example: an option that adds a gate; empty for none.
    """
    if not gates:
        if example:
            yield Line(label="gates", words=f"none set; to pass or fail this in CI, add {example}")
        return
    failed = [gate for gate in gates if gate.outcome == "failed"]
    undecided = [gate for gate in gates if gate.outcome == "undecided"]
    of = f"of {counted(len(gates), 'gate')}"
    if failed:
        yield Line(label="gates", words=f"{len(failed)} {of} failed", severity="bad")
    elif undecided:
        yield Line(label="gates", words=f"{len(undecided)} {of} undecided", severity="warn")
    else:
        yield Line(label="gates", words=f"{len(gates)} {of} passed", severity="good")
    for gate in (*failed, *undecided):
        reason = f": {gate.reason}" if gate.reason else ""
        yield Line(label="", words=f"{gate.gate} {gate.outcome}{reason}", severity=gate.severity)
