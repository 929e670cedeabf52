"""``latfix selftest``: its options, its outputs and its exit codes; the replays themselves are tested elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from latfix.errors import RunnerError
from latfix.results.selftest_scoreboard import CaseScore, Scoreboard
from latfix.runners.selftest import run as module
from latfix.runners.selftest.case import Case
from latfix.runners.selftest.scoreboard import make_scoreboard
from tests.cli.conftest import refused
from tests.conftest import cli
from tests.runners.selftest.conftest import case_score


def _score(case: Case, *, right: bool) -> CaseScore:
    top = "python.gc" if right else "host.contention"
    wrong = () if right else (top,)
    known: dict[str, Any] = {"excess_ms": 20.0, "faults": 8, "dropped": 1, "present": ("python.gc",)}
    known |= {"injected": ("python.gc",), "right_tops": ("python.gc",), "true_ms": {"python.gc": 20.0}}
    return case_score(case, verdict=top, top=top, top_right=right, named=(top,), wrong=wrong, **known)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the replays; what the command calls for, and how the stand-in is to answer."""
    calls: dict[str, Any] = {"right": True, "stop_after": None}

    def run_selftest(cases: Sequence[Case], out: Path, **options: Any) -> Scoreboard:
        calls.update(cases=list(cases), out=out, **options)
        scores = [_score(case, right=calls["right"]) for case in cases][: calls["stop_after"]]
        for place, score in enumerate(scores):
            options["on_case"](place, len(cases), cases[place], score)
        return make_scoreboard(
            scores,
            planned=len(cases),
            not_injectable={"host.steal": "only a hypervisor can take the core"},
            seed=options["seed"],
            quick=options["quick"],
            machine={},
            typical_ms=5.0,
            seconds=12.0,
        )

    monkeypatch.setattr(module, "run_selftest", run_selftest)
    return calls


def test_the_scoreboard_ends_with_one_sentence(replayed: dict[str, Any]) -> None:
    code, out, err = cli("selftest", "--quick", "--cause", "python.gc", "--seed", "7")
    assert code == 0
    words = " ".join(out.split())
    assert words.endswith(
        "the largest cause was right in 3 of 3 runs with known faults; "
        "the diagnosis meets every bar that was measured."
    )
    assert "24 faults, 3 dropped as too small" in words and "host.steal: only a hypervisor" in words
    assert "3 runs (3 single), about" in err and "3/3" in err
    assert replayed["seed"] == 7 and replayed["quick"] and replayed["keep"] is False
    assert {case.recipes[0] for case in replayed["cases"]} == {"gc_prepare", "gc_model", "gc_background"}
    assert not replayed["out"].exists()


def test_what_was_wrong_is_listed(replayed: dict[str, Any]) -> None:
    replayed["right"] = False
    code, out, _ = cli("selftest", "--quick", "--cause", "python.gc")
    words = " ".join(out.split())
    assert code == 0 and "missed" in words
    assert "gc_model-medium-1000: wrong: host.contention instead of python.gc" in words
    assert "weak at python.gc" in words


def test_json_on_standard_output_is_all_there_is(replayed: dict[str, Any]) -> None:
    code, out, _ = cli("selftest", "--quick", "--cause", "python.gc", "--json", "-", "--repeat", "2")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "latfix.selftest/1"
    assert document["planned"] == document["scored"] == len(document["cases"]) == len(replayed["cases"]) == 6
    assert {case["seed"] for case in document["cases"]} == {1000, 1001}
    assert document["measures"][0]["value"] == 1.0


def test_records_are_kept_with_out(replayed: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "kept"
    code, _, _ = cli("selftest", "--quick", "--out", out, "--json", tmp_path / "s.json")
    assert code == 0 and replayed["keep"] is True and replayed["out"] == out
    assert json.loads((tmp_path / "s.json").read_text())["quick"] is True
    (out / "something").touch()
    code, _, err = cli("selftest", "--quick", "--out", out)
    assert code == 2 and "not empty" in err


def test_an_interrupted_test_keeps_its_scores_and_exits_130(replayed: dict[str, Any], tmp_path: Path) -> None:
    replayed["stop_after"] = 1
    code, out, _ = cli("selftest", "--quick", "--json", tmp_path / "s.json")
    assert code == 130 and "interrupted" in out
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["scored"] == 1 < document["planned"]


def test_a_runner_that_fails_exits_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Scoreboard:
        raise RunnerError("the runner was killed")

    monkeypatch.setattr(module, "run_selftest", fail)
    code, out, err = cli("selftest", "--quick")
    assert (code, out) == (4, "") and err.endswith("latfix: the runner was killed\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cause", "python.gx"), "--cause: found 'python.gx'; expected one of"),
        (("--intensity", "tiny"), "--intensity: found 'tiny'; expected one of weak"),
        (("--rescore", "x", "--intensity", "weak"), "--rescore: found --quick, --cause, --intensity"),
        (("--cause", "host.steal"), "only a hypervisor can take the core"),
        (("--repeat", "0"), "--repeat: found 0"),
        (("--seed", "-1"), "--seed: found -1"),
        (("--rescore", "nowhere"), "nowhere: found no case.json"),
        (("--rescore", "x", "--quick"), "--rescore: found --quick"),
        (("--rescore", "x", "--repeat", "2"), "--rescore: found --quick"),
        (("--json", "/no/such/folder/x.json"), "--json: cannot write"),
    ],
)
@pytest.mark.usefixtures("replayed")
def test_wrong_usage_is_one_line_and_exits_2(arguments: tuple[str, ...], words: str) -> None:
    refused(cli("selftest", *arguments), words)
