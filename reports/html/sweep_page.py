"""The page of a sweep: the answer, settings and loads, the Pareto front, and models against measurements."""

from __future__ import annotations

from pathlib import Path

from latfix.formatting import NONE, count, counted, finite, milliseconds, rate, ratio, sentence, significant
from latfix.reports import sweep_rows
from latfix.reports.answer import sweep_answer
from latfix.reports.charts import sweep_charts
from latfix.reports.html.page_file import write_page
from latfix.reports.html.pages import Card, contents_of, origin_words
from latfix.reports.sweep_rows import MODEL_WORDS, SweepRows, largest_words, setting_label
from latfix.reports.vocabulary import SWEEP_DEFINITIONS
from latfix.results.sweep import Sweep

#: Most settings with a chart of the models.
_DRAWN = 6


def write_sweep_report(path: Path, found: Sweep) -> None:
    """The page of a sweep.

    :raises InputError: the file cannot be written.
    """
    rows = sweep_rows.sweep_rows(found)
    drawn = [setting for setting in rows.settings if setting.has_theory]
    front = len(rows.settings) > 1 and bool(found.pareto)
    runs = sum(len(point.runs) for point in found.points)
    state = "" if found.state == "complete" else found.state
    facts = [found.device, counted(runs, "replay"), state, *origin_words(found.origin)]
    anchors = ("settings", "loads", *(["front"] if front else []), *(["theory"] if drawn else []), "method")
    write_page(
        path,
        "sweep.html",
        kind="latfix sweep",
        heading=found.workload,
        facts=" · ".join(filter(None, facts)),
        contents=contents_of(anchors) | ({"front": "Latency and throughput"} if front else {}),
        rows=rows,
        found=found,
        words=sweep_rows,
        answer=sweep_answer(rows),
        notes=found.notes,
        cards=_sweep_cards(rows),
        charts={
            "latency": sweep_charts.latency_over_load("sweep-latency", rows),
            "memory": sweep_charts.memory_and_throughput("sweep-memory", rows),
            "served": sweep_charts.throughput_over_load("sweep-served", rows),
            "front": sweep_charts.front("sweep-front", rows) if front else "",
        },
        theory=[
            (setting, sweep_charts.theory(f"sweep-theory-{setting.found.id}", setting, rows))
            for setting in drawn[:_DRAWN]
        ],
        undrawn=len(drawn[_DRAWN:]),
        model_errors=[
            [words, ratio(each.wait, "×"), ratio(each.percentile, "×"), count(each.loads), count(each.silent)]
            for words, each in ((words, found.models.get(name)) for name, words in MODEL_WORDS.items())
            if each is not None
        ],
        method=_sweep_method(found),
        definitions=[(name, words or sentence(found.knee_rule)) for name, words in SWEEP_DEFINITIONS],
    )


def _sweep_cards(rows: SweepRows) -> list[Card]:
    found, best = rows.found, rows.found.best
    cards: list[Card] = []
    if rows.judged:
        words = largest_words(best) if best is not None else "undecided" if rows.undecided() else "none"
        cards.append(("largest load", words, "" if best is None else setting_label(best.label)))
        cards.append(("objective", f"{rows.percentile} < {milliseconds(found.objective.slo_ms)}", ""))
    top = rows.shown_knee()
    cards.append(("knee", NONE, "") if top is None else ("knee", top.knee_words(), top.label))
    dispersion = found.traffic.dispersion
    burst = f"index of dispersion {significant(dispersion)} (1 for independent arrivals)"
    cards.append(("recorded rate", rate(found.traffic.recorded_rps), "" if dispersion is None else burst))
    if rows.gate is not None:
        cards.append((rows.gate.gate, rows.gate.outcome, rows.gate.reason))
    return cards


def _requests_words(found: Sweep) -> str:
    """How many requests a replay of a point had: fewer at low loads that would take too long, more at high ones."""
    many = [sum(point.requests.values()) // max(len(point.runs), 1) for point in found.points]
    planned = count(found.traffic.requests_per_point)
    if not many or min(many) == max(many) == found.traffic.requests_per_point:
        return planned
    return f"{planned} planned, {count(min(many))} to {count(max(many))} replayed"


def _sweep_method(found: Sweep) -> list[tuple[str, str]]:
    spread = found.spread
    words = "no point was replayed twice; a difference of 10 % between replays is assumed"
    if spread is not None and spread.freedom:
        words = (
            "in addition to sampling noise, the percentiles of two replays of one point differ by a factor of "
            f"{significant(spread.ratio)} (one standard deviation, {count(spread.freedom)} repeats; largest ratio "
            f"{significant(spread.largest)})"
        )
    machine = {name: value for name, value in found.machine.items() if value is not None and name != "torch"}
    memory = finite(machine.pop("memory_bytes", None))
    return [
        ("Requests per point", _requests_words(found)),
        ("Duration", f"{significant(found.seconds)} s of a budget of {significant(found.budget_s)} s"),
        ("Order", f"settings alternate, loads in random order, seed {found.seed or 0}"),
        ("Between replays", words),
        *((name, str(value)) for name, value in machine.items()),
        *([] if memory is None else [("memory", f"{significant(memory / 2**30)} GiB")]),
        *((name, str(value)) for name, value in found.versions.items()),
    ]
