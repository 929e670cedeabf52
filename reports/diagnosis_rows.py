"""Rows of a diagnosis for the terminal and the page: causes, advice, windows of time, workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    NONE,
    count,
    counted,
    finite,
    interval_bounds,
    key_label,
    milliseconds,
    percent,
    rate,
    sentence,
    share,
    significant,
    tail_words,
    visible,
)
from latfix.reports.vocabulary import cause_action, cause_words
from latfix.results.diagnosis import Activity, CauseSummary, Diagnosis, ServiceFigures
from latfix.results.worker_summary import WorkerRow
from latfix.statistics.percentiles import percentile_key

#: Characters of an error message in a sentence.
_MESSAGE = 200
#: Causes that are in the user's code; share of the slow lines' time from which the first is where to look.
_OF_CODE, _MOSTLY = ("external.", "drift.", UNEXPLAINED), 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One row of the table of causes; milliseconds are means over the requests of the tail.

    :param cause: the id; empty for the sum of small causes.
    :param label: the id, or the number of causes in the sum.
    :param requests: number of affected requests; ``None`` for sums.
    """

    cause: str
    label: str
    tail_ms: float
    own_ms: float
    propagated_ms: float
    share: float | None
    ci95_ms: tuple[float, float] | None = None
    named: bool = False
    evidence_class: str = ""
    evidence: str = ""
    requests: int | None = None


def cause_rows(diagnosis: Diagnosis, *, limit: int) -> list[CauseRow]:
    """Causes by milliseconds, then the sum of the small ones, then ``unexplained``.

    Named causes are always listed. The rows' ``tail_ms`` sum to the excess.

    :param limit: most unnamed causes to list.
    """
    entries = [entry for entry in diagnosis.causes if entry.cause != UNEXPLAINED]
    entries.sort(key=lambda entry: -_number(entry.tail_ms))
    floor = 0.005 * abs(_number(diagnosis.excess_ms))
    listed: list[CauseSummary] = []
    small: list[CauseSummary] = []
    for entry in entries:
        worth = entry.named or (len(listed) < limit and abs(_number(entry.tail_ms)) > floor)
        (listed if worth else small).append(entry)
    small = [entry for entry in small if entry.tail_ms or entry.own_ms or entry.propagated_ms]
    if len(small) == 1:
        listed += small
    rows = [_row(entry) for entry in listed]
    if len(small) > 1:
        rows.append(_sum_of(small, diagnosis.excess_ms))
    return [*rows, _unexplained(diagnosis)]


#: The step if nothing is known; the option in a note on columns that were not read.
_MORE_COLUMNS = "use a log with more columns"
_UNREAD = re.compile(r"^Not read: .* (--map \S.*)\.$")
#: Causes below this share of the tail's excess are summed in one line.
SMALL = 0.05


def main_causes(diagnosis: Diagnosis) -> list[CauseRow]:
    """Causes of at least :data:`SMALL` of the excess, including ``unexplained``."""
    rows = cause_rows(diagnosis, limit=len(diagnosis.causes))
    return [row for row in rows if row.cause and (row.share or 0.0) >= SMALL]


def remaining_ms(diagnosis: Diagnosis) -> float:
    """The excess that :func:`main_causes` leave out; negative if they claim more than all of it."""
    return _number(diagnosis.excess_ms) - sum(row.tail_ms for row in main_causes(diagnosis))


def small_causes_words(diagnosis: Diagnosis) -> str:
    """One line on the excess that :func:`main_causes` leaves out; empty if it leaves out nothing."""
    listed = {row.cause for row in main_causes(diagnosis)}
    excess, rest = _number(diagnosis.excess_ms), remaining_ms(diagnosis)
    left = [entry.cause for entry in diagnosis.causes if entry.cause not in listed and entry.tail_ms]
    number = len(left) - (UNEXPLAINED in left)
    if not left or excess <= 0:
        return ""
    parts = [f"{counted(number, 'more cause')} below {percent(SMALL)}"] if number else []
    if rest >= 0:
        parts += ["unexplained time"] if UNEXPLAINED in left else []
        return f"{', and '.join(parts)}: {significant(rest)} ms in total, {percent(rest / excess)}"
    return "; ".join([*parts, f"the listed causes overlap by {significant(-rest)} ms"])


#: Shown for an unexplained remainder below zero: causes that overlap leave nothing unexplained.
ABOUT_ZERO = "about 0"


def unexplained_words(cause: str, value: object) -> str:
    """Milliseconds of a cause; :data:`ABOUT_ZERO` for an unexplained remainder below zero."""
    number = finite(value)
    return ABOUT_ZERO if cause == UNEXPLAINED and number is not None and number < 0 else significant(value)


def excess_words(diagnosis: Diagnosis) -> str:
    """Definition and size of the tail and its excess (means, not the percentile); for a single unit its duration."""
    unit = diagnosis.unit
    if diagnosis.is_single:
        taken = milliseconds(diagnosis.excess_ms)
        return f"The recording's only {unit} takes {taken}; there is no other to compare it with"
    taken = milliseconds(_number(diagnosis.excess_ms) + _number(diagnosis.reference_ms))
    return (
        f"The {tail_words(diagnosis.percentile)} of {unit}s take {taken} on average: "
        f"{milliseconds(diagnosis.excess_ms)} (the excess) more than a "
        f"{reference_words(diagnosis, milliseconds(diagnosis.reference_ms))}"
    )


def reference_words(diagnosis: Diagnosis, amount: str = "") -> str:
    """The unit that others are compared with, and its latency; the typical one if waits in a queue are unknown."""
    is_log = diagnosis.source is not None and diagnosis.source.kind == "requests"
    if is_log and "queue" not in diagnosis.stages_ms:
        return f"typical {diagnosis.unit} (median{f', {amount}' if amount else ''})"
    return f"quiet {diagnosis.unit}, which nothing delays{f' ({amount})' if amount else ''}"


def cause_total(rows: list[CauseRow], diagnosis: Diagnosis) -> tuple[float, float | None]:
    """The sum of the rows in milliseconds, and as a share of the excess (``None`` without an excess)."""
    total = sum(row.tail_ms for row in rows)
    return total, _share(total, diagnosis.excess_ms)


def _number(value: float) -> float:
    return finite(value) or 0.0


def _share(part_ms: float, excess_ms: float) -> float | None:
    return part_ms / excess_ms if _number(excess_ms) > 0 else None


def _row(entry: CauseSummary) -> CauseRow:
    return CauseRow(
        cause=entry.cause,
        label=entry.cause,
        tail_ms=_number(entry.tail_ms),
        own_ms=_number(entry.own_ms),
        propagated_ms=_number(entry.propagated_ms),
        share=finite(entry.tail_share),
        ci95_ms=entry.ci95_ms,
        named=entry.named,
        evidence_class=entry.evidence_class,
        evidence=sentence(entry.evidence),
        requests=entry.requests,
    )


def _sum_of(entries: list[CauseSummary], excess_ms: float) -> CauseRow:
    total = sum(_number(entry.tail_ms) for entry in entries)
    return CauseRow(
        cause="",
        label=f"{len(entries)} smaller causes",
        tail_ms=total,
        own_ms=sum(_number(entry.own_ms) for entry in entries),
        propagated_ms=sum(_number(entry.propagated_ms) for entry in entries),
        share=_share(total, excess_ms),
    )


def _unexplained(diagnosis: Diagnosis) -> CauseRow:
    for entry in diagnosis.causes:
        if entry.cause == UNEXPLAINED:
            return _row(entry)
    remainder = _number(diagnosis.unexplained_ms)
    return CauseRow(
        cause=UNEXPLAINED,
        label=UNEXPLAINED,
        tail_ms=remainder,
        own_ms=remainder,
        propagated_ms=0.0,
        share=_share(remainder, diagnosis.excess_ms),
        evidence_class="remainder",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseAdvice:
    """A named cause and its fixes.

    :param focus: label of the objective's percentile; ``now`` and ``predicted`` are its milliseconds, measured and
        without the cause; ``predicted`` is empty without a prediction.
    :param unfixed: latfix knows no fix, where it could apply one: it runs neither a recording nor what is behind an
        address.
    """

    cause: str
    words: str
    evidence: str
    culprit: str
    focus: str
    now: str
    predicted: str
    fixes: tuple[str, ...]
    unfixed: bool
    share: float
    tail_ms: float


def is_replay(diagnosis: Diagnosis) -> bool:
    """True if latfix ran the service, so that the run can be replayed with a fix."""
    return diagnosis.source is None or diagnosis.source.kind == "replay"


def cause_advice(diagnosis: Diagnosis) -> list[CauseAdvice]:
    """The named causes; empty if no request ended ok."""
    if not diagnosis.requests.get("ok"):
        return []
    key = percentile_key(diagnosis.percentile)
    # Without a cause, the requests that were lost are still lost.
    lost = finite(diagnosis.latency_ms.get(key)) is None
    return [
        CauseAdvice(
            cause=entry.cause,
            words=cause_words(entry.cause),
            evidence=sentence(entry.evidence),
            culprit=entry.culprit,
            focus=key_label(key),
            now=significant((diagnosis.latency_ms_ok or diagnosis.latency_ms).get(key)),
            predicted="" if lost or finite(entry.whatif_ms.get(key)) is None else significant(entry.whatif_ms[key]),
            fixes=tuple(entry.fixes),
            unfixed=is_replay(diagnosis) and not entry.fixes,
            share=_number(entry.tail_share),
            tail_ms=entry.tail_ms,
        )
        for entry in diagnosis.causes
        if entry.named and entry.cause != UNEXPLAINED
    ]


def cause_actions(diagnosis: Diagnosis) -> dict[str, str]:
    """By named cause of a recording, what to do: a setting of the recorded server, or the next measurement."""
    settings = {each.cause: f"{each.server}: {each.change}." for each in diagnosis.advice}
    return {entry.cause: settings.get(entry.cause) or cause_action(entry.cause) for entry in cause_advice(diagnosis)}


def closing_advice(diagnosis: Diagnosis) -> str:
    """What to do if no cause is named; empty if named causes carry the advice."""
    unit = diagnosis.unit
    if not any(diagnosis.requests.values()):
        return f"No {unit} was recorded. Replay the traffic again."
    error = commonest_error(diagnosis)
    if not diagnosis.requests.get("ok"):
        return f"No {unit} ended ok. First fix {error or 'the errors, then diagnose again.'}"
    if diagnosis.verdict in ("inconclusive", "losing") and error:
        return f"First fix {error}"
    outside = diagnosis.service
    if diagnosis.verdict == "inconclusive" and outside is not None and outside.process is None:
        return "Too much of the tail is unexplained to name its cause: observe the service's process with --pid."
    if diagnosis.verdict == "losing":
        return f"First fix what the lost {unit}s waited for, then what makes the others slow."
    if diagnosis.verdict == "inconclusive" and outside is not None and not outside.parts:
        rest = next((entry for entry in diagnosis.causes if entry.cause == UNEXPLAINED), None)
        if rest is not None and _number(rest.tail_share) > 0.5 and not rest.rests_on_few:  # more time shows no more
            return (
                "Too much of the tail is unexplained to name its cause: join the service's own log or spans with "
                "--server-log FILE."
            )
    if is_replay(diagnosis) and (words := _slow_line(diagnosis)):
        return words
    if diagnosis.verdict == "inconclusive":
        return _more_data(diagnosis)
    if cause_advice(diagnosis):
        return ""
    return "No cause stands out" + (": none exceeds the naming threshold." if diagnosis.is_timed else ".")


def unread_option(diagnosis: Diagnosis) -> str:
    """The option by which a column that was not read becomes a part of the latency, if that is the next step."""
    if diagnosis.verdict != "inconclusive" or _MORE_COLUMNS not in closing_advice(diagnosis):
        return ""
    found = (_UNREAD.search(note) for note in diagnosis.notes)
    return next((each[1] for each in found if each), "")


def _more_data(diagnosis: Diagnosis) -> str:
    """What would show the cause of an inconclusive tail."""
    largest = _largest_known(diagnosis)
    seldom = largest is not None and largest.rests_on_few
    by_chance = largest is not None and not largest.named  # as large as chance brings it, too
    rest = next((entry for entry in diagnosis.causes if entry.cause == UNEXPLAINED), None)
    dark = largest is None or (rest is not None and rest.tail_ms > largest.tail_ms)
    if (
        diagnosis.source is not None
        and diagnosis.source.kind == "requests"
        and not seldom
        and (dark or not by_chance)
    ):
        if rest is not None and rest.culprit:
            return f"Look at the {rest.culprit}: the slowest requests have nothing else in common that is recorded."
        why = "Too much of the tail is unexplained to name its cause" if dark else "Nothing that is known stands out"
        # With too coarse times, a note asks for finer ones.
        queue = "" if "queue" in diagnosis.stages_ms else "queue, "
        return f"{why}: {_MORE_COLUMNS} ({queue}dependencies, sizes: --map), or spans."
    replayed = diagnosis.source is None or diagnosis.source.kind in ("replay", "http")
    longer = "Replay for longer (--repeat 3)" if replayed else "Record for longer"
    if largest is None:
        return f"{longer}: this run does not show the cause of the tail."
    found = f"{percent(largest.tail_share)} of the tail's excess here"
    return f"{longer}: that decides whether it is {largest.cause}, which is {found}."


def _slow_line(diagnosis: Diagnosis) -> str:
    """The line at which slow units spend their time, if that is what the user can change; else empty."""
    more = [line.slow_ms - line.typical_ms for line in diagnosis.lines]
    largest = diagnosis.causes[0] if diagnosis.causes else None
    if largest is None or not largest.cause.startswith(_OF_CODE):
        own = largest is not None and largest.cause == diagnosis.verdict == "host.slowdown" and largest.culprit
        return f"Look at {own}: its work took longer." if own else ""
    # The tail's own time, if it all passed at the line, as a mean over the slowest twentieth of units.
    passed = largest.own_ms * (100.0 - diagnosis.percentile) / 5.0
    if diagnosis.verdict not in ("inconclusive", largest.cause) or not more:
        return ""
    if more[0] <= _MOSTLY * max(sum(more), passed):
        return ""
    line = diagnosis.lines[0]
    slow, typical = milliseconds(line.slow_ms), milliseconds(line.typical_ms)
    spent = f"{slow} of a slow {line.unit}, {typical} of a typical one"
    return f"Look at {line.file}:{line.line} ({line.function}): {spent}."


def _largest_known(diagnosis: Diagnosis) -> CauseSummary | None:
    """The cause of most of the excess; ``None`` without one."""
    known = (entry for entry in diagnosis.causes if entry.cause != UNEXPLAINED and _number(entry.tail_share) > 0.5)
    return next(known, None)


def commonest_error(diagnosis: Diagnosis) -> str:
    """The most frequent message if most lost requests failed by an error of their own, in words; else empty.

    So do requests that a service refused for a limit of its own: they waited for nothing.
    """
    largest = max(diagnosis.lost, key=lambda lost: lost.requests, default=None)
    refused = largest is not None and largest.status == "shed" and not largest.waited_for_ms
    if largest is None or not largest.errors or not (largest.status == "error" or refused):
        return ""
    message, number = max(largest.errors.items(), key=lambda each: each[1])
    return f"this error of {counted(number, diagnosis.unit)}: {visible(message, limit=_MESSAGE)}"


def service_words(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Facts other than latency about a service behind an address, by name."""
    service = diagnosis.service
    if service is None:
        return []
    rows = []
    if service.streams is not None:
        first, gap = service.streams.first_token_ms, service.streams.gap_ms
        rows.append(
            (
                "streams",
                f"first token p50 {milliseconds(first.get('p50'))}, p99 {milliseconds(first.get('p99'))}; gaps p50 "
                f"{milliseconds(gap.get('p50'))}, p99 {milliseconds(gap.get('p99'))}, longest "
                f"{milliseconds(gap.get('max'))}; {significant(service.streams.output_tokens_per_s)} tokens/s",
            )
        )
    if service.goodput is not None:
        limits = ", ".join(f"{name} < {milliseconds(ms)}" for name, ms in service.goodput.limits_ms.items())
        good = f"{rate(service.goodput.rps)}, {share(service.goodput.share)} of arrived requests"
        rows.append(("goodput", f"{good} ({limits})"))
    took = "" if service.connect_ms is None else f", each {milliseconds(service.connect_ms.get('p50'))} (p50)"
    rows.append(("connections", f"{count(service.connections)} opened{took}"))
    rows += _part_words(service)
    if service.processes:
        told = (
            f"{one.pid}: {count(one.requests)} requests over {counted(one.connections, 'connection')}, p99 "
            f"{milliseconds(one.latency_ms.get('p99'))}"
            for one in service.processes
        )
        unused = [f"{counted(service.unused, 'other')} without a connection"] if service.unused else []
        rows.append(("processes", "; ".join([*told, *unused])))
    process = service.process
    if process is not None:
        throttled = "" if process.throttled_ms is None else f", throttled {milliseconds(process.throttled_ms)}"
        rows.append(
            (
                "process",
                f"{process.pid}: {significant(process.cpu_cores)} cores busy, {significant(process.waiting_cores)} "
                f"waited for{throttled}; {count(process.major_faults)} major faults, "
                f"{count(process.involuntary_switches)} involuntary switches",
            )
        )
    return rows


#: Parts of a latency as a service reports them, in words.
_PART_WORDS = {
    "client": "before it was sent",
    "network": "network, or not yet accepted",
    "queue": "queue at the server",
    "prefill": "prefill",
    "compute": "own compute",
    "decode": "decode",
    "dependency": "dependencies",
}


def _part_words(service: ServiceFigures) -> list[tuple[str, str]]:
    """Where the service itself says that the time of slow requests and of others went."""
    if not service.parts:
        return []
    rows = []
    whole = any(part.part == "network" for part in service.parts)
    words = _PART_WORDS | {"other": "rest at the server" if whole else "not reported"}
    for name, key in (("in the tail", "slow_ms"), ("elsewhere", "typical_ms")):
        spent = [(words.get(part.part, part.part), float(getattr(part, key))) for part in service.parts]
        listed = ", ".join(f"{what} {milliseconds(ms)}" for what, ms in spent)
        rows.append((name, f"{milliseconds(sum(ms for _, ms in spent))} on average = {listed}"))
    told = [part for part in service.parts if part.source]
    sources = ", ".join(dict.fromkeys(part.source for part in told))
    bounds = [
        f"{words.get(part.part, part.part)} at most {milliseconds(part.p99_ms)}" for part in told if part.p99_ms
    ]
    known = f"{sources} ({service.parts_known})"
    return [*rows, ("reported by", f"{known}; p99: {', '.join(bounds)}" if bounds else known)]


def line_rows(diagnosis: Diagnosis) -> list[tuple[str, str, str, str, str]]:
    """Lines of the user's code: unit, location, slow and typical milliseconds, number of samples."""
    return [
        (
            each.unit,
            f"{each.file}:{each.line} {each.function}" + (f" (in {each.inside})" if each.inside else ""),
            significant(each.slow_ms),
            significant(each.typical_ms),
            count(each.looks),
        )
        for each in diagnosis.lines
    ]


def error_words(errors: Mapping[str, int]) -> str:
    """The most frequent message with its number, and how many requests had another one."""
    if not errors:
        return ""
    message, number = max(errors.items(), key=lambda each: each[1])
    others = sum(errors.values()) - number
    more = f"; {count(others)} with other messages" if others else ""
    return f"{count(number)} × {visible(message, limit=_MESSAGE)}{more}"


def read_words(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Facts about the recording that was read, by name."""
    if diagnosis.source is None:
        return []
    read = diagnosis.source.read.items()
    return [(str(name), count(value) if isinstance(value, int) else str(value)) for name, value in read]


def active_causes(diagnosis: Diagnosis) -> list[tuple[str, Activity]]:
    """Named causes that were active in part of the run or periodically, in the order of the diagnosis."""
    return [
        (entry.cause, entry.active)
        for entry in diagnosis.causes
        if entry.named and entry.active is not None and entry.active.text not in ("", "throughout", "never")
    ]


def largest_causes(parts: Iterable[tuple[Mapping[str, float], int]], limit: int) -> list[str]:
    """The causes with the most milliseconds over several ledgers, each with its number of requests."""
    totals: dict[str, float] = {}
    for causes_ms, requests in parts:
        for cause, value in causes_ms.items():
            totals[cause] = totals.get(cause, 0.0) + abs(value) * requests
    return sorted((cause for cause in totals if totals[cause]), key=lambda cause: -totals[cause])[:limit]


def lag_words(diagnosis: Diagnosis, shown: Callable[[object], str]) -> str:
    """The replayer's own lag; empty if unknown."""
    lag = {key: finite(diagnosis.dispatch_ms.get(key)) for key in ("p50", "p99", "max")}
    return "" if set(lag.values()) == {None} else ", ".join(f"{key} {shown(value)}" for key, value in lag.items())


def cost_words(diagnosis: Diagnosis) -> str:
    """The cost of latfix itself; empty if unknown."""
    cost = diagnosis.overhead
    micros, core = significant(cost.get("per_request_us")), share(cost.get("core_share"))
    return "" if micros == core == NONE else f"{micros} µs a request, {core} of a core"


def weight_words(row: WorkerRow) -> str:
    """The range of a worker's routing weight; empty if requests were not routed by weight."""
    bounds = interval_bounds(row.weight)
    if bounds is None:
        return ""
    low, high = bounds
    return significant(low) if high - low < 0.005 else f"{significant(low)} to {significant(high)}"
