"""``latfix optimize`` around its search: options that are passed on, gates, the history, and what CI reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from latfix.cli.commands.running.optimize import aimed_at
from latfix.config.plan import read_plan
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import RunnerError
from latfix.history.store import History
from latfix.profilers.diagnose import diagnose
from latfix.results.answer_check import AnswerCheck
from latfix.results.comparison import compare_rounds
from latfix.results.optimization_step import Step
from latfix.runners.optimize.optimizer import Options, Outcome
from latfix.runners.replay.run_session import Interrupted, Replay
from latfix.settings import Objective, RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.cli.conftest import Cli, refused
from tests.conftest import cli, succeeded, write_workload


class Search:
    """A search that keeps one fix and refuses another; the service is that of the test."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.received: dict[str, Any] = {}
        self.gain = 0.4
        self.failure = ""
        self.interrupted = False
        self.file = ""
        self.unrepeatable = 0

    def __call__(
        self,
        spec: WorkloadSpec,
        traffic: Traffic,
        settings: RunnerSettings,
        out: Path,
        options: Options,
        *,
        watch: Any,
        say: Any,
        show: Any,
        resume: bool = False,
    ) -> Search:
        del watch
        self.received = {"options": options, "out": out, "resume": resume}
        self.inputs = (spec, traffic, settings, out)
        say("searching")
        self._show = show
        return self

    def run(self) -> Outcome:
        spec, traffic, settings, out = self.inputs

        def replay(name: str, scale: float) -> Any:
            self.service.scale = scale
            return self.service.replay(out / name, Replay(spec=spec, traffic=traffic, settings=settings))

        baseline = replay("baseline", 1.0)
        if self.file:
            made_of = {"file": self.file, "runtime": "ONNX Runtime"}
            baseline = replace(baseline, meta=baseline.meta.updated(model={"made_of": made_of}))
        diagnosis = diagnose(baseline, bootstrap=20)
        self._show(diagnosis)
        outcome = Outcome(
            baseline=baseline, diagnosis=diagnosis, accuracy=0.9, accuracy_kind="evaluate", accuracy_limit=0.89
        )
        if self.failure or self.interrupted:
            outcome.failure, outcome.interrupted = self.failure, self.interrupted
            return outcome
        pairs = [(replay(f"final/before-{k}", 1.0), replay(f"final/after-{k}", self.gain)) for k in range(3)]
        outcome.before, outcome.after = pairs[-1]
        outcome.final_accuracy = 0.895
        if self.unrepeatable:
            outcome.accuracy_kind = "agreement: scores"
            outcome.answers = AnswerCheck(outputs=(), compared=0, differing=0, unrepeatable=self.unrepeatable)
        outcome.final = compare_rounds(*map(list, zip(*pairs, strict=True)), accuracy=outcome.accuracies)
        outcome.after_diagnosis = diagnose(outcome.after, bootstrap=20)
        outcome.steps = [
            Step(fix="gc.freeze", status="kept", reason="p95 x0.40", comparison=outcome.final, verified="frozen"),
            Step(fix="quantize.int8_dynamic", status="rejected", reason="accuracy 0.9 -> 0.5 | limit 0.89"),
        ]
        if self.file:
            outcome.steps.append(
                Step(fix="fuse.openvino", status="kept", reason="", settings={"backend": "openvino"})
            )
        return outcome


@pytest.fixture
def search(service: Any, monkeypatch: pytest.MonkeyPatch) -> Search:
    stand_in = Search(service)
    monkeypatch.setattr("latfix.runners.optimize.optimizer.Optimizer", stand_in)
    monkeypatch.setattr(
        "latfix.reports.html.change_page.write_optimization_report", lambda path, *_, **__: path.write_text("x")
    )
    return stand_in


@pytest.fixture
def optimize(search: Search, tmp_path: Path) -> Cli:
    """Calls `latfix optimize` on a workload of 300 requests, by default into the folder ``o``."""
    del search
    workload = write_workload(tmp_path / "w", traffic=[{"arrival_s": k * 0.1} for k in range(300)])

    def call(*arguments: object) -> tuple[int, str, str]:
        out = () if "--resume" in arguments or "--out" in arguments else ("--out", tmp_path / "o")
        return cli("optimize", workload, *out, *arguments)

    return call


def test_the_result_in_every_form(optimize: Cli, tmp_path: Path) -> None:
    gates = ("p97<=baseline*0.8", "accuracy>=baseline-0.01", "mean<0.1ms", "p99<history*2")
    options = [word for gate in gates for word in ("--gate", gate)]
    history = ("--history", tmp_path / "h")
    code, out, err = optimize(*options, *history, "--junit", tmp_path / "j", "--markdown", "-", "--annotations")
    assert code == 1, err
    document = json.loads((tmp_path / "o" / "optimization.json").read_text())
    assert [gate["passed"] for gate in document["gates"]] == [True, True, False, None]
    (suite,) = ElementTree.fromstring((tmp_path / "j").read_text())
    found = {case.get("name"): case[0].tag if len(case) else "passed" for case in suite.findall("testcase")}
    assert found == dict(zip(gates, ("passed", "passed", "failure", "skipped"), strict=True))
    assert out.startswith("## latfix optimize: <code>w</code> on cpu — improved")
    for words in ("| **kept** |", "| rejected | accuracy 0.9", "&#124; limit 0.89", "×0.4", "p99, ms", "unexplained"):
        assert words in out, words
    assert "::error title=gate mean<0.1ms failed::" in err and "::warning title=gate p99<history*2 undecided" in err


def test_an_accuracy_that_cannot_be_measured_costs_no_result(optimize: Cli, search: Search, tmp_path: Path) -> None:
    """Only the search shows that answers do not repeat."""
    search.unrepeatable = 2
    code, _, err = optimize("--gate", "accuracy>=baseline-0.01", "--gate", "mean<1s", "--junit", tmp_path / "j")
    assert code == 3, err
    document = json.loads((tmp_path / "o" / "optimization.json").read_text())
    assert [gate["passed"] for gate in document["gates"]] == [None, True]
    assert document["after"]["accuracy"] is None and (tmp_path / "o" / "plan.toml").is_file()
    assert "do not repeat" in (tmp_path / "j").read_text()


def test_the_plan_of_an_onnx_file_replaces_what_runs_it(optimize: Cli, search: Search, tmp_path: Path) -> None:
    """The setting is ``torch``, and ONNX Runtime runs the file all the same."""
    search.file = "model.onnx"
    out = succeeded(optimize())
    assert json.loads((tmp_path / "o" / "optimization.json").read_text())["changes"]["backend"] == [
        "onnxruntime",
        "openvino",
    ]
    assert "backend  onnxruntime -> openvino" in out


@pytest.mark.parametrize(("gain", "verdict"), [(0.4, "improved"), (1.0, "inconclusive")])
def test_the_plan_says_how_it_was_proved(
    gain: float, verdict: str, optimize: Cli, search: Search, tmp_path: Path
) -> None:
    search.gain = gain
    succeeded(optimize())
    document, plan = json.loads((tmp_path / "o" / "optimization.json").read_text()), read_plan(tmp_path / "o")
    assert (plan.verdict, plan.rounds) == (document["verdict"], document["rounds"]) == (verdict, 3)
    for key, estimate in document["ratio"].items():
        assert [plan.measured[f"{key}_ratio_{end}"] for end in ("low", "high")] == estimate["ci95"]


@pytest.mark.parametrize(("goal", "limit"), [(None, 50.0), ("p99", 50.0), ("mean", 50.0), ("p50", None)])
def test_the_limit_is_not_that_of_another_percentile(goal: str | None, limit: float | None) -> None:
    assert aimed_at(Objective(percentile=99.0, slo_ms=50.0), goal, None).slo_ms == limit


def test_the_next_step_names_the_workload_as_typed(
    optimize: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del optimize
    named: list[str] = []

    def render(*_: Any, workload_argument: str, **__: Any) -> str:
        named.append(workload_argument)
        return ""

    monkeypatch.setattr("latfix.reports.terminal.comparison.render_optimization", render)
    monkeypatch.chdir(tmp_path)
    assert cli("optimize", "w", "--out", "o")[0] == 0
    assert named == ["w"]


def test_a_summary_names_workload_and_plan_as_a_shell_finds_them(
    optimize: Cli, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search.file = "model.onnx"  # a plan that changes a setting
    monkeypatch.chdir(tmp_path)
    deep = Path("runs", *["of a branch"] * 20)  # a long path is not cut off
    out = succeeded(optimize("--out", deep, "--markdown", "-"))
    command = f"latfix diagnose {tmp_path / 'w'} --plan '{deep / 'plan.toml'}'"
    assert command in unescape(out.replace("<!-- -->", ""))


def test_what_is_recorded_is_the_service_with_its_fixes(optimize: Cli, search: Search, tmp_path: Path) -> None:
    for k in range(2):
        succeeded(optimize("--history", tmp_path / "h", "--out", tmp_path / f"o{k}"))
    document = json.loads((tmp_path / "o1" / "optimization.json").read_text())
    first, second = History.read(tmp_path / "h").rows()
    assert second.subject.latency_ms.items() >= document["after"]["latency_ms"].items()
    assert (second.subject.accuracy, second.verdict, second.series.command) == (0.895, "improved", "optimize")
    assert first.series == second.series and second.subject.figure("p97") is not None
    assert second.subject.cause_shares is not None and second.folder == str(tmp_path / "o1")
    search.interrupted = True
    assert optimize("--history", tmp_path / "h", "--out", tmp_path / "o2")[0] == 130
    assert History.read(tmp_path / "h").rows()[-1].unusable == "it did not reach its end"


def test_a_service_that_fails_leaves_its_reports(optimize: Cli, search: Search, tmp_path: Path) -> None:
    search.failure = "the service died"
    code, _, err = optimize("--gate", "p99<1s", "--junit", tmp_path / "j", "--markdown", tmp_path / "m")
    assert code == 4 and "the service died" in err
    for name in ("j", "m"):
        assert "the service died" in (tmp_path / name).read_text(), name


@pytest.mark.parametrize("error", [RunnerError("no baseline"), "interrupted", "interrupted after it"])
def test_a_baseline_that_fails_leaves_its_reports(
    error: RunnerError | str, optimize: Cli, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(search: Search) -> Outcome:
        if isinstance(error, RunnerError):
            raise error
        service.interrupted = error == "interrupted"
        spec, traffic, settings, out = search.inputs
        try:
            service.replay(out / "baseline", Replay(spec=spec, traffic=traffic, settings=settings))
        except Interrupted as stopped:
            raise stopped from None
        assert error == "interrupted after it"
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", run)
    reports = ("--junit", tmp_path / "j", "--markdown", tmp_path / "m")
    code, _, err = optimize("--gate", "p99<1s", "--out", tmp_path / "my o", *reports)
    assert code == (4 if isinstance(error, RunnerError) else 130)
    shown = f"show the recorded part with: latfix report '{tmp_path / 'my o' / 'baseline'}'\n"
    assert (shown in err) != isinstance(error, RunnerError)
    assert '<error type="not judged"' in (tmp_path / "j").read_text()
    assert "not evaluated" in (tmp_path / "m").read_text()


def test_trials_and_budget_reach_the_search(optimize: Cli, search: Search, tmp_path: Path) -> None:
    optimize()
    assert search.received["options"].trials is None, "no limit"
    assert optimize("--trials", 3, "--budget", "90s", "--out", tmp_path / "second")[0] == 0
    options = search.received["options"]
    assert (options.trials, options.budget_s, search.received["resume"]) == (3, 90.0, False)


def test_gates_keep_the_final_replay_going(optimize: Cli, search: Search) -> None:
    """Against the baseline they have levels for repeated looks; against a number they are judged once more."""
    optimize()
    assert search.received["options"].undecided is None
    comparison = search.run().final
    assert comparison is not None

    def undecided(gate: str) -> Callable[[Any], bool]:
        optimize("--gate", gate, "--out", search.inputs[3].with_name(f"o{len(gate)}"))
        found: Callable[[Any], bool] = search.received["options"].undecided
        return found

    figure = comparison.after.latency_ms["p99"]
    assert not undecided("p99<=baseline*1.5")(comparison)
    assert undecided("mean<=baseline*0.4")(comparison)
    against_number = undecided(f"p99<{figure:.4f}ms")
    assert against_number(comparison) and against_number(comparison)
    sure = replace(comparison, after=replace(comparison.after, latency_ci95_ms={"p99": (0.5 * figure, 0.6 * figure)}))
    assert against_number(sure), "it was undecided before: only the end counts"
    assert not undecided(f"p99<{figure:.3f}ms")(sure)


def test_resume_continues_in_its_folder(optimize: Cli, search: Search, tmp_path: Path) -> None:
    (tmp_path / "earlier" / "search").mkdir(parents=True)
    succeeded(optimize("--resume", tmp_path / "earlier"))
    assert search.received["out"] == tmp_path / "earlier" and search.received["resume"]
    assert (tmp_path / "earlier" / "optimization.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--trials", "0"), "--trials"),
        (("--trials", "-1"), "--trials"),
        (("--trials", "two"), "--trials"),
        (("--resume", "nothing"), "--resume"),
        (("--resume", ".", "--out", "x"), "found --out x as well"),
        (("--fix", "batch.size", "--no-fix", "batch.size"), "--no-fix: found batch.size, also given as --fix"),
        (("--budget", "0.1s"), "--budget: found 0.1 s; expected at least"),
        (("--junit", "no/such/j.xml"), "--junit"),
        (("--markdown", "no/such/m.md"), "--markdown"),
        (("--history", "/proc/x/h"), "/proc/x/h"),
        (("--history", "off", "--gate", "p99<history"), "no history here"),
        (("--gate", "p99<histories"), "--gate"),
    ],
)
def test_wrong_options_are_refused_before_the_search(
    arguments: tuple[str, ...],
    words: str,
    optimize: Cli,
    search: Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(optimize(*arguments), words)
    assert search.received == {}
