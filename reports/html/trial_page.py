"""The page of a trial: the answer, the ideas' ratios, and the settings of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import counted, key_label, milliseconds, significant, visible
from latfix.reports.answer import accuracy_words, trial_answer
from latfix.reports.charts.change_charts import ratio_forest
from latfix.reports.comparison_rows import (
    idea_costs,
    idea_ratios,
    idea_remarks,
    idea_words,
    ratio_of,
    trial_keys,
    trial_method,
    trial_notes,
)
from latfix.reports.html.page_file import write_page
from latfix.reports.html.pages import contents_of, origin_words, replay_evidence
from latfix.reports.vocabulary import DEFINITIONS
from latfix.results.comparison import Trial, TriedIdea
from latfix.results.diagnosis import Diagnosis
from latfix.results.request_explanation import Story
from latfix.run_record.run_record import RunRecord


def write_trial_report(
    path: Path, found: Trial, *, replay: tuple[RunRecord, Diagnosis, Sequence[Story]] | None = None
) -> None:
    """The page of a trial.

    :param replay: the last one of the leading idea, its diagnosis, and the stories of its slowest requests; ``None``
        if it is gone.
    :raises InputError: the file cannot be written.
    """
    keys, judged = trial_keys(found), key_label(found.judged)
    forest = [
        (
            idea.name,
            ratio_of(None if idea.comparison is None else idea.comparison.ratio.get(found.judged)),
            "bad" if idea.accurate is False else idea_words(idea)[1],
        )
        for idea in found.ideas
    ]
    facts = [found.device, counted(len(found.ideas), "idea"), counted(found.rounds, "round")]
    facts += origin_words(found.origin)
    leader = "" if found.leader is None else visible(found.leader.name, limit=60)
    evidence: dict[str, Any] = {}
    if replay is not None:
        record, last, stories = replay
        evidence = replay_evidence([(leader, record, "after")], last, stories)
    sections = ("arms", "remaining", "slowest", "windows", "traffic", "machine")
    shown = [anchor for anchor in sections if evidence.get(anchor)]
    contents = contents_of(("ideas", *shown, "settings"))
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
        columns=[*map(key_label, keys), "accuracy", *idea_costs(found, found.base)],
        unmodified=[*((milliseconds(base.get(key)), "") for key in keys), *_costs(found, found.base)],
        ideas=[
            {
                "name": idea.name,
                "verdict": idea_words(idea),
                "remarks": idea_remarks(idea),
                "figures": [*idea_ratios(found, idea), *_costs(found, idea)],
            }
            for idea in found.ideas
        ],
        settings=[
            [idea.name, ", ".join(f"{key} = {visible(value)}" for key, value in idea.settings.items()) or "none"]
            for idea in found.ideas
        ],
        method=trial_method(found),
        definitions=DEFINITIONS[:2],
    )


def _costs(found: Trial, arm: TriedIdea) -> list[tuple[str, str]]:
    """Accuracy, with words if it is beyond its limit or unknown, and the other costs."""
    words, severity = accuracy_words(arm) or ("", None)
    return [
        (significant(arm.accuracy), words if severity else ""),
        *((cost, "") for cost in idea_costs(found, arm).values()),
    ]
