"""The scoreboard of all cases: measures compared with their bars, and a score per cause. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import listed, percent
from latfix.results.selftest_scoreboard import CaseScore, CauseScore, Measure, Scoreboard, Share

TOP1, TOP1_MIXED, TOP1_WEAK, PRECISION, RECALL = 0.95, 0.90, 0.85, 0.95, 0.90
COVERAGE = (0.92, 0.98)
MOST_ALARMS = 1 / 40
UNEXPLAINED_SHARE = 0.80
#: A cause is weak if less than this share of its cases are found, unfounded if less of its namings are right.
_WEAK = 0.75
_FEW_INTERVALS = 100
#: Other programs are mentioned if they used more than this share of the cores.
_NOISY = 0.05


def make_scoreboard(cases: Sequence[CaseScore], *, machine: Mapping[str, Any], **facts: Any) -> Scoreboard:
    """:param facts: the other fields of the scoreboard, which describe the self-test."""
    counted = [case for case in cases if case.counted]
    # Each cause that was injected or wrongly named.
    ids = sorted({cause for case in counted for cause in (*case.injected, *case.wrong)})
    causes = tuple(_cause_score(cause, counted) for cause in ids)
    measures = measure_all(counted)
    return Scoreboard(
        cases=tuple(cases),
        measures=measures,
        causes=causes,
        machine=machine,
        sentence=sentence(counted, measures, causes, machine.get("neighbors")),
        **facts,
    )


def measure_all(cases: Sequence[CaseScore]) -> tuple[Measure, ...]:
    """All measures, in the order of the report."""
    named = [(cause, case) for case in cases for cause in _judged(case)]
    present = [(cause, case) for case in cases for cause in case.present]
    alarms = share(bool(case.alarms) for case in cases if case.group == "quiet")
    calm = (alarms.value or 0.0) <= MOST_ALARMS
    held = [held for case in cases if case.group != "unlisted" for held in case.held.values()]
    return (
        _at_least("top1_single", "largest cause right, one injected", _tops(cases, "single"), TOP1),
        _at_least("top1_mixed", "largest cause right, two or three", _tops(cases, "mixed"), TOP1_MIXED),
        _at_least(
            "top1_weak", "largest cause right, weak faults", _tops(cases, "single", "mixed", weak=True), TOP1_WEAK
        ),
        _at_least("precision", "named and there (precision)", share(c in k.injected for c, k in named), PRECISION),
        _at_least("recall", "there and named (recall)", share(c in k.named for c, k in present), RECALL),
        _request_errors(cases),
        _coverage(share(held)),
        _of_cases("false_alarms", "false alarms in quiet runs", alarms, "≤ 2.5 %", calm),
        _unlisted(cases),
        _conservation(cases),
    )


def _cause_score(cause: str, cases: Sequence[CaseScore]) -> CauseScore:
    alone = [case for case in cases if case.injected == (cause,)]
    named = [case for case in cases if cause in _judged(case)]
    return CauseScore(
        cause=cause,
        top1=share(case.top_right for case in alone if case.top_right is not None),
        precision=share(cause in case.injected for case in named),
        recall=share(cause in case.named for case in cases if cause in case.present),
        taken_for=Counter(case.top for case in alone if case.top_right is False),
    )


def share(outcomes: Iterable[object]) -> Share:
    """The share of true outcomes."""
    listed = [bool(outcome) for outcome in outcomes]
    return Share(hits=sum(listed), of=len(listed))


def _judged(case: CaseScore) -> tuple[str, ...]:
    """Causes named in a case that were right or wrong, without side causes."""
    return tuple(cause for cause in case.named if cause in case.injected or cause in case.wrong)


def _tops(cases: Sequence[CaseScore], *groups: str, weak: bool = False) -> Share:
    return share(
        case.top_right for case in cases if case.group in groups and case.weak == weak and case.top_right is not None
    )


def _measure(
    id: str, words: str, bar: str, count: int, value: float | None, met: bool | None, **more: Any
) -> Measure:
    """:param met: the judgment of the value; ignored if there is none."""
    more.setdefault("interval", None)
    return Measure(id=id, words=words, value=value, count=count, bar=bar, met=None if value is None else met, **more)


def _of_cases(id: str, words: str, found: Share, bar: str, met: bool | None) -> Measure:
    return _measure(id, words, bar, found.of, found.value, met, interval=found.ci95 if found.of else None)


def _at_least(id: str, words: str, found: Share, bar: float) -> Measure:
    return _of_cases(id, words, found, f"≥ {100 * bar:g} %", (found.value or 0.0) >= bar)


def _coverage(found: Share) -> Measure:
    """Coverage of intervals; too high a coverage is not judged for few intervals."""
    (low, high), value = COVERAGE, found.value or 0.0
    met = None if value > high and found.of < _FEW_INTERVALS else low <= value <= high
    return _of_cases("coverage", "intervals that hold the truth", found, f"{100 * low:g}–{100 * high:g} %", met)


def _request_errors(cases: Sequence[CaseScore]) -> Measure:
    """The median over cases of the median error; met if half the requests are within the allowed error."""
    errors = [case.errors for case in cases if case.errors is not None and case.group != "unlisted"]
    count, within = sum(each.count for each in errors), sum(each.within for each in errors)
    median, met = statistics.median_high(each.median_ms for each in errors) if errors else None, 2 * within >= count
    words, bar = "error of a request, median", "≤ 0.1 ms or 5 %"
    return _measure("request_error", words, bar, count, median, met, unit="ms")


def _unlisted(cases: Sequence[CaseScore]) -> Measure:
    found = [case.unexplained for case in cases if case.unexplained is not None]
    value = statistics.fmean(found) if found else None
    bar, words = f"≥ {100 * UNEXPLAINED_SHARE:g} %", "unlisted left unexplained"
    return _measure("unlisted", words, bar, len(found), value, (value or 0.0) >= UNEXPLAINED_SHARE)


def _conservation(cases: Sequence[CaseScore]) -> Measure:
    worst = max((float(case.conservation_ns) for case in cases), default=None)
    return _measure("conservation", "largest gap of a ledger", "0 ns", len(cases), worst, worst == 0, unit="ns")


def weak_causes(causes: Sequence[CauseScore]) -> list[str]:
    """Injected causes that are often missed as the largest or not named, the weakest first."""
    weak = []
    for cause in causes:
        values = [value for value in (cause.top1.value, cause.recall.value) if value is not None]
        if values and min(values) < _WEAK and cause.cause != UNEXPLAINED:
            weak.append((min(values), cause.cause))
    return [name for _, name in sorted(weak)]


def unfounded_causes(causes: Sequence[CauseScore]) -> list[str]:
    """Causes often named in runs without them, the most frequent first."""
    often = [
        (cause.precision.hits - cause.precision.of, cause.cause)
        for cause in causes
        if cause.precision.value is not None and cause.precision.value < _WEAK
    ]
    return [name for _, name in sorted(often)]


def sentence(
    cases: Sequence[CaseScore],
    measures: Sequence[Measure],
    causes: Sequence[CauseScore],
    neighbors: float | None = None,
) -> str:
    """A sentence about how far the diagnosis can be trusted on this machine.

    :param neighbors: share of the machine's cores that other programs used.
    """
    by_id = {measure.id: measure for measure in measures}
    tops = [case.top_right for case in cases if case.top_right is not None]
    alarms = by_id["false_alarms"]
    if not tops and not alarms.count:
        return "No case was scored, so there is no result for this machine."
    found = []
    if tops:
        found.append(f"the largest cause was right in {sum(tops)} of {len(tops)} runs with known faults")
    if alarms.count:
        found.append(f"{round((alarms.value or 0.0) * alarms.count)} of {alarms.count} quiet runs named a fault")
    judged = [measure for measure in measures if measure.met is not None]
    missed = sum(measure.met is False for measure in judged)
    parts = [
        f"On this machine {' and '.join(found)}",
        "the diagnosis meets every bar that was measured"
        if not missed
        else f"it misses {missed} of {len(judged)} bars",
    ]
    if weak := weak_causes(causes):
        parts.append(f"it is weak at {listed(weak)}")
    if unfounded := unfounded_causes(causes):
        parts.append(f"it often names {listed(unfounded)} without reason")
    if neighbors is not None and neighbors > _NOISY:
        parts.append(
            f"other programs used {percent(neighbors)} of the cores, so repeat it on a quieter machine if you can"
        )
    return "; ".join(parts) + "."
