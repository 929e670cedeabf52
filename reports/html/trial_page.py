"""The page of a trial: the answer, the ideas' ratios, and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import (
    NONE,
    counted,
    interval,
    key_label,
    mebibytes,
    milliseconds,
    ratio,
    seconds,
    significant,
    visible,
)
from latfix.reports.answer import accuracy_words, trial_answer
from latfix.reports.charts.change_charts import ratio_forest
from latfix.reports.comparison_rows import Ratio, idea_remarks, idea_words, ratio_of, trial_method, trial_notes
from latfix.reports.html.page_file import write_page
from latfix.reports.html.pages import (
    contents_of,
    latency_charts,
    origin_words,
    run_over_time,
    slow_requests,
    tail_values,
)
from latfix.reports.vocabulary import DEFINITIONS
from latfix.results.comparison import Trial, TriedIdea
from latfix.results.diagnosis import Diagnosis
from latfix.results.request_explanation import Story
from latfix.run_record.run_record import RunRecord

_KEYS = ("p50", "p99", "mean")


def write_trial_report(
    path: Path, found: Trial, *, replay: tuple[RunRecord, Diagnosis, Sequence[Story]] | None = None
) -> None:
    """The page of a trial.

    :param replay: the last one of the leading idea, its diagnosis, and the stories of its slowest requests; ``None``
        if it is gone.
    :raises InputError: the file cannot be written.
    """
    keys = tuple(dict.fromkeys((found.judged, *_KEYS)))
    ratios = [_ratios(idea) for idea in found.ideas]
    judged = key_label(found.judged)
    forest = [
        (
            idea.name,
            each.get(found.judged, Ratio(value=None, ci95=None)),
            "bad" if idea.accurate is False else idea_words(idea)[1],
        )
        for idea, each in zip(found.ideas, ratios, strict=True)
    ]
    facts = [found.device, counted(len(found.ideas), "idea"), counted(found.rounds, "round")]
    facts += origin_words(found.origin)
    leader = "" if found.leader is None else visible(found.leader.name, limit=60)
    evidence = _evidence(leader, *replay) if replay is not None else {}
    shown = [anchor for anchor in ("arms", "remaining", "slowest", "windows", "machine") if evidence.get(anchor)]
    contents = contents_of(("ideas", *shown, "settings"))
    device = any(arm.device_memory_bytes for arm in (found.base, *found.ideas))
    base = {} if found.summary is None else found.summary.latency_ms
    write_page(
        path,
        "trial.html",
        kind="latfix try",
        heading=found.workload,
        facts=" · ".join(filter(None, facts)),
        contents=contents | {anchor: f"{contents[anchor]}, {leader}" for anchor in shown},
        **evidence,
        answer=trial_answer(found),
        notes=list(trial_notes(found)),
        chart=ratio_forest("ideas-chart", forest, key=judged),
        columns=[*(key_label(key) for key in keys), "accuracy", "memory", *["GPU"] * device, "start"],
        unmodified=[*((milliseconds(base.get(key)), "") for key in keys), *_costs(found.base, device=device)],
        ideas=[
            {
                "name": idea.name,
                "verdict": idea_words(idea),
                "remarks": idea_remarks(idea),
                "figures": [
                    *((_words(each.get(key)), _interval(each.get(key))) for key in keys),
                    *_costs(idea, device=device),
                ],
            }
            for idea, each in zip(found.ideas, ratios, strict=True)
        ],
        settings=[
            [idea.name, ", ".join(f"{key} = {visible(value)}" for key, value in idea.settings.items()) or "none"]
            for idea in found.ideas
        ],
        method=trial_method(found),
        definitions=DEFINITIONS[:2],
    )


def _evidence(leader: str, record: RunRecord, diagnosis: Diagnosis, stories: Sequence[Story]) -> dict[str, Any]:
    """Variables of the sections on one replay."""
    arms = latency_charts("arms", [(leader, record, "after", diagnosis.ledger)])
    return {
        "arms": arms,
        "points": None if arms is None else arms["points"],
        "remaining": tail_values(diagnosis, "remaining"),
        "slowest": slow_requests(record, diagnosis.ledger, stories),
        **run_over_time(record, diagnosis),
    }


def _ratios(idea: TriedIdea) -> Mapping[str, Ratio]:
    if idea.comparison is None:
        return {}
    return {key: ratio_of(estimate) for key, estimate in idea.comparison.ratio.items()}


def _words(each: Ratio | None) -> str:
    return NONE if each is None else ratio(each.value, "×")


def _interval(each: Ratio | None) -> str:
    return "" if each is None or each.ci95 is None else interval(each.ci95)


def _costs(arm: TriedIdea, *, device: bool) -> list[tuple[str, str]]:
    """Accuracy, with words if it is beyond its limit or unknown; memory, device memory, start-up time."""
    words, severity = accuracy_words(arm) or ("", None)
    return [
        (significant(arm.accuracy), words if severity else ""),
        (mebibytes(arm.memory_bytes or None), ""),
        *[(mebibytes(arm.device_memory_bytes or None), "")] * device,
        (seconds(arm.start_s), ""),
    ]
