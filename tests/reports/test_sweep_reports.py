"""A sweep's terminal and page: complete, and safe for hostile texts and incomplete documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from latfix.reports.answer import sweep_answer
from latfix.reports.html.sweep_page import write_sweep_report
from latfix.reports.sweep_rows import sweep_rows
from latfix.reports.terminal.sweep import render_sweep
from latfix.results.sweep import Sweep
from tests.reports.conftest import in_one_line, printed
from tests.reports.html.test_pages import Page, checked


def objective(ms: float | None, ci95: list[float | None], meets: bool | None) -> dict[str, Any]:
    return {"percentile_ms": ms, "ci95_ms": ci95, "at_least": ci95[1] is None, "meets": meets}


def point(setting: int, load: float, latency: float, meets: bool | None, **more: Any) -> dict[str, Any]:
    models = ("mm1", "mg1", "kingman", "replay", "replay_own")
    fitted = load == 0.5
    answer = {"mean_wait_ms": 4.0 * load, "mean_ms": 20.0, "percentile_ms": latency * 0.9, "fitted": fitted}
    return {
        "setting": setting,
        "load": load,
        "offered_rps": 40.0 * load,
        "achieved_rps": 39.0 * load,
        "requests": {"ok": 990, "error": 10, "timeout": 0, "shed": 0},
        "latency_ms": {"p50": 12.0, "p99": latency},
        "latency_ci95_ms": {},
        "objective": objective(latency, [latency * 0.9, latency * 1.2], meets),
        "enough_requests": True,
        "saturated": False,
        "wait_ms": {"mean": 5.0 * load, "p99": 30.0},
        "utilization": {"workers": 0.3 * load, "held_open": 0.0, "prepare": 0.01},
        "batch_size": 1.5,
        "in_flight_at_end": 0,
        "trustworthy": True,
        "dispersion": 3.0,
        "predictions": {name: {**answer, "why_not": None} for name in models},
        "reasons": [{"reason": "bursts", "text": "arrivals are burstier than independent ones", "figures": {}}],
        "runs": [{"folder": "p/0", "kind": "grid", "ended_early": False, "fresh_process": True}] * 2,
        **more,
    }


def document() -> dict[str, Any]:
    return {
        "schema": "latfix.sweep/1",
        "workload": "ranker",
        "device": "cpu",
        "state": "complete",
        "objective": {"percentile": 99.0, "slo_ms": 100.0},
        "traffic": {"recorded_rps": 40.0, "requests_per_point": 1000, "repeated": 1, "dispersion": 3.2},
        "settings": [
            {
                "id": k,
                "label": label,
                "failure": None,
                "largest": {"status": "found", "rps": 45.0 + k, "ci95_rps": [40.0, 50.0], "reason": "40/s meets it"},
                "knee": {"rps": 40.0, "ci95_rps": [30.0, 45.0], "bracketed": True},
                "most_achieved_rps": 58.5,
                "capacity_rps": 62.0,
                "predicted": [
                    {
                        "load": load,
                        "offered_rps": 40 * load,
                        "percentile_ms": ms,
                        "ci95_ms": [ms / 2, 2 * ms],
                        "meets": meets,
                    }
                    for load, ms, meets in ((0.5, 20.0, True), (0.85, 64.5, True), (1.4, 321.0, False))
                ],
            }
            for k, label in enumerate(["max_batch_size=1", "max_batch_size=8"])
        ],
        "points": [
            point(k, load, latency, meets)
            for k in (0, 1)
            for load, latency, meets in ((0.5, 20.0, True), (1.0, 80.0, True), (1.25, 160.0, False))
        ]
        + [point(0, 1.5, 2000.0, False, saturated=True, objective=objective(2000.0, [1800.0, None], False))],
        "pareto": [
            {"setting": 0, "load": 0.5, "achieved_rps": 19.5, "percentile_ms": 20.0, "certain": False},
            {"setting": 1, "load": 1.0, "achieved_rps": 39.0, "percentile_ms": 80.0, "certain": True},
        ],
        "knee_rule": "the load at which throughput over the objective's percentile is largest",
        "best": {
            "setting": 1,
            "label": "max_batch_size=8",
            "status": "found",
            "rps": 46.0,
            "ci95_rps": [40.0, 50.0],
            "maybe_as_good": [0],
        },
        "gate": {"at_least_rps": 44.0, "passed": None, "reason": "at 44/s the data cannot tell"},
        "models": {"mm1": {"wait": 2.2, "percentile": 3.1, "loads": 6, "silent": 1}},
        "spread": {"run_to_run_ratio": 1.05, "repeats": 7, "largest_ratio": 1.2},
        "skipped": [{"setting": 0, "load": 2.0, "reason": "past saturation: load 1.5 is already"}],
        "machine": {"cores": 2},
        "versions": {"latfix": "0.1.0"},
        "notes": ["6 of 7 points are short"],
        "seconds": 250.0,
        "budget_s": 300.0,
        "seed": 3,
    }


def shown(content: dict[str, Any], *, encoding: str = "utf-8", width: int = 240) -> str:
    return printed(render_sweep(Sweep.from_json(content), folder=Path("runs/x")), width=width, encoding=encoding)


def page(content: dict[str, Any], tmp_path: Path) -> Page:
    write_sweep_report(tmp_path / "report.html", Sweep.from_json(content))
    return checked(tmp_path / "report.html")


def sentence(content: dict[str, Any]) -> str:
    return sweep_rows(Sweep.from_json(content)).sentence()


def test_the_terminal_has_the_answers() -> None:
    text = shown(document())
    assert "max_batch_size=8 sustains 46.0/s [40.0, 50.0] with p99 under 100 ms, 1.15 times the recorded rate" in text
    assert "1 other setting may do as well" in text
    assert ">2,000" in text and "1,800 or more" in text and "saturated" in text
    assert "1 of 1 gate undecided" in text and "44.0/s" in text
    assert "x2.20!" in text and "x3.10!" in text, "with a mark, because it is silent at some loads"
    assert "[18.0]" in text, "a model that was given the load's own figures"
    assert "arrivals are burstier" in text
    assert "not replayed: 1 past saturation" in text
    assert "64.5" in text and text.count("predicted meets") == 2, "replayed loads are not listed twice"
    assert "6 of 7 points are short" in text


def test_a_disturbed_sweep_says_so_first(tmp_path: Path) -> None:
    content = {**document(), "disturbed": "2 of 3 replays; in the first of them a hog"}
    answer = sweep_answer(sweep_rows(Sweep.from_json(content)))
    assert answer.lines[0].label == "disturbed" and answer.lines[1].label != ""
    assert (
        content["disturbed"] in in_one_line(shown(content)) and content["disturbed"] in page(content, tmp_path).text
    )


def test_the_page_has_the_answers(tmp_path: Path) -> None:
    parsed = page(document(), tmp_path)
    for words in ("max_batch_size=8 sustains", "saturated", "×3.10", "arrivals are burstier", "M/M/1", "14 replays"):
        assert words in parsed.text
    assert "predicted" in parsed.text and "321" in parsed.text
    # latency, throughput, front, and theory for each of two settings
    assert sum(name.endswith("-title") for name in parsed.ids) == 5
    anchors = ("settings", "loads", "front", "theory", "method", "definitions")
    assert parsed.references[: len(anchors)] == [f"#{anchor}" for anchor in anchors]


def test_a_setting_that_failed_says_why_also_without_an_objective(tmp_path: Path) -> None:
    content = {**document(), **AWKWARD["no objective"]}
    content["settings"][0].update(failure="out of memory", largest=None, knee=None)
    for text in (shown(content), page(content, tmp_path).text):
        assert "failed: out of memory" in text


AWKWARD: dict[str, Any] = {
    "no objective": {"objective": {"percentile": 99.0, "slo_ms": None}, "best": None, "gate": None},
    "nothing replayed": {"points": [], "pareto": [], "best": None, "models": {}},
    "one setting": "one",
    "nothing known": "nulls",
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_documents(kind: str, tmp_path: Path) -> None:
    content, change = document(), AWKWARD[kind]
    if change == "one":
        content["settings"] = content["settings"][:1]
        content["points"] = [one for one in content["points"] if one["setting"] == 0]
        content["settings"][0]["label"] = content["best"]["label"] = "as it is"
        content["best"]["setting"] = 0
    elif change == "nulls":
        for one in content["points"]:
            one.update({key: {} for key, value in one.items() if isinstance(value, dict) and key != "objective"})
            one.update(objective=objective(None, [None, None], None), dispersion=None, reasons=[], runs=[])
        for setting in content["settings"]:
            setting.update(largest=None, knee=None, capacity_rps=None)
    else:
        content.update(change)
    assert shown(content, encoding="ascii").strip()
    assert "h1" in page(content, tmp_path).tags
    if kind == "no objective":
        assert "no objective is set" in sentence(content)
    if kind == "one setting":
        assert "The unmodified service sustains" in sentence(content)


@pytest.mark.parametrize(
    ("status", "ends", "words"),
    [
        ("above", [50.0, None], "sustains at least 50.0/s"),
        (
            "undecided",
            [40.0, None],
            "at least 40.0/s with p99 under 100 ms; the data give no upper bound",
        ),
        ("undecided", [40.0, 60.0], "sustains between 40.0/s and 60.0/s with p99 under 100 ms; the data"),
        ("below", None, "Every replayed load"),
        ("undecided", None, "Undecided: no replayed load"),
    ],
)
def test_sentences(status: str, ends: list[float | None] | None, words: str) -> None:
    content = document()
    if ends is None:
        content["best"] = None
        for setting in content["settings"]:
            setting["largest"] = {"status": status, "rps": None, "ci95_rps": [None, None], "reason": ""}
    else:
        content["best"].update(status=status, ci95_rps=ends)
    assert words in sentence(content)


def test_a_sweep_that_was_ended_has_no_answer_and_says_so(tmp_path: Path) -> None:
    content = {**document(), "state": "running", "settings": [], "best": None, "gate": None, "pareto": []}
    words = "No answer: the sweep has not reached its end (7 points)."
    assert sentence(content) == words and words in shown(content)
    assert words in page(content, tmp_path).text


def test_a_knee_outside_the_loads_is_shown_on_the_right_side() -> None:
    content = document()
    for at, words in ((20.0, "below 20.0/s"), (60.0, "above 60.0/s")):
        content["settings"][0]["knee"] = {"rps": at, "ci95_rps": [at, at], "bracketed": False}
        assert words in sweep_rows(Sweep.from_json(content)).settings[0].knee_words()


def test_the_reason_of_the_load_that_is_farthest_off_is_shown() -> None:
    sweep = document()
    usual = {"reason": "service", "text": "service changes with load: a bit", "figures": {}}
    telling = {"reason": "service", "text": "service changes with load: twice as long", "figures": {}}
    for entry in sweep["points"]:
        entry["reasons"] = [usual]
    sweep["points"][4] |= {"reasons": [telling], "wait_ms": {"mean": 400.0, "p99": 900.0}}
    text = shown(sweep)
    assert "at load 1.00 (wait off by x100): service changes with load: twice as long" in " ".join(text.split())
    assert text.count("a bit") <= 1, "not the same of every load"


def test_the_page_lists_loads_in_order_and_how_many_requests_were_replayed(tmp_path: Path) -> None:
    content = document()
    content["points"][0]["runs"] = content["points"][0]["runs"][:1]
    parsed = page(content, tmp_path)
    listed = parsed.text[parsed.text.index("Loads, max_batch_size=8") :]
    assert listed.index("0.850") < listed.index("1.00") < listed.index("1.25") < listed.index("1.40")
    assert "1,000 planned, 500 to 1,000 replayed" in parsed.text


def test_a_single_replay_is_counted_as_one(tmp_path: Path) -> None:
    content = document()
    content["points"] = [{**content["points"][0], "runs": content["points"][0]["runs"][:1]}]
    assert "1 replay\n" in f"{shown(content).splitlines()[0].rstrip()}\n"
    assert "1 replay\n" in page(content, tmp_path).text
