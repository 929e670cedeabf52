"""The history through the command line: what is recorded when, what gates make of it, and how it is shown."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latfix.history.store import History
from latfix.reports.terminal.widgets import Portable, Sparkline, bars
from tests.cli.conftest import Cli, refused
from tests.conftest import cli, succeeded
from tests.reports.conftest import printed

HOSTILE = "<script>|[red]x[/red]\x1b[31m`@all"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "h.sqlite3"


@pytest.fixture
def ten_runs(diagnose: Cli, file: Path) -> History:
    """One run, and nine that differ from it by up to three per cent."""
    assert diagnose("--history", file)[0] == 0
    history = History.read(file)
    (row,) = history.rows()
    for k in range(9):
        latency_ms = {key: value * (1 + 0.01 * (k % 7 - 3)) for key, value in row.subject.latency_ms.items()}
        subject = replace(row.subject, latency_ms=latency_ms)
        history.add(replace(row, run=f"earlier {k}", started=f"2020-01-0{k + 1}", subject=subject))
    return history


def test_nothing_is_recorded_by_default(diagnose: Cli, tmp_path: Path) -> None:
    assert diagnose("--gate", "p99<1s")[0] == 0
    assert not (tmp_path / "data").exists()


def test_a_recorded_run_is_what_the_run_was(diagnose: Cli, file: Path, tmp_path: Path) -> None:
    diagnose("--history", file, "--gate", "p99<1s", "--json", tmp_path / "d.json")
    (row,) = History.read(file).rows()
    document = json.loads((tmp_path / "d.json").read_text())
    meta = json.loads((tmp_path / "run-1" / "run.json").read_text())
    assert row.subject.latency_ms.items() >= document["latency_ms"].items()
    assert row.subject.figure("p97") is not None and row.subject.requests == document["requests"]
    assert row.subject.cause_shares == {cause["cause"]: cause["tail_share"] for cause in document["causes"]}
    assert (row.verdict, row.folder) == (document["verdict"], str(tmp_path / "run-1"))
    assert (row.series.workload, row.series.command, row.series.traffic) == ("w", "diagnose", meta["traffic_sha256"])
    assert row.gates == tuple(document["gates"]) and row.unusable == "" and row.versions == meta["versions"]


def test_where_it_is_by_option_variable_and_default(
    diagnose: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = tmp_path / "data" / "latfix" / "history.sqlite3"
    assert diagnose("--gate", "p99<history*9")[0] == 3, "a gate on the history records, in the user's own"
    assert len(History.read(default).rows()) == 1
    diagnose("--history", "default")
    assert len(History.read(default).rows()) == 2
    monkeypatch.setenv("LATFIX_HISTORY", str(tmp_path / "by-variable"))
    diagnose()
    assert len(History.read(tmp_path / "by-variable").rows()) == 1
    diagnose("--history", "off")
    diagnose("--history", tmp_path / "by-option")
    assert len(History.read(tmp_path / "by-variable").rows()) == 1
    assert len(History.read(tmp_path / "by-option").rows()) == 1
    monkeypatch.setenv("LATFIX_HISTORY", "off")
    diagnose()
    assert len(History.read(default).rows()) == 2


def test_a_gate_on_a_history_that_is_off_is_refused(diagnose: Cli, service: Any) -> None:
    code, _, err = diagnose("--history", "off", "--gate", "p99<history")
    assert code == 2 and "no history here" in err and service.runs == 0


def test_too_few_runs_are_undecided_and_say_how_many_are_missing(diagnose: Cli, file: Path, tmp_path: Path) -> None:
    for missing in (5, 4):
        code, out, _ = diagnose("--history", file, "--gate", "p99<history*2", "--json", tmp_path / "d.json")
        (gate,) = json.loads((tmp_path / "d.json").read_text())["gates"]
        assert code == 3 and gate["passed"] is None and gate["more_runs"] == missing
        assert f"{missing} more needed" in " ".join(out.split())


def test_a_regression_fails_against_the_history_and_does_not_become_it(
    diagnose: Cli, service: Any, ten_runs: History, tmp_path: Path
) -> None:
    file = ten_runs.path
    gates = ("--history", file, "--gate", "p99<history*1.15", "--json", tmp_path / "d.json")
    assert diagnose(*gates)[0] == 0
    service.scale = 2.0
    for _ in range(2):
        code, _, err = diagnose(*gates)
        (gate,) = json.loads((tmp_path / "d.json").read_text())["gates"]
        assert code == 1, err
        assert gate["value"] == pytest.approx(2 * gate["limit"] / 1.15, rel=0.1)
    rows = History.read(file).rows()
    assert [row.unusable for row in rows[-2:]] == ["it failed p99<history*1.15"] * 2


def test_a_report_compares_and_does_not_record(ten_runs: History, tmp_path: Path) -> None:
    options = ("--history", ten_runs.path, "--gate", "p99<history*1.2", "--json", tmp_path / "d.json")
    succeeded(cli("report", tmp_path / "run-1", *options))
    (gate,) = json.loads((tmp_path / "d.json").read_text())["gates"]
    assert "the last 9 runs" in gate["reason"], "not with itself"
    assert len(ten_runs.rows()) == 10


def test_the_default_that_cannot_be_written_is_off_in_one_line(
    diagnose: Cli, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("a file")
    for options, code in ((("--history", "default"), 0), (("--gate", "p99<history*2"), 3)):
        found, out, err = diagnose(*options)
        assert found == code
        assert err.count("this run is not recorded") == 1 and err.count("\n") == 1, err
    assert "there is no history" in " ".join(out.split())
    monkeypatch.setenv("LATFIX_HISTORY", str(tmp_path / "data" / "h"))
    assert diagnose()[0] == 0
    assert service.runs == 3


@pytest.mark.parametrize("named", [False, True])
def test_a_history_that_goes_away_during_the_run(
    named: bool, diagnose: Cli, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "h.sqlite3"
    replay = service.replay

    def remove(*arguments: Any) -> Any:
        shutil.rmtree(file.parent)
        return replay(*arguments)

    monkeypatch.setattr("latfix.cli.shared.replay_progress.replay_with_progress", remove)
    monkeypatch.setenv("LATFIX_HISTORY", str(file))
    arguments = ("--gate", "p99<0.1ms", "--json", tmp_path / "d.json")
    code, _, err = diagnose(*arguments, *(("--history", file) if named else ()))
    assert code == (2 if named else 1), "the gate's answer is not lost to a file that nobody named"
    assert err.count("\n") == 1 and "h.sqlite3" in err
    assert named or "this run is not recorded" in err


def test_a_gate_on_any_percentile_is_recorded_for_the_next_ones(diagnose: Cli, file: Path, tmp_path: Path) -> None:
    arguments = ("--history", file, "--gate", "p37.25<history*1.5", "--json", tmp_path / "d.json")
    codes = [diagnose(*arguments)[0] for _ in range(6)]
    (gate,) = json.loads((tmp_path / "d.json").read_text())["gates"]
    assert codes == [3, 3, 3, 3, 3, 0], gate
    assert "the last 5 runs" in gate["reason"]


def test_a_history_is_not_replaced_by_a_document(diagnose: Cli, service: Any, ten_runs: History, file: Path) -> None:
    for option in ("--json", "--junit", "--markdown"):
        code, _, err = diagnose("--history", file, option, file)
        assert code == 2 and f"{option}: found a database" in err, err
    new = file.with_name("new")
    assert diagnose("--history", new, "--json", new)[0] == 2 and History.read(new).rows() == []
    assert len(ten_runs.rows()) == 10 and service.runs == 1


def test_a_damaged_history_is_one_line_and_left_alone(diagnose: Cli, service: Any, file: Path) -> None:
    file.write_text("something of the user's")
    for answer in (diagnose("--history", file), cli("history", "--history", file)):
        refused(answer, "expected a history that latfix wrote")
    assert file.read_text() == "something of the user's" and service.runs == 0


def test_runs_that_did_not_end_are_recorded_and_not_compared_with(diagnose: Cli, service: Any, file: Path) -> None:
    service.interrupted = True
    assert diagnose("--history", file)[0] == 130
    service.interrupted, service.failed = False, 300
    assert diagnose("--history", file)[0] == 4
    assert [row.unusable for row in History.read(file).rows()] == ["it did not reach its end", "no request ended ok"]


def _history(*arguments: object) -> dict[str, Any]:
    out = succeeded(cli("history", *arguments, "--json", "-"))
    document: dict[str, Any] = json.loads(out)
    return document


def test_history_shows_the_trend_and_the_run_that_changed_it(ten_runs: History) -> None:
    rows = ten_runs.rows()
    for k in range(9):
        subject = replace(rows[0].subject, latency_ms={"p99": 500.0 + k, "p97": 80.0}, accuracy=0.9)
        later = replace(rows[0], run=f"later {k}", started=f"2990-01-0{k + 1}", subject=subject, folder=f"/later/{k}")
        ten_runs.add(later)
    code, out, _ = cli("history", "w", "--history", ten_runs.path)
    shown = " ".join(out.split())
    assert code == 0
    assert "▁" in shown and "█" in shown and "a processor, 2 cores" in shown
    assert "since the run of 2990-01-01" in shown and "/later/0" in shown and "> 2990-01-01" in shown
    document = _history("--history", ten_runs.path)
    assert document["schema"] == "latfix.history/1" and document["metric"] == "p99"
    (trend,) = document["trends"]
    assert len(trend["runs"]) == 19 and [change["folder"] for change in trend["changes"]] == ["/later/0"]
    assert trend["changes"][0]["after"] == 504.0


def test_any_metric_and_the_last_runs_of_a_workload_or_its_folder(ten_runs: History, tmp_path: Path) -> None:
    (trend,) = _history(tmp_path / "w", "--history", ten_runs.path)["trends"]
    assert trend["workload"] == "w"
    (trend,) = _history("w", "--history", ten_runs.path, "--metric", "p97", "--last", "3")["trends"]
    assert len(trend["runs"]) == 3 and trend["runs"][-1]["value"] is not None
    (trend,) = _history("--history", ten_runs.path, "--metric", "accuracy")["trends"]
    assert {run["value"] for run in trend["runs"]} == {None} and trend["level"] is None
    for metric in ("throughput", "error_rate", "cause:unexplained", "unexplained_share", "mean"):
        assert cli("history", "w", "--history", ten_runs.path, "--metric", metric)[0] == 0


WRONG = [
    (("nothing",), "found no run of it"),
    (("--metric", "p100"), "--metric"),
    (("--metric", "cause:python.gcs"), "cause:python.gc"),
    (("--last", "0"), "--last"),
    (("--history", "none"), "found no history"),
    (("--history", "off"), "expected the history"),
    (("--history", ""), "empty name"),
    (("--html", "no/such/x.html"), "--html"),
    (("--json", "no/such/x.json"), "--json"),
    (("--json", "x", "--html", "./x"), "--html: found x, which --json also writes to"),
    (("--json", "h.sqlite3"), "--json: found a database in h.sqlite3"),
    (("--html", "h.sqlite3"), "--html: found a database in h.sqlite3"),
]


def test_wrong_arguments_are_one_line(ten_runs: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATFIX_HISTORY", str(ten_runs.path))
    monkeypatch.chdir(ten_runs.path.parent)
    for arguments, words in WRONG:
        refused(cli("history", *arguments), words)
    assert len(ten_runs.rows()) == 10


def test_hostile_names_are_shown_and_not_obeyed(ten_runs: History, tmp_path: Path) -> None:
    row = ten_runs.rows()[0]
    for k in range(12):
        series = replace(row.series, workload=HOSTILE, plan=HOSTILE)
        subject = replace(row.subject, latency_ms={"p99": 10.0 if k < 6 else 90.0})
        hostile = replace(row, run=f"{HOSTILE}{k}", started=f"{k}{HOSTILE}", series=series, subject=subject)
        ten_runs.add(replace(hostile, verdict=HOSTILE, folder=HOSTILE, unusable="", machine={"cpu": HOSTILE}))
    page = tmp_path / "h.html"
    out = succeeded(cli("history", HOSTILE, "--history", ten_runs.path, "--html", page))
    assert "\x1b" not in out and "[red]x[/red]" in out
    html = page.read_text()
    assert html.count("<script") == 1 and "\x1b" not in html and html.count("<circle") == 12
    assert html.rstrip().endswith("</html>")
    assert len(re.findall(r"<text [^>]*>[\d.]+\xa0ms</text>", html)) >= 2, "the axis has values with a unit"
    assert "excluded because" not in html


def test_a_history_without_runs(file: Path, tmp_path: Path) -> None:
    History.open(file)
    code, out, _ = cli("history", "--history", file, "--html", tmp_path / "h.html")
    assert code == 0 and out.startswith("No runs are recorded in")
    assert "No runs are recorded" in (tmp_path / "h.html").read_text()


def test_signs_stand_for_bars_where_there_is_no_unicode() -> None:
    assert bars([1.0, None, 2.0, 3.0]) == "▁ ▅█"
    assert bars([]) == "" and bars([None]) == " " and bars([2.0, 2.0]) == "▅▅"
    assert printed(Portable(Sparkline([1.0, 2.0, 3.0])), encoding="ascii").strip() == "_=#"
