"""Gates in CI: exit codes, JUnit XML, Markdown and annotations, through the command line and in any case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from latfix.errors import RunnerError
from tests.cli.conftest import Cli
from tests.conftest import cli, succeeded


def _suite(path: Path) -> ElementTree.Element:
    (suite,) = ElementTree.fromstring(path.read_text())
    return suite


def _outcomes(path: Path) -> dict[str, str]:
    return {
        str(case.get("name")): case[0].tag if len(case) else "passed" for case in _suite(path).findall("testcase")
    }


@pytest.mark.parametrize(
    ("gates", "code", "outcomes"),
    [
        (["p99<1s", "p97<1s", "error_rate<2%"], 0, ["passed", "passed", "passed"]),
        (["p50<1s", "p99<0.1ms"], 1, ["passed", "failure"]),
        (["p99<{p99}ms", "mean<1s"], 3, ["skipped", "passed"]),
        (["p97.5<0.1ms", "p99<{p99}ms"], 1, ["failure", "skipped"]),
    ],
)
def test_gates_become_exit_code_and_testcases(
    gates: list[str], code: int, outcomes: list[str], diagnose: Cli, tmp_path: Path
) -> None:
    known = diagnose("--json", tmp_path / "first.json")
    p99 = json.loads((tmp_path / "first.json").read_text())["latency_ms"]["p99"]
    expressions = [gate.format(p99=f"{p99:.6f}") for gate in gates]
    options = [word for gate in expressions for word in ("--gate", gate)]
    found, out, err = diagnose(*options, "--junit", tmp_path / "j.xml", "--markdown", tmp_path / "m.md")
    assert (known[0], found) == (0, code), err
    assert list(_outcomes(tmp_path / "j.xml").items()) == list(zip(expressions, outcomes, strict=True))
    markdown = (tmp_path / "m.md").read_text()
    assert markdown.startswith("## latfix diagnose: <code>w</code> on cpu — ")
    assert markdown.count("**FAILED**") == outcomes.count("failure")
    assert markdown.count("| undecided |") == outcomes.count("skipped")
    assert "p99.9" in markdown and "unexplained" in markdown
    assert "::" not in out, "no annotation without being expressions"


def test_an_undecided_gate_reports_how_much_longer(diagnose: Cli, tmp_path: Path) -> None:
    diagnose("--json", tmp_path / "first.json")
    first = json.loads((tmp_path / "first.json").read_text())
    limit = (first["latency_ms"]["p99"] + first["latency_ci95_ms"]["p99"][1]) / 2
    code, _, _ = diagnose("--gate", f"p99<{limit:.4f}ms", "--json", tmp_path / "d.json")
    (gate,) = json.loads((tmp_path / "d.json").read_text())["gates"]
    assert code == 3 and gate["passed"] is None
    assert gate["more_requests"] > 0
    # 300 requests in 30 s: ten a second.
    assert gate["more_minutes"] == pytest.approx(gate["more_requests"] / 600, rel=0.05)
    assert f"about {gate['more_requests']} more requests" in gate["reason"]


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown", "--history", "--out"])
@pytest.mark.parametrize("where", ["no/such/folder/x", "/proc/x/y", "w/adapter.py/x"])
def test_a_bad_path_fails_before_the_run(
    option: str, where: str, diagnose: Cli, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if option in ("--out", "--history") and where.startswith("no/"):
        pytest.skip("makes its folders")
    code, out, err = diagnose(option, where)
    assert (code, out) == (2, "") and err.count("\n") == 1 and where in err
    assert service.runs == 0


def test_a_step_summary_that_cannot_be_written_fails_before_the_run(
    diagnose: Cli, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/proc/x/y")
    code, _, err = diagnose("--annotations")
    assert code == 2 and "GITHUB_STEP_SUMMARY" in err and service.runs == 0
    assert diagnose()[0] == 0, "it is looked at only where annotations are expressions for"


@pytest.mark.parametrize(
    "options",
    [
        ("--json", "-", "--markdown", "-"),
        ("--json", "x", "--junit", "x"),
        ("--junit", "x", "--markdown", "./x"),
        ("--junit", "x", "--markdown", "w/../x"),
        ("--junit", "-", "--markdown", "-"),
    ],
)
def test_two_outputs_do_not_share_a_file(
    options: tuple[str, ...], diagnose: Cli, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = diagnose(*options)
    assert (code, out, service.runs) == (2, "", 0) and "expected another file" in err


def test_markdown_on_standard_output_stands_alone(diagnose: Cli, tmp_path: Path) -> None:
    code, out, err = diagnose("--markdown", "-", "--annotations", "--gate", "p99<0.1ms", "--junit", tmp_path / "j")
    assert code == 1
    assert out.startswith("## latfix diagnose") and "::error" not in out
    assert "gate p99<0.1ms  FAILED" in err
    assert [line.partition(" ")[0] for line in err.splitlines() if line.startswith("::")] == ["::error", "::notice"]


def test_annotations_and_the_step_s_page(diagnose: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    for _ in range(2):
        _, out, _ = diagnose("--annotations", "--gate", "p99<0.1ms", "--gate", "mean<1s")
        commands = [line for line in out.splitlines() if line.startswith("::")]
        assert [command.partition(" ")[0] for command in commands] == ["::error", "::notice"]
        assert commands[0].startswith("::error title=gate p99<0.1ms failed::p99 is ")
    text = page.read_text()
    assert text.startswith("before\n## latfix diagnose") and text.count("## latfix diagnose") == 2


def test_a_failed_run_leaves_its_reports(diagnose: Cli, service: Any, tmp_path: Path) -> None:
    service.fails = RunnerError("the model failed | <b>badly</b>")
    gates = ("--gate", "p99<1s", "--gate", "mean<1s")
    code, out, err = diagnose(*gates, "--junit", tmp_path / "j", "--markdown", tmp_path / "m", "--annotations")
    assert code == 4 and "the model failed" in err
    assert _outcomes(tmp_path / "j") == {"p99<1s": "error", "mean<1s": "error"}
    markdown = (tmp_path / "m").read_text()
    assert "**Failed:**" in markdown and markdown.count("not evaluated |") == 2 and "<b>" not in markdown
    assert "::error title=latfix diagnose w::the model failed | <b>badly</b>\n" in out


def test_a_run_without_an_answer_fails_its_gates_and_itself(diagnose: Cli, service: Any, tmp_path: Path) -> None:
    service.failed = 300
    gates = ("--gate", "p99<1s", "--gate", "p97<1s")
    code, _, err = diagnose(*gates, "--junit", tmp_path / "j", "--markdown", tmp_path / "m")
    assert code == 4 and "no request ended ok" in err
    assert _outcomes(tmp_path / "j") == {"p99<1s": "failure", "p97<1s": "failure", "run": "error"}
    assert "**FAILED**" in (tmp_path / "m").read_text()


def test_an_interrupted_run_leaves_its_reports(diagnose: Cli, service: Any, tmp_path: Path) -> None:
    service.interrupted = True
    code, _, _ = diagnose("--gate", "p99<1s", "--junit", tmp_path / "j", "--markdown", tmp_path / "m")
    assert code == 130
    assert _outcomes(tmp_path / "j") == {"p99<1s": "skipped", "run": "error"}  # a part of the traffic passes nothing
    assert "interrupted" in (tmp_path / "m").read_text()


def test_an_output_that_vanishes_is_one_line_and_the_rest_is_there(
    diagnose: Cli, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    replay = service.replay

    def remove(*arguments: Any) -> Any:
        gone.rmdir()
        return replay(*arguments)

    monkeypatch.setattr("latfix.cli.shared.replay_progress.replay_with_progress", remove)
    code, _, err = diagnose("--json", gone / "d.json", "--junit", tmp_path / "j", "--gate", "p99<1s")
    assert code == 2 and "--json: cannot write" in err
    assert _outcomes(tmp_path / "j") == {"p99<1s": "error"}
    assert (tmp_path / "run-1" / "diagnosis.json").exists()


def test_report_and_compare_write_the_same_kinds(diagnose: Cli, service: Any, tmp_path: Path) -> None:
    diagnose()
    service.scale = 0.5
    diagnose()
    runs = [tmp_path / "run-1", tmp_path / "run-2"]
    for command, arguments, gate in (("report", runs[:1], "p97<1s"), ("compare", runs, "p93<=baseline*0.9")):
        options = ("--gate", gate, "--annotations", "--junit", tmp_path / "j", "--markdown", tmp_path / "m")
        out = succeeded(cli(command, *arguments, *options))
        assert _outcomes(tmp_path / "j") == {gate: "passed"}
        assert _suite(tmp_path / "j").get("name") == f"latfix {command}"
        assert (tmp_path / "m").read_text().startswith(f"## latfix {command}: <code>w</code>")
        assert "::notice title=latfix" in out


def test_a_comparison_that_fails_leaves_its_reports(diagnose: Cli, tmp_path: Path) -> None:
    diagnose()
    meta = tmp_path / "run-1" / "run.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "accuracy": None}))
    gate = "accuracy>=baseline"
    code, out, err = cli(
        *("compare", tmp_path / "run-1", tmp_path / "run-1", "--gate", gate, "--junit", tmp_path / "j"),
        *("--markdown", tmp_path / "m", "--annotations"),
    )
    assert code == 2 and "found no accuracy here" in err
    assert _outcomes(tmp_path / "j") == {gate: "error"}
    assert "failed" in (tmp_path / "m").read_text() and out.startswith("::error title=latfix compare w::")


def test_a_baseline_run_is_compared_as_compare_does(diagnose: Cli, service: Any, tmp_path: Path) -> None:
    diagnose()
    service.scale = 0.5
    gates = ("--gate", "p95<=baseline*0.9", "--gate", "p93<baseline", "--gate", "mean<baseline*0.3")
    code, _, err = diagnose(*gates, "--baseline", tmp_path / "run-1", "--json", tmp_path / "d.json")
    cli("compare", tmp_path / "run-1", tmp_path / "run-2", *gates, "--json", tmp_path / "c.json")
    assert code == 1, err
    diagnosed, compared = (json.loads((tmp_path / name).read_text())["gates"] for name in ("d.json", "c.json"))
    assert diagnosed == compared
    assert [gate["passed"] for gate in diagnosed] == [True, True, False]
