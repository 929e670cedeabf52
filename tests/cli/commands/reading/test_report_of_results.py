"""``latfix report`` on results that are no runs: shown again from their folder, or from their JSON alone."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import pytest

from latfix.results import DOCUMENTS
from tests.cli.conftest import Cli, refused
from tests.conftest import cli, succeeded
from tests.results.test_documents import FOLDER, WRITTEN

#: A word that each result shows.
SHOWN = {
    "diagnosis": "Where the tail comes from",
    "comparison": "95 % interval",
    "optimization": "What was tried",
    "trial": "Best idea: ",
    "sweep": "max_batch_size=4",
    "selftest": "python.gc",
    "doctor": "nothing was changed",
    "history": "history  ",
    "fragmentation": "torch's defaults",
    "backends": "eager torch",
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_result_is_shown_from_its_json_alone(name: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    shutil.copy(FOLDER / f"{name}.json", file)
    out = succeeded(cli("report", file))
    assert SHOWN[name] in out
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    code, out, _ = cli("report", file, "--json", "-")
    assert code == 0 and json.loads(out) == json.loads(file.read_text())


@pytest.mark.parametrize(
    "name", ["diagnosis", "optimization", "trial", "sweep", "selftest", "doctor", "comparison", "fragmentation"]
)
def test_a_result_is_shown_from_its_folder_and_its_page_written_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    folder.mkdir()
    shutil.copy(FOLDER / f"{name}.json", folder)
    out = succeeded(cli("report", folder))
    assert SHOWN[name] in out
    has_page = name in ("optimization", "trial", "sweep")
    assert (folder / "report.html").exists() == has_page
    answer = cli("report", folder, "--out", tmp_path / "elsewhere")
    if has_page:
        assert answer[0] == 0 and (tmp_path / "elsewhere" / "report.html").exists(), answer
    else:
        refused(answer, "--out: found ", "which has no page here")


def test_a_recording_that_was_diagnosed_is_shown_again(tmp_path: Path) -> None:
    log, folder = tmp_path / "log.csv", tmp_path / "found"
    rows = (f"{k},{10 + k % 7},{k % 5}" for k in range(200))
    log.write_text("\n".join(["arrival_s,latency_ms,db_ms", *rows]))
    out = succeeded(cli("diagnose", log, "--out", folder))
    assert "log: " in out and "--map db_ms=db_ms" in " ".join(out.split())
    page = (folder / "report.html").read_text()
    assert f"host {platform.node()}" in page and "log.csv" in page.partition("<main")[0]
    (folder / "report.html").unlink()
    code, again, err = cli("report", folder)
    assert code == 0 and again.splitlines()[0] == out.splitlines()[0], err
    assert (folder / "report.html").read_text() == page


def test_a_result_without_a_page_has_no_pictures(tmp_path: Path) -> None:
    for name, code in (("sweep", 0), ("selftest", 2)):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(FOLDER / f"{name}.json", folder)
        found, _, err = cli("report", folder, "--figures", tmp_path / f"{name} pictures")
        assert found == code and ("--figures" in err) == (code == 2)
        assert len(list((tmp_path / f"{name} pictures").iterdir())) == (5 if name == "sweep" else 0)


def test_the_page_of_a_comparison_is_drawn_again_from_its_runs(diagnose: Cli, tmp_path: Path) -> None:
    for _ in range(2):
        assert diagnose()[0] == 0
    folder = tmp_path / "compared"
    assert cli("compare", tmp_path / "run-1", tmp_path / "run-2", "--out", folder)[0] == 0
    page = (folder / "report.html").read_text()
    assert 'href="#story-0"' in page, "the slowest requests are explained"
    (folder / "report.html").unlink()
    assert cli("report", folder)[0] == 0
    assert (folder / "report.html").read_text() == page
    shutil.rmtree(tmp_path / "run-1")
    (folder / "report.html").unlink()
    assert cli("report", folder)[0] == 0 and not (folder / "report.html").exists()


def test_the_next_step_of_an_optimization_names_the_workload_of_its_baseline(diagnose: Cli, tmp_path: Path) -> None:
    assert diagnose()[0] == 0
    folder = tmp_path / "result"
    folder.mkdir()
    proved = json.loads((FOLDER / "optimization.json").read_text()) | {"verdict": "improved"}
    (folder / "optimization.json").write_text(json.dumps(proved))
    shutil.move(tmp_path / "run-1", folder / "baseline")
    meta = json.loads((folder / "baseline" / "run.json").read_text())
    for elsewhere in ((), ("--out", tmp_path / "page")):
        _, out, _ = cli("report", folder, *elsewhere)
        step = "".join(out.partition("next step")[2].split()).partition("plan.tomlreport")
        typed = f"latfixdiagnose{meta['workload_folder']}".replace(" ", "")
        assert step[0].startswith(typed) and step[0].endswith(f"{folder}/"), "the plan is beside the result"


def test_the_file_of_a_run_stands_for_its_folder(diagnose: Cli, tmp_path: Path) -> None:
    assert diagnose()[0] == 0
    code, out, err = cli("report", tmp_path / "run-1" / "run.json")
    assert code == 0 and "Where the tail comes from" in out, err


@pytest.mark.parametrize("option", ["--percentile=95", "--gate=p99<1s", "--slowest=2", "--request=r1", "--history=x"])
def test_options_that_need_rows_are_refused(option: str) -> None:
    refused(cli("report", FOLDER / "sweep.json", option), f"latfix: {option.partition('=')[0]}: found ")


def test_every_kind_of_document_is_tried() -> None:
    assert {*WRITTEN, "explanation"} == {*SHOWN, "run", "explanation"} == set(DOCUMENTS)
