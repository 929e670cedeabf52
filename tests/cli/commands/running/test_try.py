"""``latfix try`` as it is typed: ideas and what is refused, the table, files, exit codes; one real trial."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latfix.cli.shared.setting_options import parse_changes
from latfix.errors import InputError
from latfix.formatting import interval
from latfix.reports.terminal.trial import render_trial
from latfix.results import read_result
from latfix.results.comparison import Trial
from latfix.runners.side_by_side import replay_in_turns
from latfix.statistics.decision import RatioEstimate
from tests.adapters import sleeper
from tests.cli.conftest import refused
from tests.conftest import cli, succeeded, write_workload
from tests.reports.conftest import in_one_line, printed
from tests.results.test_documents import written


def test_an_idea_is_one_or_more_settings() -> None:
    assert parse_changes("precision=bf16") == {"precision": "bf16"}
    assert parse_changes("precision = bf16, max_batch_size=1,buffer_pool=true") == {
        "precision": "bf16",
        "max_batch_size": 1,
        "buffer_pool": True,
    }
    window = parse_changes("batch_window_ms=5")["batch_window_ms"]
    assert window == 5.0 and isinstance(window, float)
    assert parse_changes("env.A=1,env.B='x y',keep_precision=a.b,c") == {
        "env": {"A": "1", "B": "x y"},
        "keep_precision": ["a.b", "c"],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("precison=bf16", "did you mean 'precision'?"),
        ("precision=bf-16", "did you mean 'bf16'?"),
        ("precision=bf16,max_batch=1", "did you mean 'max_batch_size'?"),
        ("precision", "expected KEY=VALUE[,KEY=VALUE…]"),
        ("=bf16", "which is not a setting"),
        ("precision=", "expected KEY=VALUE"),
        ("max_batch_size=1,2", "found '1,2'; expected a whole number"),
        ("max_batch_size=0", "expected a whole number from 1 to 4096"),
        ("workers=1,workers=2", "found workers twice"),
        ("env.A=1,env.A=2", "found env.A twice"),
        ("env=A", "expected env.NAME=TEXT"),
        ("env.A B=1", "expected env.NAME=TEXT"),
        ("keep_precision=a\tb", "expected names of modules"),
    ],
)
def test_ideas_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_changes(text)
    assert words in refusal.value.message and refusal.value.message.startswith("--set")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "try: found no idea that changes the workload"),
        (("--set", "precison=bf16"), "did you mean 'precision'?"),
        (("--set", "workers=1", "--set", "workers=1,max_queue=0"), "try: found no idea that changes the workload"),
        (("--set", "workers=2", "--combine"), "expected two or more"),
        (("--set", "workers=2", "--set", "workers=3", "--combine"), "--combine: found workers=2 and workers=3"),
        (("--profile", "larg"), "did you mean 'large'?"),
        (("--plan", "none.toml"), "none.toml"),
        (("--set", "workers=2", "--rounds", "0"), "--rounds"),
        (("--set", "workers=2", "--budget", "soon"), "--budget"),
        (("--set", "workers=2", "--device", "tpu"), "--device"),
        (("--set", "workers=2", "--json", "nowhere/x.json"), "--json"),
        (tuple(word for k in range(21) for word in ("--set", f"workers={k + 1}")), "expected at most 20"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "w", adapter="raise SystemExit(9)\nclass W(object): pass")
    with (workload / "workload.toml").open("a", encoding="utf-8") as file:
        file.write("[profile.large.runner]\nworkers = 4\n")
    refused(cli("try", workload, *options, "--out", tmp_path / "o"), words)
    assert not (tmp_path / "o").exists()


class Found:
    """A trial that has been done already; what it was to try is kept."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.ideas: Any = None

    def __call__(self, ideas: Any, *_: Any, **__: Any) -> Found:
        self.ideas = ideas
        return self

    def run(self) -> Trial:
        return self.trial


@pytest.fixture
def document() -> Any:
    return written("trial")


def test_every_kind_of_idea_is_an_arm(document: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = Found(Trial.from_json(document))
    monkeypatch.setattr(replay_in_turns, "SideBySide", found)
    workload = write_workload(tmp_path / "w", runner={"max_batch_size": 4})
    with (workload / "workload.toml").open("a", encoding="utf-8") as file:
        file.write("[profile.large.runner]\nworkers = 4\n[profile.large.traffic]\nspeed = 2.0\n")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'schema = "latfix.plan/1"\nworkload = "other"\n[[fix]]\nid = "gc.freeze"\n[fix.settings]\ngc = "freeze"\n'
    )
    sets = ("--set", "precision=bf16", "--set", "max_batch_size=1,env.A=1", "--combine")
    more = ("--profile", "large", "--plan", plan, "--device", "cpu")
    code, out, err = cli("try", workload, *sets, *more, "--out", tmp_path / "o")
    assert code == 0, err
    base, bf16, single, large, planned, combined = found.ideas
    assert [idea.name for idea in found.ideas] == [
        *("as it is", "precision=bf16", "max_batch_size=1,env.A=1", "profile large", f"plan {plan}"),
        "all sets together",
    ]
    assert (base.settings.max_batch_size, single.settings.max_batch_size) == (4, 1)
    assert (bf16.settings.precision, large.settings.workers, planned.settings.gc) == ("bf16", 4, "freeze")
    assert planned.fixes == ("gc.freeze",)
    assert combined.settings == bf16.settings.with_overrides({"max_batch_size": 1, "env": {"A": "1"}})
    assert "profile large has its own traffic" in err and "other" in err
    again = read_result(tmp_path / "o" / "trial.json").to_json()
    assert again.pop("origin")["host"] and again == document
    assert "95 % intervals" in " ".join(out.split()) and str(tmp_path / "o")[:20] in out


def test_equal_ideas_are_replayed_once(document: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = Found(Trial.from_json(document))
    monkeypatch.setattr(replay_in_turns, "SideBySide", found)
    workload = write_workload(tmp_path / "w", runner={"max_batch_size": 4})
    with (workload / "workload.toml").open("a", encoding="utf-8") as file:
        file.write('[profile.two.runner]\nworkers = 2\n[profile.other.workload]\nentry = "adapter:Other"\n')
    sets = [word for text in ("workers=2", "workers = 2", "max_batch_size=4") for word in ("--set", text)]
    code, _, err = cli("try", workload, *sets, "--profile", "two", "--profile", "other", "--out", tmp_path / "o")
    assert code == 0, err
    assert [idea.name for idea in found.ideas] == ["as it is", "workers=2", "profile other"]
    same = (("workers = 2", "workers=2"), ("max_batch_size=4", "as it is"), ("profile two", "workers=2"))
    assert all(f"warning: {one!r} and {other!r} are the same service" in err for one, other in same), err


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"interrupted": True}, 130, "Interrupted: only complete rounds"),
        ({"failure": "it was killed"}, 4, "the trial was ended: it was killed"),
        ({"ideas": "failed"}, 4, "all ideas failed"),
    ],
)
def test_exit_codes(
    change: dict[str, Any],
    code: int,
    words: str,
    document: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if "ideas" in change:
        change = {"ideas": [{"name": "a", "failure": "no such backend"}]}
    monkeypatch.setattr(replay_in_turns, "SideBySide", Found(Trial.from_json({**document, **change})))
    workload = write_workload(tmp_path / "w")
    found = cli("try", workload, "--set", "workers=2", "--out", tmp_path / "o", "--json", tmp_path / "j")
    assert found[0] == code and words in " ".join((found[1] + found[2]).split())
    assert json.loads((tmp_path / "j").read_text()) == json.loads((tmp_path / "o" / "trial.json").read_text())


@pytest.mark.parametrize("width", [80, 60, 140])
def test_the_table_fits_the_terminal(width: int, document: Any) -> None:
    document["ideas"].append({"name": "x" * 90, "failure": "a very long reason " * 9})
    found = Trial.from_json(document)
    shown = printed(render_trial(found, folder=None), width=width)
    assert max(map(len, shown.splitlines())) <= width
    compared = [idea.comparison for idea in found.ideas if idea.comparison is not None]
    for estimate in (each.ratio[key] for each in compared for key in ("p50", "p99", "mean")):
        assert width < 80 or interval((estimate.lo, estimate.hi)) in shown, "no figure is cut or folded"
    assert shown.count("…") == 0 and "failed" in shown and "beyond" in shown


def test_an_accuracy_from_too_few_requests_is_not_beyond_the_limit(document: Any) -> None:
    idea = next(idea for idea in document["ideas"] if idea.get("comparison"))
    idea.update(accuracy=1.0, accurate=None, accuracy_reason="93 requests are too few to exclude a loss of 0.02")
    idea["comparison"]["ratio"][document["judged"]].update(value=18.0, lo=17.0, hi=19.0)
    found = Trial.from_json({**document, "ideas": [idea]})
    shown = in_one_line(printed(render_trial(found, folder=None), width=200))
    assert "1.00 cannot tell" in shown and "beyond" not in shown and "93 requests are too few" in shown
    assert f"nearest: {idea['name']}, p" in shown and "18 times slower" in shown and "best so far" not in shown


def test_a_better_idea_of_unknown_accuracy_is_not_said_to_be_no_better(document: Any) -> None:
    idea = next(idea for idea in document["ideas"] if idea.get("comparison"))
    idea["comparison"]["verdict"] = "better"
    for accurate, words in (
        (None, "No idea is proved to improve p99 within the accuracy limit"),
        (True, "Best idea: "),
    ):
        found = Trial.from_json({**document, "ideas": [{**idea, "accurate": accurate}]})
        assert words in in_one_line(printed(render_trial(found, folder=None), width=200))


def test_a_ratio_of_lost_percentiles_is_not_shown(document: Any) -> None:
    found = Trial.from_json(document)
    (first, *_), lost = found.ideas, RatioEstimate(value=3.21, lo=2.11, hi=4.31, lost=True)
    assert first.comparison is not None
    compared = replace(first.comparison, ratio={**first.comparison.ratio, "p99": lost})
    shown = printed(
        render_trial(replace(found, ideas=(replace(first, comparison=compared),)), folder=None), width=200
    )
    assert "0.600" in shown and "3.21" not in shown and "2.11" not in shown


SLEEPER = sleeper("0.004")


@pytest.mark.slow
def test_a_trial_of_real_processes(tmp_path: Path) -> None:
    """A window of 60 ms that nothing fills: without it requests are faster; a backend that cannot run is a row."""
    traffic = [{"arrival_s": k * 0.025, "value": k % 9} for k in range(60)]
    runner = {"max_batch_size": 8, "batch_window_ms": 60.0, "warmup_requests": 4}
    workload = write_workload(tmp_path / "w", adapter=SLEEPER, traffic=traffic, runner=runner)
    with (workload / "workload.toml").open("a", encoding="utf-8") as file:
        file.write("[objective]\npercentile = 50\n")
    sets = ("--set", "batch_window_ms=0", "--set", "backend=tensorrt")
    out = succeeded(cli("try", workload, *sets, "--rounds", 2, "--out", tmp_path / "o", "--json", "-"))
    document = json.loads(out)
    assert document == json.loads((tmp_path / "o" / "trial.json").read_text())
    window, failed = document["ideas"]
    assert window["comparison"]["ratio"]["p50"]["value"] < 0.6 and window["accurate"] is True
    assert window["memory_bytes"] > 0 and window["start_s"] > 0
    assert document["origin"]["host"] and document["origin"]["started"] > "2026"
    assert document["rounds"] == 2 and document["whole"]
    assert failed["failure"] and "comparison" in failed and failed["comparison"] is None
    assert (tmp_path / "o" / window["record"] / "run.json").is_file()
    page = (tmp_path / "o" / "report.html").read_text()
    assert "Slowest requests, batch_window_ms=0" in page and 'href="#story-0"' in page
    code, out, _ = cli("report", tmp_path / "o")
    assert code == 0 and "batch_window_ms=0" in out and (tmp_path / "o" / "report.html").read_text() == page
